"""Candidates of `dgt plan`: which graphs fit a budget, what to expect of each strategy on them, and their order.

The mathematics is in `network/plan.py`; overrides become candidates in `planning.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from dgt import problems
from dgt.commands.simulate.twin import evaluated_at
from dgt.config import Config
from dgt.config.settings import check_settings, setting
from dgt.errors import ConfigError
from dgt.network import plan as planner
from dgt.network import rounding, spectral, theory
from dgt.network.plan import Prediction, Quadratic, System
from dgt.network.schedules import Schedule
from dgt.network.weights import Weights
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings, smoothness
from dgt.processes import environment
from dgt.processes.placement import Placement
from dgt.training.setup import network_of
from dgt.training.step_size import Found

MOST_NUMBERS = 3_000_000  # bound on nodes x draws x dimension: larger networks have fewer draws
ONE_MESSAGE = 2**16  # bytes up to which z and y are one message, which overlaps with no computation
STEP_SHARES = np.geomspace(0.02, 0.9, 16)  # candidates for the step size, as shares of the largest stable one
BASE_MOMENTUM = 0.9
SAME = 1e-9  # relative difference below which values are equal but for rounding


@dataclass(slots=True, kw_only=True)
class BudgetConfig:
    degree: int | None = setting(None, "most neighbours that any node may have", low=1)
    bytes: float | None = setting(None, "most bytes that any node may send per iteration", low=0, open_low=True)

    def __post_init__(self) -> None:
        check_settings(self, "budget.")


@dataclass(slots=True, kw_only=True)
class PlanConfig:
    """What `dgt plan` takes besides the settings of a run."""

    budget: BudgetConfig = field(default_factory=BudgetConfig)
    parameters: int | None = setting(None, "parameters of the model; null: the problem's own", low=1)
    accuracy: float = setting(
        0.05,
        "target: gradient norm and consensus error as a share of their initial values",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )
    bandwidth: float | None = setting(
        None, "GB/s that a node can send; with it, graphs are ranked by time", low=0, open_low=True
    )
    latency: float = setting(0.0, "microseconds for a message to arrive", low=0)
    compute: float = setting(0.0, "milliseconds for a gradient", low=0)
    measure: bool = setting(False, "measure bandwidth and latency between two ranks on this host")
    write: str | None = setting(None, "folder for the config: dgt train --config-dir FOLDER experiment=plan")

    def __post_init__(self) -> None:
        check_settings(self)
        stated = {key: value for key in ("bandwidth", "latency", "compute") if (value := getattr(self, key))}
        for key, value in stated.items():
            if self.measure and key != "compute":
                raise ConfigError(f"measure=true: {key}={value:g} is given; leave one of them out")
            if not self.measure and self.bandwidth is None:
                raise ConfigError(f"{key}={value:g}: times need bandwidth=GB/s too, or measure=true")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One strategy on one graph."""

    topology: str
    """The graph's name among the candidates."""
    config: Config
    degree: int
    """Of the node with most neighbours."""
    mean_degree: float
    gap: float
    contraction: float
    lr_proved: float | None
    """Of plain gradient tracking."""
    lr_stable: float
    bytes: int
    """Sent per iteration by the node with most neighbours."""
    mean_bytes: float
    prediction: Prediction
    iterations: int | None
    """To reach the accuracy."""
    iteration_seconds: float | None
    system: System

    @property
    def strategy(self) -> str:
        return self.config.strategy.name

    @property
    def error(self) -> float:
        return self.prediction.error

    @property
    def consensus(self) -> float:
        return self.prediction.late_consensus

    @property
    def is_stable(self) -> bool:
        return self.contraction < 1 and bool(np.isfinite(self.error))

    def other_strategy(self, rows: Sequence[Row]) -> Row | None:
        """On the same graph."""
        return next((row for row in rows if row.topology == self.topology and row.strategy != self.strategy), None)

    @property
    def seconds(self) -> float | None:
        """To reach the accuracy."""
        if self.iterations is None or self.iteration_seconds is None:
            return None
        return self.iterations * self.iteration_seconds


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
    found: Found | None = None
    """Trials of the first row's run, if they were asked for."""

    @property
    def best(self) -> Row:
        return self.rows[0]

    @property
    def by_time(self) -> bool:
        return self.best.iteration_seconds is not None


