"""Meetings of all ranks that no loss has caused: a node waits to be taken in, or one is to leave on purpose.

    gathering.ask()                  every step: a rank that knows of such a node asks for a meeting
    gathering.is_now(iteration)      all ranks, at the step that they have all heard of: do they meet?

The step travels with the messages, as that of a checkpoint does (`notices.save_at`): there one sum over all ranks says
what they were asked for.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import networkx as nx
import torch

from dgt.network.members import among
from dgt.network.schedules import union_of
from dgt.processes import output
from dgt.processes.node import Node
from dgt.processes.notices import NEVER
from dgt.runs import requests
from dgt.training.session import Session

LOOK_SECONDS = 0.2  # between two looks of rank 0 at who waits, and what is asked for
log = logging.getLogger(__name__)


class Gathering:
    """The meetings of a run that may lose nodes, as one rank sees them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._run_dir = Path(str(session.config.run_dir))
        self._looked, self._refused = 0.0, False
        self._started: set[int] = set()  # by the launcher, on request
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
        if notices.save_at != NEVER or notices.save_asked:
            return
        if self._wants_to_leave or (
            self._is_time_to_look() and (self._is_asked_for() or self._node.who_asks_to_join())
        ):
            notices.save_asked = True

    @property
    def _wants_to_leave(self) -> bool:
        return self._node.notices.leave_asked and not self._refused

    def _is_time_to_look(self) -> bool:
        """Now and then, on rank 0."""
        now = time.monotonic()
        if not self._node.is_main or now < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _is_asked_for(self) -> bool:
        """Whether `dgt leave` has asked for a node that is there; processes that `dgt join` asks for are started."""
        node = self._node
        for name in requests.asked(self._run_dir, requests.JOIN):
            trouble = self._start(name)
            if trouble:
                requests.refuse(self._run_dir, requests.JOIN, name, trouble)
        return bool(self._leaving_on_request()) and node.size > 1

    def _leaving_on_request(self) -> list[int]:
        asked = requests.asked(self._run_dir, requests.LEAVE)
        for name in set(asked) - set(self._node.members):
            requests.refuse(self._run_dir, requests.LEAVE, name, f"node {name} is not there")
        return [name for name in asked if name in self._node.members]

    def _start(self, name: int) -> str:
        """Have the launcher start a process for this node; why not, in words."""
        node = self._node
        if name in node.members:
            return f"node {name} is there already"
        if name >= node.nodes:
            return f"node {name}: the network has the nodes 0 to {node.nodes - 1}"
        if node.launcher_notes is None:
            return f"node {name}: only dgt train on one host starts a process while the others train"
        if name not in self._started:
            self._started.add(name)
            node.ask_launcher_to_start(name)
        return ""

    def is_now(self, iteration: int) -> bool:
        """Whether the ranks meet before this step; all of them call it, and find the same."""
        node = self._node
        if iteration < node.notices.save_at:
            return False
        asked = torch.zeros(node.size + 1, dtype=torch.int64)
        asked[node.rank] = self._wants_to_leave
        for name in self._leaving_on_request() if node.is_main else ():
            asked[node.members.index(name)] = 1
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
        words = "without it the network would fall apart"
        if node.name in asked and self._wants_to_leave:
            self._refused = True
            log.error("node %d stays: %s", node.name, words, extra=output.EVERY_RANK)
        for name in asked if node.is_main else ():
            requests.refuse(self._run_dir, requests.LEAVE, name, f"node {name} stays: {words}")
        return []

    def over(self) -> None:
        """The ranks have met."""
        self.meets, self.leaving = False, []
        self._started.difference_update(self._node.members)
        if self._node.is_main:
            requests.settle(self._run_dir, self._node.members)
