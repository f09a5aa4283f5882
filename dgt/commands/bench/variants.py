"""dgt's own ways to run an iteration; each variant has a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from dgt.algorithms import GradientTracking, NeighbourOptimizer
from dgt.commands.bench.presets import Workload
from dgt.exchange import shared
from dgt.exchange.frames import Frame, Seal
from dgt.exchange.network import Network
from dgt.exchange.transport import Outbox, Transport

LR = 1e-3


class Variant(Protocol):
    """One way to run an iteration."""

    def step(self) -> None: ...

    def finish(self) -> None:
        """Receive all messages that are under way, so that they do not count for the variant measured next."""

    def wait_seconds(self) -> float | None: ...

    def bytes_sent(self) -> int: ...


class Compute:
    """Forward and backward."""

    def __init__(self, work: Workload) -> None:
        self.model, self.backward = copy.deepcopy(work.model), work.backward

    def step(self) -> None:
        self.model.zero_grad()
        self.backward(self.model)

    def finish(self) -> None:
        """No messages."""

    def wait_seconds(self) -> float | None:
        """Seconds this rank has waited for messages; None if unknown."""
        return None

    def bytes_sent(self) -> int:
        return 0


class Tracking(Compute):
    """dgt's own optimizer on a network; gradient tracking unless another algorithm is given."""

    def __init__(
        self, work: Workload, network: Network, algorithm: type[NeighbourOptimizer] = GradientTracking, **options: Any
    ) -> None:
        super().__init__(work)
        self.network = network
        self.optimizer = algorithm(self.model.parameters(), lr=LR, network=network, model=self.model, **options)

    def step(self) -> None:
        super().step()
        self.optimizer.step()

    def finish(self) -> None:
        self.optimizer.drain()

    def wait_seconds(self) -> float | None:
        return self.optimizer.transport.wait_seconds

    def bytes_sent(self) -> int:
        return self.network.bytes_sent


class Unchecked(Tracking):
    """Without headers and checks of messages: the difference is what they cost."""

    def __init__(self, work: Workload, network: Network) -> None:
        super().__init__(work, network)
        for bucket in self.optimizer.buckets:
            bucket.checks_finite = False
            for outbox in bucket.outboxes():
                outbox.seal = NoSeal(network.node, outbox.kind, outbox.buffer, crc=False)


class NoSeal(Seal):
    """A seal that writes and checks nothing."""

    def write(self, frame: Frame, number: int, iteration: int) -> None:
        """No header."""

    def check(self, *_: Any) -> None:
        """No check."""


class Mirror(Transport):
    """A transport whose neighbours' messages are this rank's own, available at once."""

    def outbox(self, kind: str, like: torch.Tensor, least_inboxes: int = 2, after: Outbox | None = None) -> Outbox:
        own = shared.create(like)
        if own is None:
            raise RuntimeError("the limit needs shared memory")
        own.unlink()
        own.expect(0, 1)
        own.neighbours = {self.node.rank: own}
        outbox = Outbox(self, kind, self.node.open_channel(), like, own, dict.fromkeys(self.peers, own), inboxes=0)
        outbox.seal = OwnSeal(self.node, kind, like, self.crc)
        return outbox


class OwnSeal(Seal):
    """The checks that a neighbour would make, on this rank's own messages."""

    def check(self, frames: Iterable[tuple[int, Any]], number: int, iteration: int, used: bytes | None = None) -> None:
        super().check([(self.node.rank, frame) for _, frame in frames], number, iteration, used)


class MirrorNetwork(Network):
    """The real mixing row over `Mirror` transports: the computation without waiting."""

    def open_transport(self) -> Transport:
        if not self._transports:  # the first transport is real: it does the handshake
            return super().open_transport()
        self._transports.append(Mirror(self.node, self.neighbours))
        return self._transports[-1]
