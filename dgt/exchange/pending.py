"""One exchange under way: a message posted to neighbours, and theirs on their way here.

pending = outbox.post(step)                       # `transport.Outbox` makes it
for peer, theirs in pending.collect(): ...        # as the neighbours' messages arrive
pending.finish()                                  # from here on the buffer that was sent may change
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # before Python 3.11 an exception of its own
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dgt.errors import PeerError, TrainingError
from dgt.exchange.batches import Batches, message_order
from dgt.exchange.inboxes import message_tag

if TYPE_CHECKING:
    from dgt.exchange.transport import Outbox

__all__ = ["HAND_OVER_BYTES", "Pending", "message_order"]

# gloo copies as much of a message as fits into the socket before it returns: large ones would keep the caller waiting
HAND_OVER_BYTES = 64 * 1024


class Pending:
    """One exchange under way."""

    __slots__ = (
        "__weakref__",
        "_batches",
        "_collected",
        "_inboxes",
        "_node",
        "_number",
        "_others",
        "_outbox",
        "_peers",
        "_sends",
        "_step",
        "_tag",
    )

    def __init__(self, outbox: Outbox, number: int, step: int, peers: Sequence[int], others: Sequence[int]) -> None:
        """peers are all who take part, ascending, and others those of them whose memory is not shared."""
        self._outbox, self._number, self._step, self._node = outbox, number, step, outbox.node
        self._peers, self._others = peers, others
        self._inboxes = outbox.inboxes_of(others)
        self._sends: list[dist.Work | _Handed] = []
        self._batches: Batches | None = None
        self._collected = False

    def start(self, message: torch.Tensor) -> None:
        """Send it to those whose memory is not shared, and ask for theirs."""
        if not self._others:
            return
        if self._outbox.uses_nccl:
            self._batches = Batches(self._outbox, self._inboxes, self._others, message)
        else:
            self.start_tagged(message)
        self._node.under_way.add(self)

    def start_tagged(self, message: torch.Tensor) -> None:
        outbox = self._outbox
        self._tag = message_tag(self._number, outbox.channel)
        for position, peer in enumerate(self._others[: len(self._inboxes.frames)]):
            try:
                self._inboxes.expect(position, self._number)
            except RuntimeError as error:  # as when sending
                raise self._absent(peer, error) from error
        self._sends = [self._send(message, peer) for peer in self._others]

    def _send(self, message: torch.Tensor, peer: int) -> dist.Work | _Handed:
        group, tag = self._node.control, self._tag
        if message.numel() * message.element_size() >= HAND_OVER_BYTES:
            return _Handed(self._node.sender.submit(group.send, [message], peer, tag))
        try:
            return group.send([message], peer, tag)
        except RuntimeError as error:  # gloo raises here, too, once the neighbour has closed its connection
            raise self._absent(peer, error) from error

    def ask(self) -> None:
        """Wait until what nccl was given is through, without using it."""
        if self._batches is not None:
            self._batches.ask(self._step)

    def shared(self) -> list[tuple[int, torch.Tensor]]:
        """(peer, buffer) of all neighbours in shared memory, once all have published; read it before the next post."""
        outbox = self._outbox
        if outbox.board is None:
            return []
        since = time.monotonic()
        trouble = outbox.board.wait(self._number, self._node.timeout)
        if trouble:
            raise self._absent(trouble[0], RuntimeError(trouble[1]))
        outbox.transport.wait_seconds += time.monotonic() - since
        turn = self._number % 2
        outbox.seal.check(outbox.near[turn], self._number, self._step)
        return [(peer, board.buffers[turn]) for peer, board in outbox.boards.items()]

    def messages(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(peer, buffer) of all other neighbours, ascending; the buffer holds until the next one is asked for."""
        # patience counts from here: a neighbour may have been computing while its message was expected
        deadline = time.monotonic() + self._node.timeout
        if self._batches is not None:
            yield from self._batches.arrive(self._number, self._step)
            self._batches = None
        by_tag = not (self._collected or self._outbox.uses_nccl)
        for position, peer in enumerate(self._others if by_tag else []):
            yield peer, self._arrived(position, deadline)
            if not self._outbox.holds_messages:
                self._free(position)
        self._collected = True
        self._settle()

    def _arrived(self, position: int, deadline: float) -> torch.Tensor:
        """The message of the neighbour at this position, once it is there."""
        peer, outbox = self._others[position], self._outbox
        self._wait(self._inboxes.take(position), peer, deadline)
        outbox.check([peer], position, self._number, self._step)
        return self._inboxes.frame(position).payload

    def _free(self, position: int) -> None:
        """The message at this position was read; another may come in."""
        inboxes = self._inboxes
        try:
            inboxes.free(position, self._number, self._outbox.expects_next)
        except RuntimeError as error:
            raise self._absent(self._others[position + len(inboxes.frames)], error) from error

    def in_order(self) -> Iterator[list[tuple[int, torch.Tensor]]]:
        """(peer, buffer) of all neighbours, ascending, whichever way their messages come: sums are the same bit by bit
        wherever ranks are. Those that can be read side by side come together, so that a sum is written once."""
        if self._outbox.keeps_all(self._inboxes):
            yield from self._all_together()
            return
        near, far = dict(self.shared()), self.messages()
        run: list[tuple[int, torch.Tensor]] = []
        for peer in self._peers:
            if peer in near:
                run.append((peer, near[peer]))
                continue
            if run:
                yield run
            run = []
            yield [next(far)]
        if run:
            yield run
        for _ in far:  # it has an end to come to
            raise AssertionError("more messages than neighbours")

    def _all_together(self) -> Iterator[list[tuple[int, torch.Tensor]]]:
        """One run of all neighbours; the receives of their next messages are posted after it."""
        deadline = time.monotonic() + self._node.timeout
        found = dict(self.shared())
        found |= {peer: self._arrived(position, deadline) for position, peer in enumerate(self._others)}
        if found:
            yield [(peer, found[peer]) for peer in self._peers]
        for position in range(len(self._others) if not self._outbox.holds_messages else 0):
            self._free(position)
        self._collected = True
        self._settle()

    def collect(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(peer, buffer) of all neighbours, ascending."""
        for run in self.in_order():
            yield from run

    def finish(self) -> None:
        """Wait until the sent buffer may change again."""
        deadline = time.monotonic() + self._node.timeout
        for peer, work in zip(self._others, self._sends, strict=False):
            self._wait(work, peer, deadline)
        self._sends = []
        self._settle()

    def complete(self) -> None:
        """Wait for both ways, whoever wants the result."""
        if self._others:
            self.receive_rest()
            self.finish()

    def abandon(self) -> None:
        """Connections are closed next: give up what is still to be sent."""
        self._sends, self._batches = [], None

    def receive_rest(self) -> None:
        """Take in what nobody wants any more, so that its sender need not wait."""
        for _ in self.messages():
            pass

    def _settle(self) -> None:
        if self._collected and not self._sends:
            self._node.under_way.discard(self)

    def _wait(self, work: dist.Work | _Handed, peer: int, deadline: float) -> None:
        since = time.monotonic()
        try:
            # at least a moment: once one neighbour was late, messages that did arrive must still be taken
            work.wait(timedelta(seconds=max(deadline - since, 0.5)))
        except (RuntimeError, TimeoutError, FutureTimeoutError) as error:
            raise self._absent(peer, error) from error
        finally:
            self._outbox.transport.wait_seconds += time.monotonic() - since

    def _absent(self, peer: int, error: Exception) -> PeerError | TrainingError:
        return self._outbox.absent([peer], error, self._step)


class _Handed:
    """A message that another thread is sending."""

    def __init__(self, sending: Future[dist.Work]) -> None:
        self._sending = sending

    def wait(self, timeout: timedelta = timedelta(0)) -> None:
        self._sending.result(timeout.total_seconds()).wait(timeout)
