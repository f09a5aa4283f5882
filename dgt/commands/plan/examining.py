"""Candidates in numbers: the step each of them is given, what to expect of it, and of DDP beside them.

The mathematics is in `network/systems/`, `moments.py`, `stability.py` and `plan.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from dgt import problems
from dgt.algorithms import AllReduce
from dgt.commands.plan.candidates import Candidate
from dgt.commands.plan.settings import PlanConfig
from dgt.commands.plan.timing import link_of, seconds_of
from dgt.commands.simulate.twin import evaluated_at
from dgt.config import Config
from dgt.network import changing, spectral, stability, systems, theory
from dgt.network import plan as planner
from dgt.network.links import all_reduce_seconds
from dgt.network.plan import Prediction
from dgt.network.schedules import Schedule
from dgt.network.systems import Quadratic, System
from dgt.network.systems.dsgd import DSGD
from dgt.network.weights import Weights
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings, smoothness
from dgt.runs.sinks.progress import Progress

MOST_NUMBERS = 3_000_000  # bound on nodes x draws x dimension: larger networks have fewer draws
BASE_MOMENTUM = 0.9
STEADY = 0.5  # share of its largest stable step that a candidate is given at most, where no lr is given
QUICK_NODES = 100  # fewer nodes take so little time that no progress is shown


def quadratic_of(config: Config, nodes: int) -> Quadratic:
    """The draws of least squares that a config's seeds make; for another problem, those of the default."""
    problem = _stand_in(config)
    draws = max(1, min(len(config.seeds), MOST_NUMBERS // (nodes * problem.dimension)))
    drawn = LeastSquares(problem, config.seeds[:draws], range(nodes))
    curvature = (drawn.curvature + problem.regularization)[..., 0]
    return Quadratic(curvature, drawn.curvature * drawn.center, drawn.start, problem.noise)


def _stand_in(config: Config) -> LeastSquaresSettings:
    found: LeastSquaresSettings = config.problem.settings if is_quadratic(config) else LeastSquaresSettings()
    return found


def is_quadratic(config: Config) -> bool:
    """Whether what is predicted is the problem itself."""
    return problems.class_of(config).is_quadratic


def usual_step(config: Config) -> float:
    """Of the least squares that are predicted: a step of momentum b moves lr / (1 - b) in the long run."""
    return float(config.lr) if is_quadratic(config) else Config().lr * (1 - momentum_of(config)[0])


def momentum_of(config: Config) -> tuple[float, bool]:
    """Momentum, and whether it is Nesterov's; for a base the usual first moment of Adam stands in."""
    values = config.algorithm.values
    if values.get("base") is not None:
        return BASE_MOMENTUM, False
    return float(values.get("momentum") or 0.0), bool(values.get("nesterov"))


@dataclass(frozen=True, slots=True, eq=False)
class Dynamics:
    """How a candidate converges, whatever it sends."""

    system: System
    lr: float
    """Of the least squares that are predicted."""
    share: float
    """Of the step that others have; below 1 where this one needs a smaller one."""
    stable: float
    hardest: int
    """The draw that is first to diverge."""
    rho: float
    """By which an exchange brings nodes closer."""
    prediction: Prediction
    contraction: float


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One candidate in numbers."""

    candidate: Candidate
    config: Config
    dynamics: Dynamics
    iterations: int | None
    """To reach the accuracy."""
    iteration_seconds: float | None

    @property
    def topology(self) -> str:
        return self.candidate.topology

    @property
    def algorithm(self) -> str:
        return self.candidate.algorithm

    @property
    def strategy(self) -> str:
        return self.config.strategy.name

    @property
    def prediction(self) -> Prediction:
        return self.dynamics.prediction

    @property
    def error(self) -> float:
        return self.prediction.error

    @property
    def consensus(self) -> float:
        return self.prediction.late_consensus

    @property
    def contraction(self) -> float:
        return self.dynamics.contraction

    @property
    def is_stable(self) -> bool:
        return self.contraction < 1 and bool(np.isfinite(self.error))

    @property
    def is_reduced(self) -> bool:
        """Whether its step is smaller than that of others."""
        return self.dynamics.share < 1

    @property
    def handicaps(self) -> tuple[bool, bool]:
        """By what an error may be low for another reason than a good network: it is not exact, its step is smaller.

        Nodes that go on descending each to its own optimum have weighted gradients that add up to zero, too.
        """
        return not self.dynamics.system.is_exact, self.is_reduced

    @property
    def seconds(self) -> float | None:
        """To reach the accuracy."""
        if self.iterations is None or self.iteration_seconds is None:
            return None
        return self.iterations * self.iteration_seconds

    @property
    def lr_proved(self) -> float | None:
        """Of plain gradient tracking on a graph."""
        config, system = self.config, self.dynamics.system
        plain = config.algorithm.name == "gradient_tracking" and system.mixing.period == 1 and not system.momentum
        if not plain or isinstance(self.candidate.graph, Schedule):
            return None
        lambdas = system.plan.mixing_weights * system.plan.gradient_scale
        kappa = theory.kappa_lambda(lambdas) if self.strategy == "I" else 1.0
        on = theory.OnNetwork(
            self.strategy, int(lambdas.size), self.dynamics.rho, float(system.plan.gradient_scale.max()), kappa,
            theory.c_lambda(lambdas),
        )  # fmt: skip
        return theory.step_limit(on, smoothness(_stand_in(config)))

    def other_strategy(self, rows: Sequence[Row]) -> Row | None:
        """With all else the same."""
        same = (row for row in rows if row.candidate.cell == self.candidate.cell)
        return next((row for row in same if row.strategy != self.strategy), None)


@dataclass(frozen=True, slots=True)
class Centralised:
    """What DDP would do: the same problem, its gradient summed up over all nodes at every step."""

    lr: float
    stable: float
    error: float
    iterations: int | None
    bytes: float
    iteration_seconds: float | None

    @property
    def seconds(self) -> float | None:
        if self.iterations is None or self.iteration_seconds is None:
            return None
        return self.iterations * self.iteration_seconds


@dataclass(frozen=True, slots=True)
class _Limits:
    """What is known of a system before its step is."""

    system: System
    stable: float
    hardest: int
    rho: float


def examine(
    candidates: Sequence[Candidate], weights: Weights, quadratic: Quadratic, settings: PlanConfig, lr_is_given: bool
) -> list[Row]:
    """All candidates in numbers; what differs in the wire only is computed once."""
    distinct = {candidate.system: candidate for candidate in candidates}
    speaks = weights.size > QUICK_NODES
    progress = Progress(2 * len(distinct), "plan", speaks=speaks, lines=1, unit="calculation")
    limits: dict[Any, _Limits] = {}
    for key, candidate in distinct.items():
        limits[key] = _limits(candidate, weights, quadratic)
        progress.update(len(limits), {})
    scale = 1.0 if lr_is_given else _scale(distinct, limits)
    found: dict[Any, Dynamics] = {}
    for key, candidate in distinct.items():
        lr, share = _step(candidate.config, limits[key].stable, scale, lr_is_given)
        found[key] = _dynamics(candidate.config, limits[key], weights, quadratic, lr, share, settings.has_link)
        progress.update(len(limits) + len(found), {})
    progress.close()
    return [_row(candidate, found[candidate.system], settings) for candidate in candidates]


def _limits(candidate: Candidate, weights: Weights, quadratic: Quadratic) -> _Limits:
    config, graph = candidate.config, candidate.graph
    kind = systems.named(config.algorithm.name)
    assert kind is not None, "checked when it was composed"
    momentum, nesterov = momentum_of(config)
    system = kind.of(
        graph, weights, config.strategy.name, config.laziness, momentum, nesterov, config.local_steps,
        form=config.algorithm.values.get("form"),
    )  # fmt: skip
    if isinstance(graph, Schedule):
        each = changing.matrices(graph, system.plan.mixing_weights, config.laziness)
        rho = stability.mixing_rate(each, system.plan.average_weights)
    else:
        rho = spectral.spectrum_of(system.W, system.plan.mixing_weights).rho
    return _Limits(system, *stability.largest_stable_step(system, quadratic.curvature), rho)


def _scale(candidates: dict[Any, Candidate], limits: dict[Any, _Limits]) -> float:
    """1 if any candidate bears its usual step; else that share of it which the most robust one bears."""
    most = max(STEADY * limits[key].stable / usual_step(each.config) for key, each in candidates.items())
    return min(1.0, most)


def _step(config: Config, stable: float, scale: float, lr_is_given: bool) -> tuple[float, float]:
    """The step of the prediction, and which share of that of others it is.

    A candidate that would be near its limit has half of it, in two digits, as the command will say.
    """
    usual = usual_step(config)
    step = usual if scale == 1 else _two_digits(scale * usual)
    if lr_is_given or step <= max(STEADY * stable, _two_digits(STEADY * stable)):
        return step, 1.0
    reduced = _two_digits(STEADY * stable)
    return reduced, reduced / step


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _dynamics(
    config: Config, limits: _Limits, weights: Weights, quadratic: Quadratic, lr: float, share: float, every: bool
) -> Dynamics:
    """`every`: looked at after every iteration, not only where a run is evaluated, as times are told by it."""
    system = limits.system
    times = [t for t in range(config.iterations + 1) if every or evaluated_at(t, config)]
    prediction = planner.predict(system, weights, quadratic, lr, times)
    rate = stability.contraction(system, quadratic.curvature[:, limits.hardest], lr)
    if rate < 1:
        rate = stability.contraction(system, quadratic.curvature[:, 0], lr)  # of one draw: rows compare
        if weights.size > stability.EXACT_NODES:  # consensus is not faster than mixing, whatever the estimate
            rate = max(rate, limits.rho ** (1 / config.local_steps))
    return Dynamics(system, lr, share, limits.stable, limits.hardest, limits.rho, prediction, rate)


def _row(candidate: Candidate, dynamics: Dynamics, settings: PlanConfig) -> Row:
    config = candidate.config
    if is_quadratic(config) and dynamics.lr != config.lr:
        config = dataclasses.replace(config, lr=dynamics.lr)
    iterations = dynamics.prediction.agreed(settings.accuracy)
    return Row(candidate, config, dynamics, iterations, seconds_of(candidate, link_of(settings)))


def centralised(row: Row, weights: Weights, quadratic: Quadratic, settings: PlanConfig, numbers: int) -> Centralised:
    """DDP with the momentum and the step of a row, but for what its network makes it reduce; to the same accuracy."""
    config, n, momentum = row.config, int(weights.size), momentum_of(row.config)
    alone, one = planner.summed(quadratic, weights), np.ones(1)
    system = DSGD.of(nx.empty_graph(1), one, "II", config.laziness, *momentum)
    stable, _ = stability.largest_stable_step(system, alone.curvature)
    lr = row.dynamics.lr / row.dynamics.share
    times = row.prediction.times
    prediction = planner.predict(system, one, alone, lr, times)
    width = problems.dtype_of(config).itemsize
    sent = AllReduce.bytes_per_exchange(n, 0, numbers, width, width) / n
    link = link_of(settings)
    return Centralised(
        lr, stable, prediction.error, prediction.below(settings.accuracy * row.prediction.start), sent,
        None if link is None else all_reduce_seconds(link, n, sent),
    )  # fmt: skip
