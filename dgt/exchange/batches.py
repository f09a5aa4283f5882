"""One exchange over nccl: symmetric batches in an order that all ranks share, and waiting for them with a name at hand.

nccl has no tags: between two ranks the n-th send of one meets the n-th receive of the other, whatever they are for. So
all ranks post in the same order, which depends on nothing but the step, and each of them at once what belongs together:

    all neighbours    in one batch; more than `MOST_PEERS` in several, numbered alike by both ends of an edge
    one at a time     where neighbours share inboxes: ascending, so that edges are served in the order of (lower, higher
                      rank) everywhere, and nobody waits in a circle
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dgt.exchange.inboxes import Inboxes
from dgt.processes import peer_status
from dgt.processes.patience import asked_until, find_lost

if TYPE_CHECKING:
    from dgt.exchange.transport import Outbox

GRACE_SECONDS = 4.0  # for a neighbour that waits itself to say whom it misses, and to end
MOST_PEERS = 128  # of a batch: more than 256 operations were reported to hang


def message_order(rank: int, peers: Sequence[int]) -> list[tuple[str, int]]:
    """The order of one batch: per peer, ascending, the lower rank sends first; both ends meet in order."""
    order = []
    for peer in sorted(peers):
        pair = [("send", peer), ("receive", peer)]
        order += pair if rank < peer else pair[::-1]
    return order


def rounds(rank: int, peers: Sequence[int], size: int) -> list[list[int]]:
    """The peers of each batch: the round of an edge is the same at both ends, and no rank has too many in one."""
    found: dict[int, list[int]] = {}
    for peer in peers:
        found.setdefault((rank + peer) % size // MOST_PEERS, []).append(peer)
    return [found[number] for number in sorted(found)]


class Batches:
    """One message to these peers and theirs, ascending."""

    def __init__(self, outbox: Outbox, inboxes: Inboxes, peers: Sequence[int], message: torch.Tensor) -> None:
        self._outbox, self._node, self._inboxes = outbox, outbox.node, inboxes
        self._peers, self._message, self._probed = peers, message, False
        self._positions = {peer: position for position, peer in enumerate(peers)}
        self._works: list[tuple[list[dist.Work], Sequence[int]]] = []
        if outbox.takes_turns:
            for peer in peers[: len(inboxes.frames)]:
                self._post([peer])
        else:
            for together in rounds(self._node.rank, peers, self._node.size):
                self._post(together)

    def _post(self, peers: Sequence[int]) -> None:
        group = self._node.data
        operations = [
            dist.P2POp(dist.isend, self._message, group=group, group_peer=peer)
            if way == "send"
            else dist.P2POp(dist.irecv, self._inboxes.frame(self._positions[peer]).raw, group=group, group_peer=peer)
            for way, peer in message_order(self._node.rank, peers)
        ]
        self._works.append((dist.batch_isend_irecv(operations), peers))

    def arrive(self, number: int, step: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(peer, message) of all of them; where they share inboxes a message holds until the next is asked for."""
        turns = len(self._inboxes.frames)
        if not self._outbox.takes_turns:
            for works, together in self._works:
                self._wait(works, together, step)
            self._outbox.check(self._peers, 0, number, step)
        for position, peer in enumerate(self._peers):
            if self._outbox.takes_turns:
                self._wait(*self._works[position], step)
                self._outbox.check([peer], position, number, step)
            yield peer, self._inboxes.frame(position).payload
            if self._outbox.takes_turns and position + turns < len(self._peers):
                self._post([self._peers[position + turns]])
        self._works = []

    def ask(self, step: int) -> None:
        """Until all batches that are posted are through; the host asks, since a GPU cannot be interrupted."""
        for works, peers in self._works:
            self._ask(works, peers, step)

    def _wait(self, works: Sequence[dist.Work], peers: Sequence[int], step: int) -> None:
        """Until these are through; the stream waits for them too, which is how long it stood still."""
        evidence = self._outbox.transport.evidence
        since = evidence.mark() if evidence is not None else None
        self._ask(works, peers, step)
        try:
            for work in works:
                work.wait()  # orders the stream, and raises what has failed
        except RuntimeError as error:
            raise self._outbox.absent(peers, error, step) from error
        if evidence is not None and since is not None:
            evidence.note_wait(since, self._outbox.transport)

    def _ask(self, works: Sequence[dist.Work], peers: Sequence[int], step: int) -> None:
        if self._node.backend != "nccl":  # gloo's handles know nothing until they are waited for
            return
        deadline = time.monotonic() + self._node.timeout
        try:
            for work in works:
                if not asked_until(work.is_completed, deadline, lambda: self._look_after(peers, step)):
                    self._refuse_silent(peers, step, work)
        finally:
            if self._probed:
                peer_status.publish_waiting(self._node.store, self._node.generation, self._node.name, False)
                self._probed = False

    def _look_after(self, peers: Sequence[int], step: int) -> None:
        """Once a second: say that this rank waits, and look whether one of these has left or is gone."""
        node = self._node
        if not self._probed:
            peer_status.publish_waiting(node.store, node.generation, node.name, True)
            self._probed = True
        for peer in peers:
            if node.steps_at_leaving(node.members[peer]) is not None:
                raise self._outbox.absent([peer], TimeoutError(), step)
        lost = find_lost(node, peers)
        if lost is not None:
            raise self._outbox.absent([lost[0]], lost[1], step) from lost[1]

    def _refuse_silent(self, peers: Sequence[int], step: int, work: dist.Work) -> None:
        """Those of them that do not wait themselves are late, or dead; if all do, they know better who is."""
        node = self._node
        names = [node.members[peer] for peer in peers]
        waiting = peer_status.find_waiting(node.store, node.generation, names)
        silent = [peer for peer, name in zip(peers, names, strict=True) if name not in waiting]
        until = time.monotonic() + GRACE_SECONDS
        if not silent and asked_until(work.is_completed, until, lambda: self._look_after(peers, step)):
            return
        raise self._outbox.absent(silent or peers, TimeoutError(), step)
