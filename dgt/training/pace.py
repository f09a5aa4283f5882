"""Slow nodes leave out local steps, so that the others need not wait: `adapt=true` with `local_steps`.

Of the L local steps between two exchanges node i makes k_i, evenly spread, the last one always:

    k_i = max(1, round(L min(1, median_j s_j / s_i)))        s_i: seconds of a gradient, told at every evaluation

In a step that is left out theta_i and y_i stay. The sum of pi_i (y_i - G_i g_i) is zero all the same, g_i being the
last gradient that node i has computed, and where y_i = 0 nothing moves, however many steps a node makes: the optimum is
that of all nodes with their weights. Nodes that make fewer steps need no correction as in FedNova: they go by the
tracker, and not by their own gradient. What is given up: a slow node sees fewer samples, and numbers depend on who was
slow when, so that a run cannot be repeated bit by bit.
"""

from __future__ import annotations

import statistics

from dgt.config import Config
from dgt.processes.node import Node


class Pace:
    """Of one node."""

    def __init__(self, config: Config) -> None:
        self.adapts, self._steps = config.adapt, config.local_steps
        self.share = 1.0
        """Of the local steps, those that this node makes."""
        self._seconds: list[float] = []

    def took(self, seconds: float) -> None:
        """A gradient took so long."""
        self._seconds.append(seconds)

    def leaves_out(self, iteration: int) -> bool:
        """Whether this node makes no step at this iteration; never where it exchanges."""
        if self.share == 1.0:
            return False
        made, place = max(1, round(self.share * self._steps)), iteration % self._steps
        return (place + 1) * made // self._steps == place * made // self._steps

    def compare(self, node: Node) -> None:
        """How fast is everybody? All ranks call it."""
        if not self.adapts:
            return
        own = statistics.fmean(self._seconds) if self._seconds else 0.0
        told = [seconds for seconds in node.all_gather([own])[:, 0].tolist() if seconds]
        if own and told:
            self.share = min(1.0, statistics.median(told) / own)
        self._seconds.clear()
