"""`dgt.Network`: this node's neighbours, its mixing row and its gradient scale, learned by a handshake.

Each rank tells its neighbours (lambda_i, d_i), hears theirs, and computes its own row of W. Nothing larger
than that row exists on any rank.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import networkx as nx
import numpy as np
import torch

from dgt.checks import ConfigError, check_choice, check_range
from dgt.config import TRANSPORTS
from dgt.exchange.agreement import agree
from dgt.exchange.average import averaged, save_average
from dgt.exchange.transport import Pending, Transport
from dgt.network import mixing
from dgt.network.mixing import MixingRow, mixing_row
from dgt.world import Node

PIECE = 1 << 17  # numbers worked on at a time, so that they stay in the cache


class Network:
    """What node i knows of the network.

    row             its own weight W_ii and W_ij for each neighbour j
    gradient_scale  G_ii: lambda_i in Strategy I, 1 in Strategy II
    weight          lambda_i
    average_weight  pi_i: the share of this node in the strategy's network average, 1/n or lambda_i/n
    transport       auto (memory where neighbours share it, else messages) or messages
    """

    def __init__(
        self,
        node: Node,
        graph: nx.Graph,
        weights: Sequence[float] | np.ndarray,
        strategy: str = "II",
        laziness: float = 0.3,
        transport: str = "auto",
    ) -> None:
        check_choice("transport", transport, TRANSPORTS)
        check_range("laziness", laziness, 0, 1, open_low=True, open_high=True)
        graph, weights = mixing.checked(graph, weights, node.size)
        share = mixing.node_share(node.rank, graph, weights, strategy)
        agree(node, network_facts(graph, weights, strategy, laziness))
        self.node = node
        self.transport = transport
        self.strategy = strategy
        self.neighbours = share.neighbours
        self.weight = share.weight
        self.gradient_scale = share.gradient_scale
        self.average_weight = share.average_weight
        self._transports: list[Transport] = []
        self._model: torch.nn.Module | None = None
        self.row = handshake(self.open_transport(), share.mixing_weight, laziness)

    def open_transport(self) -> Transport:
        """A way to exchange buffers with the neighbours, apart from all others."""
        self._transports.append(Transport(self.node, self.neighbours, self.transport))
        return self._transports[-1]

    @contextlib.contextmanager
    def average(
        self, model: torch.nn.Module, recalibrate: Callable[[], None] | None = None
    ) -> Iterator[torch.nn.Module]:
        """with network.average(model): the model is the strategy's network average inside. All ranks call it.

        `recalibrate` is called on the averaged model to renew its BatchNorm statistics, for example with
        `torch.optim.swa_utils.update_bn`; the statistics of all nodes are then pooled.
        """
        self._model = model
        with averaged(self, model, recalibrate):
            yield model

    def save_average(
        self,
        path: str | Path,
        model: torch.nn.Module | None = None,
        recalibrate: Callable[[], None] | None = None,
    ) -> None:
        """Write the network average as an ordinary state_dict; the model is that of the last `average` if not given."""
        model = model if model is not None else self._model
        if model is None:
            raise ConfigError("save_average: give the model, network.save_average(path, model)")
        save_average(self, model, path, recalibrate)

    @property
    def bytes_sent(self) -> int:
        return sum(transport.bytes_sent for transport in self._transports)

    def mix(self, own: torch.Tensor, pending: Pending, out: torch.Tensor) -> torch.Tensor:
        """out = W_ii own + sum_j W_ij theirs_j, as a running mean: a row sums to 1, so every step is one lerp."""
        near, total = [], self.row.own
        for peer, theirs in pending.shared():
            total += self.row.neighbours[peer]
            near.append((theirs, self.row.neighbours[peer] / total))
        for piece in _pieces(out):
            mean = own[piece]
            for theirs, share in near:
                mean = torch.lerp(mean, theirs[piece], share, out=out[piece])
            if not near:
                out[piece].copy_(mean)
        for peer, theirs in pending.messages():
            total += self.row.neighbours[peer]
            out.lerp_(theirs.to(out.device, non_blocking=True), self.row.neighbours[peer] / total)
        return out

    def add_neighbours(self, pending: Pending, out: torch.Tensor, scale: float) -> torch.Tensor:
        """out += scale sum_j W_ij theirs_j."""
        near = [(theirs, scale * self.row.neighbours[peer]) for peer, theirs in pending.shared()]
        for piece in _pieces(out):
            result = out[piece]
            for theirs, weight in near:
                result.add_(theirs[piece], alpha=weight)
        for peer, theirs in pending.messages():
            out.add_(theirs.to(out.device, non_blocking=True), alpha=scale * self.row.neighbours[peer])
        return out

    def mix_both(
        self, pending: Pending, own: torch.Tensor, out: torch.Tensor, rest: torch.Tensor, scale: float
    ) -> None:
        """`mix` into `out` with the first half of small messages, `add_neighbours` to `rest` with the second.

        All neighbours in one product: for a few numbers, every call costs more than its arithmetic.
        """
        heard = list(pending.collect())
        torch.mul(own, self.row.own, out=out)
        if heard:
            weights = torch.tensor([self.row.neighbours[peer] for peer, _ in heard], dtype=out.dtype)
            stacked = torch.stack([theirs for _, theirs in heard])
            mean = torch.mv(stacked.T, weights.to(stacked.device)).to(out.device, non_blocking=True)
            out.add_(mean[: own.numel()])
            rest.add_(mean[own.numel() :], alpha=scale)


def _pieces(vector: torch.Tensor) -> Iterator[slice]:
    """Piece by piece on a CPU, so that a result stays in the cache while all neighbours are added to it."""
    length = PIECE if vector.device.type == "cpu" else max(vector.numel(), 1)
    return (slice(start, start + length) for start in range(0, vector.numel(), length))


def handshake(transport: Transport, own_weight: float, laziness: float) -> MixingRow:
    """Tell every neighbour (lambda_i, d_i), hear theirs, compute the own mixing row."""
    own = torch.tensor([own_weight, len(transport.peers)], dtype=torch.float64, device=transport.node.device)
    told = {}
    for peer, theirs in transport.exchange("handshake", 0, own).items():
        weight, degree = theirs.tolist()
        told[peer] = (weight, int(degree))
    return mixing_row(own_weight, len(transport.peers), told, laziness)


def network_facts(graph: nx.Graph, weights: np.ndarray, strategy: str, laziness: float) -> dict[str, str]:
    """What all ranks must agree on before they mix."""
    edges = sorted(tuple(sorted(edge)) for edge in graph.edges)
    return {
        "strategy": strategy,
        "laziness": repr(laziness),
        "graph": f"{len(edges)} edges, {_digest(np.asarray(edges, dtype=np.int64))}",
        "weights": f"{weights.size} nodes, {_digest(weights)}",
    }


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