def affordable(
    configs: Mapping[str, Config], budget: BudgetConfig, bytes_per_neighbour: int, named: bool
) -> tuple[dict[str, tuple[Config, nx.Graph]], dict[str, str]]:
    """The graphs within the budget, and why others are not among them; tailored ones are made to fit."""
    most = float("inf") if budget.degree is None else float(budget.degree)
    if budget.bytes is not None:
        most = min(most, budget.bytes // bytes_per_neighbour)
    found: dict[str, tuple[Config, nx.Graph]] = {}
    left_out: dict[str, str] = {}
    for name, config in configs.items():
        try:
            config, graph = _fitted(config, most)
        except ConfigError as error:
            if named:
                raise
            left_out[name] = str(error)
            continue
        same = next((label for label, (_, other) in found.items() if nx.utils.graphs_equal(other, graph)), None)
        if _largest_degree(graph) > most:
            left_out[name] = f"{_largest_degree(graph)} neighbours, {most:.0f} allowed"
        elif same is not None and not named:
            left_out[name] = f"the same graph as {same}"
        else:
            found[name] = config, graph
    if not found:
        why = "; ".join(f"{name}: {words}" for name, words in left_out.items())
        what = "budget.bytes" if budget.degree is None or most < budget.degree else "budget.degree"
        value = budget.bytes if what == "budget.bytes" else budget.degree
        raise ConfigError(f"{what}={value:g}: no graph fits ({why})")
    return found, left_out


def _fitted(config: Config, most: float) -> tuple[Config, nx.Graph]:
    """A config's graph; a tailored one whose average degree is free has as many edges as the budget allows."""
    weights, graph = network_of(config, Placement("alone"), as_drawn=True)  # swaps keep degrees
    if isinstance(graph, Schedule):
        raise ConfigError(f"topology={config.topology.name}: dgt plan predicts graphs that stay the same; leave it out")
    if config.topology.name != "tailored":
        return config, graph
    free = config.topology.avg_degree is None
    degree = 2 * graph.number_of_edges() / weights.size
    while _largest_degree(graph) > most and degree > 2 and free:
        degree = max(2.0, min(degree - 0.5, degree * most / _largest_degree(graph)))
        config = dataclasses.replace(config, topology=config.topology.replace(avg_degree=round(degree, 2)))
        graph = network_of(config, Placement("alone"), as_drawn=True)[1]
    return config, graph if _largest_degree(graph) > most else network_of(config, Placement("alone"))[1]


def _largest_degree(graph: nx.Graph) -> int:
    return max(degree for _, degree in graph.degree)


def model_numbers(config: Config, settings: PlanConfig, weights: Weights) -> int:
    """Parameters of the model that will be trained."""
    if settings.parameters is not None:
        return settings.parameters
    if config.problem.target is not None:
        problems.custom.check(config.problem)
    return problems.parameter_count(config, weights, environment.cache_dir())


def vector_bytes(config: Config, numbers: int) -> int:
    """Of a vector of so many numbers, as it is sent."""
    return round(numbers * rounding.bytes_per_number(config.wire, numbers, problems.dtype_of(config).itemsize))


def quadratic_of(config: Config, nodes: int) -> Quadratic:
    """The draws of least squares that a config's seeds make; for another problem, those of the default."""
    problem = _stand_in(config)
    draws = max(1, min(len(config.seeds), MOST_NUMBERS // (nodes * problem.dimension)))
    drawn = LeastSquares(problem, config.seeds[:draws], range(nodes))
    curvature = (drawn.curvature + problem.regularization)[..., 0]
    return Quadratic(curvature, drawn.curvature * drawn.center, drawn.start, problem.noise)


def _stand_in(config: Config) -> LeastSquaresSettings:
    found: LeastSquaresSettings = config.problem.settings if _is_quadratic(config) else LeastSquaresSettings()
    return found


def _is_quadratic(config: Config) -> bool:
    return problems.class_of(config).is_quadratic


def step_of(config: Config) -> float:
    """Of the least squares that are predicted: a step of momentum b moves lr / (1 - b) in the long run."""
    return float(config.lr) if _is_quadratic(config) else Config().lr * (1 - momentum_of(config)[0])


def momentum_of(config: Config) -> tuple[float, bool]:
    """Momentum, and whether it is Nesterov's; for a base the usual first moment of Adam stands in."""
    values = config.algorithm.values
    if values.get("base") is not None:
        return BASE_MOMENTUM, False
    return float(values.get("momentum") or 0.0), bool(values.get("nesterov"))


def examine(
    label: str,
    config: Config,
    graph: nx.Graph,
    weights: Weights,
    quadratic: Quadratic,
    settings: PlanConfig,
    bytes_per_neighbour: int,
) -> Row:
    """One strategy on one graph, in numbers."""
    momentum, nesterov = momentum_of(config)
    system = System.of(graph, weights, config.strategy.name, config.laziness, momentum, nesterov)
    spectrum = spectral.spectrum_of(system.W, system.plan.mixing_weights)
    on = theory.OnNetwork(
        config.strategy.name, int(weights.size), spectrum.rho, float(system.plan.gradient_scale.max()),
        theory.kappa_lambda(weights) if config.strategy.name == "I" else 1.0, theory.c_lambda(weights),
    )  # fmt: skip
    times = [t for t in range(config.iterations + 1) if evaluated_at(t, config)]
    prediction = planner.predict(system, weights, quadratic, step_of(config), times)
    stable, hardest = planner.largest_stable_step(system, quadratic.curvature)
    rate = planner.contraction(system, quadratic.curvature[:, hardest], step_of(config))
    if rate < 1:
        rate = planner.contraction(system, quadratic.curvature[:, 0], step_of(config))  # of one draw: rows compare
        if weights.size > planner.EXACT_NODES:
            rate = max(rate, spectrum.rho)  # consensus is not faster than mixing, whatever the system's rate
    degree, mean_degree = _largest_degree(graph), 2 * graph.number_of_edges() / weights.size
    seconds = None
    if settings.bandwidth is not None:
        sending = degree * bytes_per_neighbour / 2 / (1e9 * settings.bandwidth)
        overlaps = config.overlap and bytes_per_neighbour > ONE_MESSAGE
        seconds = planner.iteration_seconds(1e-3 * settings.compute, 1e-6 * settings.latency, sending, overlaps)
    return Row(
        topology=label,
        config=config,
        degree=degree,
        mean_degree=mean_degree,
        gap=spectrum.gap,
        contraction=rate,
        lr_proved=None if momentum else theory.step_limit(on, smoothness(_stand_in(config))),
        lr_stable=stable,
        bytes=degree * bytes_per_neighbour,
        mean_bytes=mean_degree * bytes_per_neighbour,
        prediction=prediction,
        iterations=prediction.agreed(settings.accuracy),
        iteration_seconds=seconds,
        system=system,
    )


def decided(
    rows: list[Row], settings: PlanConfig, weights: Weights, left_out: dict[str, str], quadratic: Quadratic
) -> Plan:
    """Each graph with its better strategy, ranked by time where it is known, else by error; then the others."""
    if not any(row.is_stable for row in rows):
        most = max(rows, key=lambda row: row.lr_stable)
        raise ConfigError(
            f"lr={step_of(most.config):g}: too large for every graph and strategy here; at most {most.lr_stable:.3g} "
            f"(Strategy {most.strategy} on {most.topology})"
        )
    better = [row for row in rows if _is_chosen(row, rows)]
    order = _in_order(better) + _in_order([row for row in rows if row not in better])
    best, best_lr, best_error = order[0], None, None
    if _is_quadratic(best.config):
        best_lr, best_error = _best_step(best, weights, quadratic)
    return Plan(order, settings, weights, left_out, quadratic.noise, best_lr, best_error)


def sooner(row: Row, other: Row) -> bool | None:
    """Whether it reaches the accuracy sooner, where times are known and not the same."""
    if row.iteration_seconds is None:
        return None
    ours, theirs = (np.inf if one.seconds is None or not one.is_stable else one.seconds for one in (row, other))
    nearer = min(ours, theirs)
    return None if nearer == np.inf or max(ours, theirs) <= (1 + planner.TIE) * nearer else bool(ours < theirs)


def _is_chosen(row: Row, rows: Sequence[Row]) -> bool:
    """Whether it is the better strategy on its graph: by time where known, then by error; II if all is equal."""
    other = row.other_strategy(rows)
    if other is None:
        return True
    in_time = sooner(row, other)
    if in_time is not None:
        return in_time
    ahead = planner.advantage(row.prediction, other.prediction).share
    return row.strategy == "II" if abs(ahead) < SAME else ahead > 0


def _in_order(rows: list[Row]) -> list[Row]:
    stable = [row for row in rows if row.is_stable]
    in_time = [row for row in stable if row.seconds is not None]
    order = planner.ranked(in_time, lambda row: float(row.seconds or 0), lambda row: row.error)
    late = [row for row in stable if row.seconds is None]
    order += planner.ranked(late, lambda row: row.error, lambda row: row.contraction)
    return order + [row for row in rows if not row.is_stable]


def _best_step(row: Row, weights: Weights, quadratic: Quadratic) -> tuple[float, float]:
    """The step size with the lowest predicted error for this many iterations, and that error."""
    late = [t for t in row.prediction.times if t >= 0.8 * row.prediction.times[-1]]
    tried = [row.lr_stable * share for share in STEP_SHARES]
    errors = [planner.expected_norms(row.system, weights, quadratic.first(3), lr, late).mean() for lr in tried]
    best = int(np.argmin(errors))
    return tried[best], float(errors[best])
