"""Point-to-point messages between neighbours: post a buffer to all of them now, collect theirs later.

    pending = transport.post("parameters", step, z)      # returns at once
    for peer, theirs in pending.collect(): ...           # neighbours in ascending order

One interface, two ways: gloo takes each message with its own tag; nccl knows no tags and wants one symmetric
batch in sorted order from the main thread. No deadlock on any graph: a rank posts everything it sends before
it waits for anything, so every wait is for a message already on its way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from dgt.world import Node, PeerError, absence

KINDS = ("parameters", "tracker", "both", "handshake", "buffers")
CHANNELS = 256


def message_order(rank: int, peers: Sequence[int]) -> list[tuple[str, int]]:
    """The order of one nccl batch: per peer, ascending, the lower rank sends first; both ends meet in order."""
    order = []
    for peer in sorted(peers):
        pair = [("send", peer), ("receive", peer)]
        order += pair if rank < peer else pair[::-1]
    return order


class Transport:
    """Sends one buffer to every neighbour and receives theirs. Buffers are made on first use and kept.

    Each transport is a channel of its own: two optimizers, or two networks, never take each other's messages.
    """

    def __init__(self, node: Node, peers: Sequence[int]) -> None:
        self.node = node
        self.peers = sorted(peers)
        self.channel = node.open_channel() % CHANNELS
        self.bytes_sent = 0
        self._inboxes: dict[str, list[torch.Tensor]] = {}
        self._outboxes: dict[str, torch.Tensor] = {}

    def post(self, kind: str, step: int, buffer: torch.Tensor) -> Pending:
        """Start sending `buffer` to all neighbours; it must not change before `Pending.finish`."""
        staged = self._stage(kind, buffer)
        inbox = self._inboxes.get(kind)
        if inbox is None:
            inbox = self._inboxes[kind] = [self._empty_like(staged) for _ in self.peers]
        start = self._post_batch if self._uses_nccl(staged) else self._post_tagged
        receives, sends = start(KINDS.index(kind), step, staged, inbox)
        self.bytes_sent += len(self.peers) * staged.numel() * staged.element_size()
        pending = Pending(self, kind, step, inbox, receives, sends)
        self.node.under_way.add(pending)
        return pending

    def _uses_nccl(self, buffer: torch.Tensor) -> bool:
        return self.node.backend == "nccl" and buffer.is_cuda

    def _stage(self, kind: str, buffer: torch.Tensor) -> torch.Tensor:
        """gloo moves host memory only: CUDA buffers go through pinned copies."""
        if not buffer.is_cuda or self._uses_nccl(buffer):
            return buffer
        if kind not in self._outboxes:
            self._outboxes[kind] = self._empty_like(buffer)
        return self._outboxes[kind].copy_(buffer)

    def _empty_like(self, buffer: torch.Tensor) -> torch.Tensor:
        if self._uses_nccl(buffer) or self.node.device.type == "cpu":
            return torch.empty_like(buffer)
        return torch.empty_like(buffer, device="cpu", pin_memory=True)

    def _post_tagged(
        self, kind: int, step: int, buffer: torch.Tensor, inbox: list[torch.Tensor]
    ) -> tuple[list[dist.Work], list[dist.Work]]:
        # a tag per step, channel and kind: a stale or early message cannot be taken for this one
        tag = ((step % 2**21) * CHANNELS + self.channel) * len(KINDS) + kind
        group = self.node.control
        receives = [group.recv([theirs], peer, tag) for peer, theirs in zip(self.peers, inbox, strict=True)]
        sends = [group.send([buffer], peer, tag) for peer in self.peers]
        return receives, sends

    def _post_batch(
        self, kind: int, step: int, buffer: torch.Tensor, inbox: list[torch.Tensor]
    ) -> tuple[list[dist.Work], list[dist.Work]]:
        if not self.peers:
            return [], []
        group, theirs = self.node.data, dict(zip(self.peers, inbox, strict=True))
        batch = [
            dist.P2POp(dist.isend, buffer, peer, group)
            if way == "send"
            else dist.P2POp(dist.irecv, theirs[peer], peer, group)
            for way, peer in message_order(self.node.rank, self.peers)
        ]
        # nccl returns one handle for the whole batch, gloo one per operation: wait for all of it
        return dist.batch_isend_irecv(batch), []


class Pending:
    """One exchange under way."""

    def __init__(
        self,
        transport: Transport,
        kind: str,
        step: int,
        inbox: list[torch.Tensor],
        receives: list[dist.Work],
        sends: list[dist.Work],
    ) -> None:
        self._transport, self._kind, self._step, self._inbox = transport, kind, step, inbox
        self._receives, self._sends = receives, sends
        self._deadline = 0.0

    def collect(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(peer, buffer) in ascending order of peers, so that sums are the same in every run."""
        peers = self._transport.peers
        # patience counts from here: a neighbour may have been computing while its message was expected
        self._deadline = time.monotonic() + self._transport.node.timeout
        if len(self._receives) != len(peers):
            for work in self._receives:
                self._wait(work, None)
            self._receives = []
        for k, (peer, theirs) in enumerate(zip(peers, self._inbox, strict=True)):
            if self._receives:
                self._wait(self._receives[k], peer)
            yield peer, theirs
        self._receives = []
        self._settle()

    def finish(self) -> None:
        """Wait until the sent buffer may change again."""
        self._deadline = time.monotonic() + self._transport.node.timeout
        for peer, work in zip(self._transport.peers, self._sends, strict=False):
            self._wait(work, peer)
        self._sends = []
        self._settle()

    def complete(self) -> None:
        """Wait for both ways, whoever wants the result."""
        for _ in self.collect():
            pass
        self.finish()

    def _settle(self) -> None:
        if not self._receives and not self._sends:
            self._transport.node.under_way.discard(self)

    def _wait(self, work: dist.Work, peer: int | None) -> None:
        node = self._transport.node
        try:
            if node.backend == "nccl":
                work.wait()  # orders streams, returns at once; its own watchdog keeps the time
                return
            # at least a moment: once one neighbour was late, messages that did arrive must still be taken
            left = max(self._deadline - time.monotonic(), 0.5)
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            who = f"neighbour {peer}" if peer is not None else f"one of the neighbours {self._transport.peers}"
            what = absence(error, node.timeout)
            raise PeerError(f"node {node.rank}: {who} {what}; {self._kind} of iteration {self._step}") from error
