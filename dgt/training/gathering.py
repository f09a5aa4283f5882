"""Meetings of all ranks that no loss has caused: a node waits to be taken in, or one is to leave on purpose.

    gathering.ask()                  every step: a rank that knows of such a node asks for a meeting
    gathering.is_now(iteration)      all ranks, at the step that they have all heard of: do they meet?

The step travels with the messages, as that of a checkpoint does (`notices.save_at`): there one sum over all ranks says
what they were asked for.
"""

from __future__ import annotations

import logging
import time

import networkx as nx
import torch

from dgt.network.members import among
from dgt.network.schedules import union_of
from dgt.processes import output
from dgt.processes.node import Node
from dgt.processes.notices import NEVER
from dgt.training.session import Session

LOOK_SECONDS = 0.1  # between two looks of rank 0 at who waits
log = logging.getLogger(__name__)


class Gathering:
    """The meetings of a run that may lose nodes, as one rank sees them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looked, self._refused = 0.0, False
        self.meets = False
        """The loop has ended for a meeting."""
        self.leaving: list[int] = []
        """Nodes that leave there."""

    @property
    def _node(self) -> Node:
        return self._session.node

    def ask(self) -> None:
        """Have all ranks meet, if this one knows a reason."""
        notices = self._node.notices
        if notices.save_at == NEVER and not notices.save_asked and (self._wants_to_leave or self._somebody_waits()):
            notices.save_asked = True

    @property
    def _wants_to_leave(self) -> bool:
        return self._node.notices.leave_asked and not self._refused

    def _somebody_waits(self) -> bool:
        """Rank 0 looks now and then."""
        node, now = self._node, time.monotonic()
        if not node.is_main or node.size == node.nodes or now < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        return bool(node.who_asks_to_join())

    def is_now(self, iteration: int) -> bool:
        """Whether the ranks meet before this step; all of them call it, and find the same."""
        node = self._node
        if iteration < node.notices.save_at:
            return False
        asked = torch.zeros(node.size + 1, dtype=torch.int64)
        asked[node.rank] = self._wants_to_leave
        asked[-1] = node.is_main and bool(node.who_asks_to_join())
        with node.during("the question who comes and who leaves"):
            *leaving, coming = node.all_reduce(asked).tolist()
        self.leaving = self._who_can_leave([node.members[rank] for rank, leaves in enumerate(leaving) if leaves])
        self.meets = bool(coming or self.leaving)
        if not self.meets and not self._session.config.checkpoint.keep_last:
            node.notices.save_at = NEVER  # else what is saved then does it
        return self.meets

    def _who_can_leave(self, asked: list[int]) -> list[int]:
        """All of them or none: those who stay must be connected."""
        node, whole = self._node, self._session.whole
        staying = [name for name in node.members if name not in asked]
        if not asked or not staying or nx.is_connected(union_of(among(*whole, staying)[0])):
            return asked
        if node.name in asked:
            self._refused, words = True, "without it the network would fall apart"
            log.error("node %d stays: %s", node.name, words, extra=output.EVERY_RANK)
        return []

    def over(self) -> None:
        """The ranks have met."""
        self.meets, self.leaving = False, []
