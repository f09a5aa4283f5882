"""`dgt.Network`: this node's neighbours, its mixing row and its gradient scale, learned by a handshake.

Each rank tells its neighbours (lambda_i, d_i), hears theirs, and computes its own row of W. Nothing larger
than that row exists on any rank.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence

import networkx as nx
import numpy as np
import torch

from dgt.config import ConfigError, check_range
from dgt.exchange.agreement import agree
from dgt.exchange.transport import Pending, Transport
from dgt.network import graphs
from dgt.network import weights as node_weights
from dgt.network.mixing import MixingRow, mixing_row, strategy
from dgt.world import Node


class Network:
    """What node i knows of the network.

    row             its own weight W_ii and W_ij for each neighbour j
    gradient_scale  G_ii: lambda_i in Strategy I, 1 in Strategy II
    weight          lambda_i
    average_weight  pi_i: the share of this node in the strategy's network average, 1/n or lambda_i/n
    """

    def __init__(
        self,
        node: Node,
        graph: nx.Graph,
        weights: Sequence[float] | np.ndarray,
        strategy: str = "II",
        laziness: float = 0.3,
    ) -> None:
        check_range("laziness", laziness, 0, 1, open_low=True, open_high=True)
        if graph.number_of_nodes() != node.size:
            raise ConfigError(
                f"world size {node.size}: the graph has {graph.number_of_nodes()} nodes; start one rank per node"
            )
        graphs.check(graph)
        weights = node_weights.normalise(np.asarray(weights, dtype=np.float64), node.size)
        agree(node, network_facts(graph, weights, strategy, laziness))
        plan = _strategy(strategy, weights)
        self.node = node
        self.strategy = strategy
        self.weight = float(weights[node.rank])
        self.gradient_scale = float(plan.gradient_scale[node.rank])
        self.average_weight = float(plan.average_weights[node.rank])
        self.transport = Transport(node, sorted(graph[node.rank]))
        self.row = handshake(self.transport, float(plan.mixing_weights[node.rank]), laziness)

    @property
    def neighbours(self) -> list[int]:
        return self.transport.peers

    def mix(self, own: torch.Tensor, pending: Pending, out: torch.Tensor, part: slice = slice(None)) -> torch.Tensor:
        """out = W_ii own + sum_j W_ij theirs_j; `part` picks a piece of the neighbours' buffers."""
        torch.mul(own, self.row.own, out=out)
        for peer, theirs in pending.collect():
            out.add_(theirs[part].to(out.device, non_blocking=True), alpha=self.row.neighbours[peer])
        return out


_strategy = strategy  # the constructor's argument of the same name hides the function


def handshake(transport: Transport, own_weight: float, laziness: float) -> MixingRow:
    """Tell every neighbour (lambda_i, d_i), hear theirs, compute the own mixing row."""
    own = torch.tensor([own_weight, len(transport.peers)], dtype=torch.float64, device=transport.node.device)
    pending = transport.post("handshake", 0, own)
    told = {}
    for peer, theirs in pending.collect():
        weight, degree = theirs.tolist()
        told[peer] = (weight, int(degree))
    pending.finish()
    return mixing_row(own_weight, len(transport.peers), told, laziness)


def network_facts(graph: nx.Graph, weights: np.ndarray, strategy: str, laziness: float) -> dict[str, str]:
    """What all ranks must agree on before they mix."""
    edges = sorted(tuple(sorted(edge)) for edge in graph.edges)
    return {
        "version": importlib.metadata.version("dgt"),
        "strategy": strategy,
        "laziness": repr(laziness),
        "graph": f"{len(edges)} edges, {_digest(np.asarray(edges, dtype=np.int64))}",
        "weights": f"{weights.size} nodes, {_digest(weights)}",
    }


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
