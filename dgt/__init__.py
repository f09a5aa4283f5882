"""dgt: weighted decentralized training in PyTorch, one process per network node.

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.05, network=network)
"""

from dgt.algorithms import DSGD, AllReduce, GradientTracking
from dgt.checks import ConfigError
from dgt.config import Config
from dgt.exchange.buffers import MixedBuffers
from dgt.exchange.network import Network
from dgt.network import graphs, weights
from dgt.problems.base import Problem, ProblemContext
from dgt.world import Node, PeerError, join

__all__ = [
    "DSGD", "AllReduce", "Config", "ConfigError", "GradientTracking", "MixedBuffers", "Network", "Node", "PeerError",
    "Problem", "ProblemContext", "graphs", "join", "weights",
]  # fmt: skip
