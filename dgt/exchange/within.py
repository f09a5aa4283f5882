"""Between the ranks of one node: the sum of their gradients, of which each gets its row, and the rows of all of them.

    rows = within.rows()                 # write the gradients of this rank here, [ranks, numbers]
    within.reduce_scatter(out)           # out = the sum over the ranks of their row number `rank`
    within.all_gather(rows, own)         # rows[j] = what rank j has for `own`

By memory that the ranks share, where every one writes once and the others read in place, else by the process group.
"""

from __future__ import annotations

from typing import Protocol

import torch

from dgt.exchange.transport import Outbox, Transport
from dgt.processes.local import Local


class Within(Protocol):
    """One way or the other; all ranks of the node call everything, in the same order."""

    def rows(self) -> torch.Tensor:
        """Where the next gradients are written."""

    def reduce_scatter(self, out: torch.Tensor) -> None:
        """Of what was written there."""

    def all_gather(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        """`own` may be its row itself."""


def within_node(local: Local, like: torch.Tensor, own: torch.Tensor, way: str) -> Within:
    """The quickest way there is, the same for all ranks of the node.

    like, own  gradients [ranks, numbers], and a share
    way        auto or messages, as of `Network`
    """
    if like.device.type == "cpu" and way == "auto":
        by_memory = ByMemory(local, like, own)
        if not local.any(not by_memory.reaches_all):
            return by_memory
    return ByGroup(local, like)


class ByGroup:
    """Collective operations of the process group."""

    def __init__(self, local: Local, like: torch.Tensor) -> None:
        self._local = local
        self._rows = torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    def rows(self) -> torch.Tensor:
        return self._rows

    def reduce_scatter(self, out: torch.Tensor) -> None:
        self._local.reduce_scatter(out, self._rows)

    def all_gather(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        self._local.all_gather_into(rows, own)


class ByMemory:
    """Boards of shared memory, as between neighbours: the ranks of a node are all neighbours of each other."""

    def __init__(self, local: Local, like: torch.Tensor, own: torch.Tensor) -> None:
        assert local.ranks is not None
        self._local, self._steps = local, 0
        transport = Transport(local.ranks, [rank for rank in range(local.size) if rank != local.rank])
        self._gradients = transport.outbox("gradients", like)
        self._shares = transport.outbox("shares", own)

    @property
    def reaches_all(self) -> bool:
        """Whether all ranks of the node share memory with this one."""
        return not self._gradients.others and not self._shares.others

    def rows(self) -> torch.Tensor:
        return self._gradients.buffer

    def reduce_scatter(self, out: torch.Tensor) -> None:
        own = self._gradients.buffer
        every = {self._local.rank: own} | self._exchanged(self._gradients)
        first, second, *others = (every[rank][self._local.rank] for rank in range(self._local.size))
        torch.add(first, second, out=out)
        for row in others:
            out.add_(row)

    def all_gather(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        self._shares.buffer.copy_(own)
        for rank, theirs in self._exchanged(self._shares).items():
            rows[rank].copy_(theirs)
        rows[self._local.rank].copy_(own)

    def _exchanged(self, outbox: Outbox) -> dict[int, torch.Tensor]:
        """What the others have written; it holds until this rank posts again."""
        self._steps += 1
        return dict(outbox.post(self._steps).shared())
