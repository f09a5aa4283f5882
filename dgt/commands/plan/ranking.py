"""The order of the rows of `dgt plan`, and which of two of them is the better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgt.commands.plan.examining import Centralised, Row, is_quadratic
from dgt.commands.plan.settings import PlanConfig
from dgt.errors import ConfigError
from dgt.network import moments
from dgt.network import plan as planner
from dgt.network.systems import Quadratic
from dgt.network.weights import Weights
from dgt.training.step_size import Found

STEP_SHARES = np.geomspace(0.02, 0.9, 16)  # candidates for the step size, as shares of the largest stable one
SAME = 1e-9  # relative difference below which values are equal but for rounding


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: rows from best to worst, and what was left out."""

    rows: list[Row]
    settings: PlanConfig
    weights: Weights
    left_out: dict[str, str]
    """Graph -> why."""
    noise: float
    best_lr: float | None
    """Of the first row, for least squares."""
    best_lr_error: float | None
    ddp: Centralised
    lr_is_given: bool
    found: Found | None = None
    """Trials of the first row's run, if they were asked for."""

    @property
    def best(self) -> Row:
        return self.rows[0]

    @property
    def by_time(self) -> bool:
        return self.best.iteration_seconds is not None


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Each combination with its better strategy, ranked by time where it is known, else by error; then the others."""
    if not any(row.is_stable for row in rows):
        most = max(rows, key=lambda row: row.dynamics.stable)
        raise ConfigError(
            f"lr={most.dynamics.lr:g}: too large for every graph and strategy here; at most {most.dynamics.stable:.3g} "
            f"(Strategy {most.strategy} on {most.topology}, {most.algorithm})"
        )
    better = [row for row in rows if _is_chosen(row, rows)]
    return _in_order(better) + _in_order([row for row in rows if row not in better])


def sooner(row: Row, other: Row) -> bool | None:
    """Whether it reaches the accuracy sooner, where times are known and not the same."""
    if row.iteration_seconds is None:
        return None
    ours, theirs = (np.inf if one.seconds is None or not one.is_stable else one.seconds for one in (row, other))
    nearer = min(ours, theirs)
    return None if nearer == np.inf or max(ours, theirs) <= (1 + planner.TIE) * nearer else bool(ours < theirs)


def is_open(row: Row, other: Row) -> bool:
    """Whether neither strategy is clearly the better one."""
    if row.is_reduced != other.is_reduced:
        return False
    return sooner(row, other) is None and not planner.advantage(row.prediction, other.prediction).is_clear


def _is_chosen(row: Row, rows: Sequence[Row]) -> bool:
    """Whether it is the better strategy: by time where known, then by error; II if all is equal.

    Errors are compared at the same step: the strategy that needs a smaller one is the other one.
    """
    other = row.other_strategy(rows)
    if other is None:
        return True
    in_time = sooner(row, other)
    if in_time is not None:
        return in_time
    if row.is_reduced != other.is_reduced:
        return other.is_reduced
    ahead = planner.advantage(row.prediction, other.prediction).share
    return row.strategy == "II" if abs(ahead) < SAME else ahead > 0


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """By time those that get there; then by error, those with handicaps after the others; then what diverges."""
    stable = [row for row in rows if row.is_stable]
    order = planner.ranked([row for row in stable if row.seconds is not None], _seconds, _seconds_cost)
    late = [row for row in stable if row.seconds is None]
    for handicaps in sorted({row.handicaps for row in late}):
        order += planner.ranked([row for row in late if row.handicaps == handicaps], lambda row: row.error, _cost)
    return order + [row for row in rows if not row.is_stable]


def _seconds(row: Row) -> float:
    return float(row.seconds or 0)


def _seconds_cost(row: Row) -> tuple[float, float]:
    """Of those that are as quick the one of lower error, then of fewer bytes."""
    return row.error, row.candidate.bytes


def _cost(row: Row) -> tuple[float, float]:
    """Of those as good the one whose nodes agree sooner, then of fewer bytes."""
    return row.contraction, row.candidate.bytes


def best_step(row: Row, weights: Weights, quadratic: Quadratic) -> tuple[float | None, float | None]:
    """The step with the lowest predicted error for this many iterations, and that error; of least squares only."""
    if not is_quadratic(row.config):
        return None, None
    times = row.prediction.times
    late = [t for t in times if t >= 0.8 * times[-1]]
    tried = [row.dynamics.stable * share for share in STEP_SHARES]
    system, few = row.dynamics.system, quadratic.first(3)
    errors = [moments.expected_norms(system, weights, few, lr, late).mean() for lr in tried]
    best = int(np.argmin(errors))
    return tried[best], float(errors[best])
