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
from dgt.exchange.inboxes import message_tag

if TYPE_CHECKING:
    from dgt.exchange.transport import Outbox

# gloo copies as much of a message as fits into the socket before it returns: large ones would keep the caller waiting
HAND_OVER_BYTES = 64 * 1024


def message_order(rank: int, peers: Sequence[int]) -> list[tuple[str, int]]:
    """The order of one nccl batch: per peer, ascending, the lower rank sends first; both ends meet in order."""
    order = []
    for peer in sorted(peers):
        pair = [("send", peer), ("receive", peer)]
        order += pair if rank < peer else pair[::-1]
    return order


class Pending:
    """One exchange under way."""

    __slots__ = (
        "__weakref__",
        "_batch",
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
        self._batch: list[dist.Work] = []
        self._collected = False

    def start(self, message: torch.Tensor) -> None:
        """Send it to those whose memory is not shared, and ask for theirs."""
        if not self._others:
            return
        if self._outbox.uses_nccl:
            self.start_batch(message)
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

    def start_batch(self, message: torch.Tensor) -> None:
        group = self._node.data
        theirs = {peer: self._inboxes.frame(position).raw for position, peer in enumerate(self._others)}
        if theirs:
            batch = [
                dist.P2POp(dist.isend, message, dist.get_global_rank(group, peer), group)
                if way == "send"
                else dist.P2POp(dist.irecv, theirs[peer], dist.get_global_rank(group, peer), group)
                for way, peer in message_order(self._node.rank, self._others)
            ]
            # nccl returns one handle for the whole batch, gloo one per operation: wait for all of it
            try:
                self._batch = dist.batch_isend_irecv(batch)
            except RuntimeError as error:
                raise self._absent(None, error) from error

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
        outbox = self._outbox
        # patience counts from here: a neighbour may have been computing while its message was expected
        deadline = time.monotonic() + self._node.timeout
        for work in self._batch:
            self._wait(work, None, deadline)
        self._batch = []
        for position, peer in enumerate(self._others if not self._collected else []):
            if not outbox.uses_nccl:
                self._wait(self._inboxes.take(position), peer, deadline)
            inbox = self._inboxes.frame(position)
            outbox.seal.check([(peer, inbox)], self._number, self._step)
            yield peer, inbox.payload
            if not outbox.holds_messages:
                self._free(position)
        self._collected = True
        self._settle()

    def _free(self, position: int) -> None:
        """The message at this position was read; another may come in."""
        inboxes = self._inboxes
        if not self._outbox.uses_nccl:
            try:
                inboxes.free(position, self._number, self._outbox.expects_next)
            except RuntimeError as error:
                raise self._absent(self._others[position + len(inboxes.frames)], error) from error

    def in_order(self) -> Iterator[list[tuple[int, torch.Tensor]]]:
        """(peer, buffer) of all neighbours, ascending, whichever way their messages come: sums are the same bit by bit
        wherever ranks are. Those that are there at once, in shared memory, come several at a time."""
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
        self._sends = []

    def receive_rest(self) -> None:
        """Take in what nobody wants any more, so that its sender need not wait."""
        for _ in self.messages():
            pass

    def _settle(self) -> None:
        if self._collected and not self._sends:
            self._node.under_way.discard(self)

    def _wait(self, work: dist.Work | _Handed, peer: int | None, deadline: float) -> None:
        since = time.monotonic()
        try:
            if self._outbox.uses_nccl:
                work.wait()  # orders streams, returns at once; its own watchdog keeps the time
                return
            # at least a moment: once one neighbour was late, messages that did arrive must still be taken
            work.wait(timedelta(seconds=max(deadline - since, 0.5)))
        except (RuntimeError, TimeoutError, FutureTimeoutError) as error:
            raise self._absent(peer, error) from error
        finally:
            self._outbox.transport.wait_seconds += time.monotonic() - since

    def _absent(self, peer: int | None, error: Exception) -> PeerError | TrainingError:
        return self._outbox.absent(self._peers if peer is None else [peer], error, self._step)


class _Handed:
    """A message that another thread is sending."""

    def __init__(self, sending: Future[dist.Work]) -> None:
        self._sending = sending

    def wait(self, timeout: timedelta = timedelta(0)) -> None:
        self._sending.result(timeout.total_seconds()).wait(timeout)
