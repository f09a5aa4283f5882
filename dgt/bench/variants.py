"""The ways to run an iteration that are measured against each other; each has a model of its own.

compute   forward and backward only: what no optimizer can go below
limit     gradient tracking whose neighbours are this rank itself: all the arithmetic, no waiting
naive     gradient tracking as one would first write it: one message per tensor and neighbour
messages  dgt over the process group
shared    dgt as it runs by default: shared memory where there is any
no_overlap  the same, the tracker awaited at once
ddp       torch's DistributedDataParallel with SGD: an all-reduce of the gradients
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import networkx as nx
import torch
import torch.distributed as dist

from dgt.algorithms import GradientTracking
from dgt.bench.presets import Workload
from dgt.exchange import shared
from dgt.exchange.network import Network
from dgt.exchange.transport import Outbox, Transport
from dgt.world import Node

LR = 1e-3


class Variant(Protocol):
    """One way to run an iteration."""

    def step(self) -> None: ...

    def wait_seconds(self) -> float: ...

    def bytes_sent(self) -> int: ...


class Compute:
    """Forward and backward."""

    def __init__(self, work: Workload) -> None:
        self.model, self.backward = copy.deepcopy(work.model), work.backward

    def step(self) -> None:
        self.model.zero_grad()
        self.backward(self.model)

    def wait_seconds(self) -> float:
        return 0.0

    def bytes_sent(self) -> int:
        return 0


class Tracking(Compute):
    """dgt's own optimizer on a network."""

    def __init__(self, work: Workload, network: Network, overlap: bool = True) -> None:
        super().__init__(work)
        self.network = network
        self.optimizer = GradientTracking(self.model.parameters(), lr=LR, network=network, overlap=overlap)

    def step(self) -> None:
        super().step()
        self.optimizer.step()

    def wait_seconds(self) -> float:
        return self.optimizer.transport.wait_seconds

    def bytes_sent(self) -> int:
        return self.network.bytes_sent


class Mirror(Transport):
    """Neighbours that are always there: each is this rank's own message."""

    def outbox(self, kind: str, like: torch.Tensor, inboxes: int = 2) -> Outbox:
        own = shared.create(like) if shared.available() else None
        if own is not None:
            own.unlink()
            own.expect(0, 1)
            own.neighbours = {self.node.rank: own}
            return Outbox(self, kind, self.node.open_channel(), like, own, dict.fromkeys(self.peers, own), inboxes=0)
        raise RuntimeError("the limit needs shared memory")


class MirrorNetwork(Network):
    """The real row, and nobody to wait for."""

    def open_transport(self) -> Transport:
        if not self._transports:  # the handshake is real
            return super().open_transport()
        self._transports.append(Mirror(self.node, self.neighbours))
        return self._transports[-1]


class DDP(Compute):
    """DistributedDataParallel over the same process group."""

    def __init__(self, work: Workload, node: Node) -> None:
        super().__init__(work)
        self.parallel = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self._per_step = 2 * (node.size - 1) * size // node.size  # a ring all-reduce
        self._bytes = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward(self.parallel)
        self.optimizer.step()
        self._bytes += self._per_step

    def bytes_sent(self) -> int:
        return self._bytes


class Naive(Compute):
    """The equations, tensor by tensor: z and y of every parameter to every neighbour, one wait each."""

    def __init__(self, work: Workload, network: Network) -> None:
        super().__init__(work)
        self.network, self.group = network, network.node.control
        self.tracker: list[torch.Tensor] = []
        self.gradient: list[torch.Tensor] = []
        self._steps = self._bytes = 0

    def step(self) -> None:
        super().step()
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        scale, parameters = self.network.gradient_scale, list(self.model.parameters())
        gradient = [p.grad.clone() for p in parameters if p.grad is not None]
        if not self.tracker:
            self.tracker = [scale * g for g in gradient]
        else:
            mixed = [self._mix(y) for y in self.tracker]
            changes = zip(mixed, gradient, self.gradient, strict=True)
            self.tracker = [y + scale * (new - old) for y, new, old in changes]
        self.gradient = gradient
        for parameter, y in zip(parameters, self.tracker, strict=True):
            parameter.copy_(self._mix(parameter - LR * y))

    def _mix(self, own: torch.Tensor) -> torch.Tensor:
        row, result = self.network.row, self.network.row.own * own
        for peer in self.network.neighbours:
            theirs = torch.empty_like(own)
            tag = 2**30 + self._steps % 2**20  # above all tags of dgt's own messages
            works: list[dist.Work] = [
                self.group.recv([theirs], peer, tag),
                self.group.send([own.contiguous()], peer, tag),
            ]
            for work in works:
                work.wait()
            result = result + row.neighbours[peer] * theirs
            self._bytes += own.numel() * own.element_size()
        self._steps += 1
        return result

    def bytes_sent(self) -> int:
        return self._bytes


def build(name: str, work: Workload, node: Node, graph: nx.Graph, weights: list[float]) -> Variant:
    """The variant of this name; all ranks build the same ones in the same order."""
    makers: dict[str, Callable[[], Variant]] = {
        "compute": lambda: Compute(work),
        "limit": lambda: Tracking(work, MirrorNetwork(node, graph, weights)),
        "naive": lambda: Naive(work, Network(node, graph, weights)),
        "messages": lambda: Tracking(work, Network(node, graph, weights, transport="messages")),
        "shared": lambda: Tracking(work, Network(node, graph, weights)),
        "no_overlap": lambda: Tracking(work, Network(node, graph, weights), overlap=False),
        "ddp": lambda: DDP(work, node),
    }
    return makers[name]()


VARIANTS = ("compute", "limit", "ddp", "naive", "messages", "shared", "no_overlap")
