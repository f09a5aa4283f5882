"""Shared memory between partners that change: boards as of `shared.py`, with an acknowledgement in place of the bell.

On a fixed graph two buffers are enough, because i reads j's step t+1 before it overwrites its own of step t, and j has
read that one by then. With changing partners i meets k next, and learns nothing of j: j may be delayed by others for as
long as a notice takes to get around, and i would overwrite what j is still to read. So every rank has two words on its
board that it alone writes, and others sleep on (futex):

    PUBLISHED   messages of this stream that it has published
    READ        exchanges of this stream whose messages it has read, all of them

All ranks number the exchanges of a stream alike, those in which they idle too. Before i writes message t, into the
buffer of t-2, it waits until READ > t-2 on the boards of those who were sent that one. READ counts exchanges, not
messages of i, so one word serves all writers; it has one writer, so no update is lost, and a sleeper that saw the old
value is woken by the one that changes it.

No deadlock: all ranks post and read in the same order, and whatever one waits for before exchange t is something that
another does in exchange t or before, which by induction it comes to. Between the two waits there is a whole exchange,
so that in practice nobody sleeps for an acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from dgt.exchange import fences
from dgt.exchange.shared import PUBLISHED, SIGNATURES, Board, OwnBoard

READ = SIGNATURES  # nobody signs on these boards


class Acknowledged:
    """This rank's board and those of its neighbours in shared memory, for one stream."""

    def __init__(self, own: OwnBoard, boards: dict[int, Board]) -> None:
        self._own, self._boards = own, boards
        self._readers: dict[int, list[int]] = {}

    def claim(self, number: int, timeout: float) -> tuple[int, str] | None:
        """Wait until the buffer of message `number` may be written; returns who has not read it, and why, or None."""
        readers = self._readers.pop(number - 2, [])
        return self._wait(readers, READ, number - 2, timeout)

    def publish(self, number: int, readers: Iterable[int]) -> None:
        """The buffer of this message is complete, for these ranks."""
        self._readers[number] = list(readers)
        self._readers.pop(number - 2, None)  # claimed, or of a rank that never writes
        if fences.NEEDED:
            fences.fence()  # the message is there before the word that says so
        self._own.set_count(PUBLISHED, number + 1)

    def wait(self, number: int, peers: Iterable[int], timeout: float) -> tuple[int, str] | None:
        """Sleep until these have published message `number`; returns who did not, and why, or None."""
        return self._wait(peers, PUBLISHED, number, timeout)

    def have_read(self, number: int) -> None:
        """This rank has read all it wanted of exchange `number`; the buffers may change."""
        if fences.NEEDED:
            fences.fence()  # what was read, before the word that lets it be overwritten
        self._own.set_count(READ, number + 1)

    def _wait(self, peers: Iterable[int], place: int, number: int, timeout: float) -> tuple[int, str] | None:
        since = time.monotonic()
        for peer in peers:
            board = self._boards[peer]
            while (count := board.count(place)) <= number:
                if board.sleep(place, count):
                    words = board.trouble(place, number, time.monotonic() > since + timeout)
                    if words:
                        return peer, words
        if fences.NEEDED:
            fences.fence()  # nothing is read or written before the words were seen
        return None
