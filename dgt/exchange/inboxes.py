"""Where neighbours' messages come in over gloo: the memory for them, and the receives that are posted early.

    inboxes = Inboxes(node, peers, channel, frames)      # as many frames as memory allows, at best one per neighbour
    inboxes.expect(position, number)                     # post the receive of this message, unless that is done
    inboxes.take(position)                               # its handle, to wait for; then read inboxes.frame(position)
    inboxes.free(position, number)                       # it was read: the receive of what comes there next is posted

gloo sends a message only when its receiver has asked for it. A receive that is posted before the neighbour sends spares
the question a way of its own, so the receive of the next message is posted as soon as the last one was read.

At the end a receive is left for a message that never comes. Its handle keeps gloo's connections open, so a node
that leaves, or closes its connections after an error, calls `withdraw`. An optimizer that is deleted takes its receives
along: gloo finds them gone and writes nothing, and nobody sends what they waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dgt.errors import PeerError
from dgt.exchange.frames import Frame
from dgt.processes.node import Node

CHANNELS = 2**14
MOST_BYTES = 2**30
"""All inboxes of one optimizer together: beyond it neighbours share inboxes, and wait for each other."""


TURNS = 2
"""Inboxes on a GPU where neighbours share them: the next one's message arrives while one is added up."""
ALIGNMENT = 256  # bytes, of what kernels read fastest


def padded(frame_bytes: int) -> int:
    """Bytes from one inbox on a GPU to the next."""
    return -(-frame_bytes // ALIGNMENT) * ALIGNMENT


def message_tag(number: int, channel: int) -> int:
    """A tag per message and channel: a stale or early message cannot be taken for this one."""
    return (number % 2**16) * CHANNELS + channel


def how_many(peers: int, least: int, frame_bytes: int, room: int) -> int:
    """One inbox per neighbour while there is room for so many bytes, but never fewer than `least`."""
    return min(peers, max(least, room // frame_bytes))


class Inboxes:
    """The inboxes of one outbox's neighbours; neighbours whose positions differ by `len(frames)` share one."""

    def __init__(self, node: Node, peers: Sequence[int], channel: int, frames: list[Frame]) -> None:
        self._node, self._peers, self._channel, self.frames = node, peers, channel, frames
        self._works: list[dist.Work | None] = [None] * len(peers)
        self._expected: list[int | None] = [None] * len(peers)
        node.receivers.add(self)

    def frame(self, position: int) -> Frame:
        """Where the message of the neighbour at this position comes in."""
        return self.frames[position % len(self.frames)]

    @property
    def has_room_for_all(self) -> bool:
        """Whether every neighbour has an inbox of its own."""
        return len(self.frames) >= len(self._peers)

    def payloads(self) -> list[torch.Tensor]:
        """All neighbours' messages, where each has an inbox of its own."""
        assert self.has_room_for_all
        return [frame.payload for frame in self.frames]

    def expect(self, position: int, number: int) -> None:
        """Post a receive, unless it was posted early; RuntimeError if the neighbour has closed its connection."""
        if self._expected[position] != number:
            peer, tag = self._peers[position], message_tag(number, self._channel)
            self._works[position] = self._node.control.recv([self.frame(position).raw], peer, tag)
            self._expected[position] = number

    def take(self, position: int) -> dist.Work:
        """The handle of a posted receive, once: a second wait on one of gloo's never ends."""
        work, self._works[position] = self._works[position], None
        if work is None:
            peer = self._node.members[self._peers[position]]
            raise PeerError(f"{self._node.title}: connections were closed before neighbour {peer}'s message came")
        return work

    def free(self, position: int, number: int, early: bool = True) -> None:
        """The message of this number was read: its inbox is for the next neighbour, or `early` for the next message."""
        if position + len(self.frames) < len(self._peers):
            self.expect(position + len(self.frames), number)
        elif early:
            # a neighbour that has gone is an error only if its next message is wanted: `expect` raises again then
            with contextlib.suppress(RuntimeError):
                self.expect(position % len(self.frames), number + 1)

    def withdraw(self) -> None:
        """Give up receives whose messages never come; the connections are closed next."""
        self._works = [None] * len(self._peers)
        self._expected = [None] * len(self._peers)
