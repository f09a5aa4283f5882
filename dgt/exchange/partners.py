"""Messages on a schedule: every exchange has partners of its own, over connections that are opened once.

    transport = ScheduledTransport(node, neighbours, partners)     # neighbours: all that this node ever has
    outbox = transport.outbox("parameters", like)
    outbox.claim(step)                            # before it is written: nobody reads what the buffer held any more
    pending = outbox.post(step, turn)             # to the partners of exchange `turn` of the schedule, if there are any

Messages are numbered as on a fixed graph, by all ranks alike: an exchange in which a rank idles has a number too.
Between two ranks numbers are therefore the same at both ends, whatever they exchanged with others meanwhile, and so are
tags.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgt.exchange import shared
from dgt.exchange.acknowledged import Acknowledged
from dgt.exchange.inboxes import Inboxes, message_tag
from dgt.exchange.pending import Pending
from dgt.exchange.transport import Outbox, Transport
from dgt.processes.node import Node


@dataclass(frozen=True, slots=True)
class Partners:
    """Whom this node exchanges with, exchange by exchange until it repeats."""

    of_exchange: list[list[int]]

    def at(self, turn: int) -> list[int]:
        """Ascending."""
        return self.of_exchange[turn % len(self.of_exchange)]

    @property
    def most(self) -> int:
        """Partners at a time."""
        return max(map(len, self.of_exchange))

    def next_with(self, peer: int, turn: int) -> int:
        """The first exchange from `turn` on with this peer."""
        period = len(self.of_exchange)
        return next(later for later in range(turn, turn + period) if peer in self.of_exchange[later % period])


class ScheduledTransport(Transport):
    """This node's way to all neighbours it ever has."""

    def __init__(
        self,
        node: Node,
        peers: Sequence[int],
        partners: Partners,
        way: str = "auto",
        crc: bool = False,
        most_neighbours: int = 0,
    ) -> None:
        """most_neighbours: partners at a time that a rank of the network has."""
        super().__init__(node, peers, way, crc, most_neighbours)
        self._partners = partners

    def make_outbox(
        self,
        kind: str,
        channel: int,
        like: torch.Tensor,
        board: shared.OwnBoard | None,
        boards: dict[int, shared.Board],
        inboxes: int,
        memory: torch.Tensor | None = None,
    ) -> ScheduledOutbox:
        return ScheduledOutbox(self, self._partners, kind, channel, like, board, boards, inboxes, memory=memory)

    def exchange_at(self, turn: int, kind: str, step: int, message: torch.Tensor) -> dict[int, torch.Tensor]:
        """As `exchange`, with the partners of exchange `turn` of the schedule only."""
        outbox = ScheduledOutbox(
            self, self._partners, kind, self._channel, message, None, {}, self._partners.most, first=self._exchanges
        )
        return self.exchanged(outbox, message, lambda: outbox.post(step, turn))


class ScheduledOutbox(Outbox):
    """Messages of one kind, each to the partners of its exchange."""

    def __init__(
        self,
        transport: Transport,
        partners: Partners,
        kind: str,
        channel: int,
        like: torch.Tensor,
        board: shared.OwnBoard | None,
        boards: dict[int, shared.Board],
        inboxes: int,
        first: int = 0,
        memory: torch.Tensor | None = None,
    ) -> None:
        self._partners, self._ahead = partners, 0
        super().__init__(transport, kind, channel, like, board, boards, min(inboxes, partners.most), first, memory)
        self.expects_next = False  # what comes next is another partner's
        self.near_frames = [{peer: theirs.frames[turn] for peer, theirs in boards.items()} for turn in (0, 1)]
        self.acknowledged = Acknowledged(board, boards) if board is not None else None
        self._message_bytes = like.numel() * like.element_size()

    def claim(self, step: int) -> None:
        """Wait until `buffer` may be written: it holds a message that partners of that time may still read."""
        if self.acknowledged is not None:
            trouble = self.acknowledged.claim(self._posted, self.node.timeout)
            if trouble:
                raise self.absent([trouble[0]], RuntimeError(trouble[1]), step)

    def inboxes_of(self, others: Sequence[int]) -> Inboxes:
        """The same memory for the partners of every exchange."""
        return Inboxes(self.node, others, self.channel, self.inboxes.frames)

    def post(self, step: int, turn: int = 0) -> ScheduledPending:
        """Start sending to the partners of exchange `turn` of the schedule."""
        number, peers, raw = self._posted, self._partners.at(turn), self.sealed(step)
        pending = ScheduledPending(self, number, step, peers)
        if self.acknowledged is not None:
            self.acknowledged.publish(number, pending.near)
        pending.start(raw)
        self._expect_after(number, turn, peers)
        self.transport.bytes_sent += len(peers) * self._message_bytes
        return pending

    def _expected_next(self, number: int) -> None:
        """Before the first message: as in a run that begins at exchange 0."""
        self._expect(self.others, number, number)

    def _expect_after(self, number: int, turn: int, peers: Sequence[int]) -> None:
        """A neighbour waits next for the message of the exchange in which it is this node's partner again."""
        moved, self._ahead = self._ahead != turn - number, turn - number  # the run was resumed at another exchange
        self._expect(self.others if moved else peers, number + 1, turn + 1)

    def _expect(self, peers: Sequence[int], number: int, turn: int) -> None:
        if self.uses_nccl:
            return
        self.node.expected_next.pop(self.channel, None)
        for peer in peers:
            if peer not in self.boards:
                later = number + self._partners.next_with(peer, turn) - turn
                self.node.expected_next[self.channel, peer] = (message_tag(later, self.channel), [peer])


class ScheduledPending(Pending):
    """One exchange with its partners under way."""

    __slots__ = ("near",)
    _outbox: ScheduledOutbox

    def __init__(self, outbox: ScheduledOutbox, number: int, step: int, peers: Sequence[int]) -> None:
        boards = outbox.boards
        super().__init__(outbox, number, step, peers, [peer for peer in peers if peer not in boards])
        self.near = [peer for peer in peers if peer in boards]

    def shared(self) -> list[tuple[int, torch.Tensor]]:
        outbox, number = self._outbox, self._number
        if outbox.acknowledged is None or not self.near:
            return []
        since = time.monotonic()
        trouble = outbox.acknowledged.wait(number, self.near, self._node.timeout)
        if trouble:
            raise self._absent(trouble[0], RuntimeError(trouble[1]))
        outbox.transport.wait_seconds += time.monotonic() - since
        frames = outbox.near_frames[number % 2]
        outbox.seal.check([(peer, frames[peer]) for peer in self.near], number, self._step)
        return [(peer, frames[peer].payload) for peer in self.near]

    def finish(self) -> None:
        """Also tell those who wrote that their messages have been read; an idle rank has none to read."""
        super().finish()
        if self._outbox.acknowledged is not None:
            self._outbox.acknowledged.have_read(self._number)
