"""Early stopping: `dgt train "stop.when=accuracy>0.6"`, or `stop.when=loss stop.patience=10`.

    METRIC>NUMBER, METRIC<NUMBER    once it is so at `patience` evaluations in a row
    METRIC                          once `patience` evaluations in a row have brought no better value

Rank 0 knows the metric, all ranks hear its value at every evaluation and apply the same rule: they end at the same
iteration. What was measured before a resume counts too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgt.config import Config
from dgt.config.checks import check_choice
from dgt.errors import ConfigError
from dgt.processes.agreement import broadcast_text, share_trouble
from dgt.processes.node import Node
from dgt.runs.lines import records_in
from dgt.runs.measures import ALL, measure_of

ABSENT = "absent"
MOST = 32  # bytes of a number in words


def check(config: Config) -> None:
    """Raise for metrics that no problem of the package has, and for those of which neither direction is better."""
    if config.stop.when is None:
        return
    metric, sign, _ = config.stop.rule
    if config.problem.target is None:
        check_choice("stop.when", metric, [measure.metric for measure in ALL if measure.recorded])
    if not sign and not measure_of(metric).better:
        raise ConfigError(f"stop.when={metric}: say which way, {metric}<NUMBER or {metric}>NUMBER")


class EarlyStop:
    """The rule of a run, and how far it is fulfilled; without a rule it never ends anything."""

    def __init__(self, config: Config) -> None:
        self._config, self.reason, self._absent = config, "", 0
        self._is_on = config.stop.when is not None
        if self._is_on:
            self.metric, self._sign, self._bound = config.stop.rule
            self._raises = self._sign == ">" or (not self._sign and measure_of(self.metric).higher_is_better)
        self._states: list[tuple[int, int, float]] = []  # iteration, evaluations in a row, best value

    def observe(self, iteration: int, value: float) -> str:
        """One evaluation; why the run ends with it, if it does. An iteration that is evaluated again counts once."""
        while self._states and self._states[-1][0] >= iteration:
            self._states.pop()
        _, count, best = self._states[-1] if self._states else (-1, 0, math.nan)
        is_better = math.isnan(best) or (value > best if self._raises else value < best)
        is_beyond = value > self._bound if self._raises else value < self._bound
        met = is_beyond if self._sign else not is_better
        self._states.append((iteration, count + 1 if met else 0, value if is_better else best))
        return self._words(iteration, value) if self._states[-1][1] >= self._config.stop.patience else ""

    def _words(self, iteration: int, value: float) -> str:
        at = f"stopped early at iteration {iteration} of {self._config.iterations}"
        _, count, best = self._states[-1]
        if not self._sign:
            return f"{at}, because {self.metric} got no better than {best:.4g} for {count} evaluations"
        often = f" for {count} evaluations" if count > 1 else ""
        return (
            f"{at}, because {self.metric} is {value:.4g}, {'above' if self._raises else 'below'} {self._bound:g}{often}"
        )

    def look(self, node: Node, iteration: int, metrics: Mapping[str, np.ndarray] | None) -> None:
        """At an evaluation, whose metrics rank 0 has: `reason` is why the run ends now, if it does. By all ranks."""
        self.reason = ""
        if not self._is_on:
            return
        names = [] if metrics is None else list(metrics)
        value = repr(float(metrics[self.metric][0])) if metrics is not None and self.metric in metrics else ABSENT
        value = broadcast_text(node, value, MOST)
        trouble = self._hear(iteration, value, names)
        if trouble:
            share_trouble(node, trouble)

    def measured(self, iteration: int, metrics: Mapping[str, np.ndarray]) -> str:
        """The same where there are no ranks; returns the reason."""
        if self._is_on:
            value = repr(float(metrics[self.metric][0])) if self.metric in metrics else ABSENT
            trouble = self._hear(iteration, value, list(metrics))
            if trouble:
                raise ConfigError(trouble)
        return self.reason

    def _hear(self, iteration: int, value: str, names: list[str]) -> str:
        """The metric's value on rank 0, if it was measured (the loss is not before the first step); what is wrong."""
        if value != ABSENT:
            words = self.observe(iteration, float(value))
            self.reason = words if iteration < self._config.iterations else ""
        elif not self._states and iteration:
            self._absent += 1
            if self._absent > 1:
                return f"stop.when={self._config.stop.when}: not measured here; there are {', '.join(names)}"
        return ""

    def go_on(self, node: Node, first: int, evaluated: bool, history: Path | None) -> None:
        """A run is resumed at iteration `first`: count what rank 0 finds in its metrics. All ranks call it."""
        if not self._is_on or not first:
            return
        if node.is_main and history is not None:
            until = first if evaluated else first - 1
            with contextlib.suppress(OSError):  # they are gone: counted anew
                self._count(record for record, _ in records_in(history) if record["iteration"] <= until)
        self.share(node)

    def share(self, node: Node) -> None:
        """All ranks take over what rank 0 has counted; after a loss one may have heard of an evaluation less."""
        if not self._is_on:
            return
        iteration, count, best = self._states[-1] if self._states else (-1, 0, math.nan)
        iteration_, count_, best_ = broadcast_text(node, f"{iteration} {count} {best!r}", 3 * MOST).split()
        self._states = [(int(iteration_), int(count_), float(best_))] if int(iteration_) >= 0 else []
        self._absent = 0

    def _count(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            value = record.get(self.metric)
            if isinstance(value, int | float):
                self.observe(record["iteration"], float(value))
