"""dgt: weighted decentralized training in PyTorch, one process per network node.

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.05, network=network)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgt.algorithms import DSGD, AllReduce, GradientTracking
    from dgt.checks import ConfigError
    from dgt.config import Config
    from dgt.exchange.buffers import MixedBuffers
    from dgt.exchange.network import Network
    from dgt.network import graphs, weights
    from dgt.node import Node
    from dgt.notices import PeerError
    from dgt.problems.base import Problem, ProblemContext
    from dgt.training.library import Checkpoints
    from dgt.world import join

__all__ = [
    "DSGD", "AllReduce", "Checkpoints", "Config", "ConfigError", "GradientTracking", "MixedBuffers", "Network", "Node",
    "PeerError", "Problem", "ProblemContext", "graphs", "join", "weights",
]  # fmt: skip

# Imported at first use: torch takes seconds, and the `dgt` command has something to do meanwhile.
_HOMES = {
    "DSGD": "dgt.algorithms", "AllReduce": "dgt.algorithms", "GradientTracking": "dgt.algorithms",
    "ConfigError": "dgt.checks", "Config": "dgt.config", "MixedBuffers": "dgt.exchange.buffers",
    "Network": "dgt.exchange.network", "graphs": "dgt.network", "weights": "dgt.network",
    "Checkpoints": "dgt.training.library",
    "Problem": "dgt.problems.base", "ProblemContext": "dgt.problems.base",
    "Node": "dgt.node", "PeerError": "dgt.notices", "join": "dgt.world",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dgt' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return getattr(home, name) if hasattr(home, name) else import_module(f"{_HOMES[name]}.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
