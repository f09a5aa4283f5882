"""`dgt plan`: for given weights, which strategy on which graph; from overrides to a ranked list and a config for it.

    dgt plan weights=A                                        # the usual graphs, both strategies
    dgt plan weights=A topology=ring,tailored budget.degree=6 parameters=11000000 bandwidth=1.2 latency=50 compute=100

The mathematics is in `network/plan.py`, the words are in `report/plan.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np

from dgt import compose as composing
from dgt import doctor, models, problems
from dgt.checks import ConfigError, build, check_range, documented
from dgt.config import Cifar10Config, Config, LeastSquaresConfig
from dgt.fragment import fragment, overrides_of
from dgt.network import plan as planner
from dgt.network import spectral, theory
from dgt.network.plan import Prediction, Quadratic, System
from dgt.network.weights import Weights
from dgt.placement import Placement
from dgt.problems.least_squares import LeastSquares, smoothness
from dgt.training.logger import Progress
from dgt.training.setup import network_of
from dgt.training.simulate import evaluated_at

CANDIDATES = ("ring", "grid", "torus", "exponential", "erdos_renyi", "tailored")
STRATEGIES = ("I", "II")
MOST_NUMBERS = 3_000_000  # nodes x draws x dimension: fewer draws on larger networks
QUICK_NODES = 100  # up to here nobody has to wait
ONE_MESSAGE = 2**16  # bytes of z and y up to which they travel together, and nothing overlaps
STEP_SHARES = np.geomspace(0.02, 0.9, 16)  # of the largest stable step, where the best one is looked for
NARROW_BYTES = 2


@dataclass(slots=True, kw_only=True)
class BudgetConfig:
    degree: int | None = None
    """Most neighbours that any node may have."""
    bytes: float | None = None
    """Most bytes that any node may send per iteration."""

    def __post_init__(self) -> None:
        if self.degree is not None:
            check_range("budget.degree", self.degree, 1)
        if self.bytes is not None:
            check_range("budget.bytes", self.bytes, 0, open_low=True)


@dataclass(slots=True, kw_only=True)
class PlanConfig:
    """What `dgt plan` takes besides the settings of a run."""

    budget: BudgetConfig = field(default_factory=BudgetConfig)
    parameters: int | None = None
    """Parameters of the model; null: the problem's own."""
    accuracy: float = 0.01
    """What to reach: the gradient norm as a share of its start."""
    bandwidth: float | None = None
    """GB/s that a node can send; with it, graphs are ranked by time."""
    latency: float = 0.0
    """Microseconds for a message to arrive."""
    compute: float = 0.0
    """Milliseconds for a gradient."""
    measure: bool = False
    """Measure bandwidth and latency between two ranks on this host."""
    write: str | None = None
    """Folder for the config: dgt train --config-dir FOLDER experiment=plan."""

    def __post_init__(self) -> None:
        check_range("accuracy", self.accuracy, 0, 1, open_low=True, open_high=True)
        check_range("latency", self.latency, 0)
        check_range("compute", self.compute, 0)
        if self.parameters is not None:
            check_range("parameters", self.parameters, 1)
        if self.bandwidth is not None:
            check_range("bandwidth", self.bandwidth, 0, open_low=True)
            if self.measure:
                raise ConfigError(f"measure=true: bandwidth={self.bandwidth:g} is given; leave one of them out")


def settings() -> list[str]:
    """'key: default   # meaning' for --help."""
    budget = [f"budget.{line}" for line in documented(BudgetConfig)]
    return budget + [line.replace("None", "null") for line in documented(PlanConfig) if not line.startswith("budget")]


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy on one graph."""

    config: Config
    degree: int
    """Of the node with most neighbours."""
    mean_degree: float
    gap: float
    contraction: float
    lr_proved: float
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
    def topology(self) -> str:
        return self.config.topology.name

    @property
    def error(self) -> float:
        return self.prediction.error

    @property
    def is_stable(self) -> bool:
        return self.contraction < 1 and bool(np.isfinite(self.error))

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
    best_lr: float | None
    """Of the first row, for least squares."""
    best_lr_error: float | None

    @property
    def best(self) -> Row:
        return self.rows[0]

    @property
    def by_time(self) -> bool:
        return self.best.iteration_seconds is not None

    def other_strategy(self, row: Row) -> Row | None:
        return next((r for r in self.rows if r.topology == row.topology and r.strategy != row.strategy), None)


def plan(overrides: Sequence[str]) -> Plan:
    """What these overrides ask for."""
    settings, rest = split(overrides)
    configs, named = candidates(rest, settings)
    weights, _ = network_of(configs[0], Placement("alone"))
    if weights.size == 1:
        raise ConfigError("dgt plan: a network of one node has nothing to choose")
    bytes_per_neighbour = 2 * model_numbers(configs[0], settings) * _width(configs[0])
    if settings.measure:
        talk = doctor.measured(configs[0].transport)
        settings = dataclasses.replace(settings, measure=False, latency=talk.microseconds, bandwidth=talk.gigabytes)
    graphs, left_out = affordable(configs, settings.budget, bytes_per_neighbour, named)
    strategies = [configs[0].strategy.name] if _chosen(rest, "strategy") else STRATEGIES
    quadratic = _quadratic(configs[0], int(weights.size))
    cells = [(config, graph, name) for config, graph in graphs for name in strategies]
    progress = Progress(len(cells), "plan", speaks=weights.size > QUICK_NODES, lines=1, unit="candidate")
    rows = []
    for number, (config, graph, name) in enumerate(cells, start=1):
        config = dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, name=name))
        rows.append(examine(config, graph, weights, quadratic, settings, bytes_per_neighbour))
        progress.update(number, {})
    progress.close()
    return _decided(rows, settings, weights, left_out, quadratic)


def split(overrides: Sequence[str]) -> tuple[PlanConfig, list[str]]:
    """What is for the plan, and what is for the runs it is about."""
    own: dict[str, Any] = {}
    rest, top = [], [field.name for field in dataclasses.fields(PlanConfig)]
    config_keys = {field.name for field in dataclasses.fields(Config)}
    for override in overrides:
        key = override.partition("=")[0]
        section, _, name = key.partition(".")
        if section not in top:
            close = difflib.get_close_matches(section, top, 1, cutoff=0.75)
            if close and section not in config_keys and not key.startswith(("hydra", "experiment", "+", "~")):
                raise ConfigError(f"{key}: no such key; did you mean {close[0]}?")
            rest.append(override)
            continue
        (value,) = composing.plain_values([override]).values()
        if name:
            own.setdefault(section, {})[name] = value
        else:
            own[section] = value
    return build(PlanConfig, own, ""), rest


def candidates(overrides: Sequence[str], settings: PlanConfig) -> tuple[list[Config], bool]:
    """One config per graph, and whether the user named the graphs; settings of a graph go to those that have them."""
    graph_settings = [word for word in overrides if word.startswith("topology.")]
    rest = [word for word in overrides if word not in graph_settings]
    named = _chosen(rest, "topology")
    runs = composing.expand(rest if named else [*rest, f"topology={','.join(CANDIDATES)}"])
    taken: set[str] = set()
    configs = []
    for run in runs:
        fitting = [word for word in graph_settings if _belongs(word, run)]
        taken.update(fitting)
        configs.append(composing.compose([*run, *fitting]))
    for word in graph_settings:
        if word not in taken:
            composing.compose([*runs[-1], word])  # says what is wrong with it
    for config in configs:
        check(config)
    swept = {item.key_or_group for item in composing.parse(rest) if item.is_sweep_override()} - {"topology"}
    if swept:
        raise ConfigError(f"{min(swept)}: dgt plan varies strategy and topology; give one {min(swept)}")
    return configs, named


def check(config: Config) -> None:
    """Refuse what the prediction does not hold for."""
    if config.algorithm.name != "gradient_tracking":
        raise ConfigError(f"algorithm={config.algorithm.name}: dgt plan is about gradient_tracking; leave it out")
    if config.local_steps != 1:
        raise ConfigError(f"local_steps={config.local_steps}: dgt plan predicts one exchange per step; leave it out")
    if config.iterations < 1:
        raise ConfigError(f"iterations={config.iterations}: dgt plan needs at least 1")


def _chosen(overrides: Sequence[str], group: str) -> bool:
    return any(item.key_or_group == group for item in composing.parse(overrides))


def _belongs(setting: str, run: Sequence[str]) -> bool:
    key = setting.partition("=")[0].partition(".")[2]
    return key in composing.keys_of("topology", run)


def affordable(
    configs: Sequence[Config], budget: BudgetConfig, bytes_per_neighbour: int, named: bool
) -> tuple[list[tuple[Config, nx.Graph]], dict[str, str]]:
    """The graphs within the budget, and why others are not among them; tailored ones are made to fit."""
    most = float("inf") if budget.degree is None else float(budget.degree)
    if budget.bytes is not None:
        most = min(most, budget.bytes // bytes_per_neighbour)
    found: list[tuple[Config, nx.Graph]] = []
    left_out: dict[str, str] = {}
    for config in configs:
        name = config.topology.name
        try:
            config, graph = _fitted(config, most)
        except ConfigError as error:
            if named:
                raise
            left_out[name] = str(error)
            continue
        same = next((c.topology.name for c, other in found if nx.utils.graphs_equal(other, graph)), None)
        if _largest_degree(graph) > most:
            left_out[name] = f"{_largest_degree(graph)} neighbours, {most:.0f} allowed"
        elif same is not None and not named:
            left_out[name] = f"the same graph as {same}"
        else:
            found.append((config, graph))
    if not found:
        why = "; ".join(f"{name}: {words}" for name, words in left_out.items())
        what = "budget.bytes" if budget.degree is None or most < budget.degree else "budget.degree"
        value = budget.bytes if what == "budget.bytes" else budget.degree
        raise ConfigError(f"{what}={value:g}: no graph fits ({why})")
    return found, left_out


def _fitted(config: Config, most: float) -> tuple[Config, nx.Graph]:
    """A config's graph; a tailored one whose average degree is free has as many edges as the budget allows."""
    weights, graph = network_of(config, Placement("alone"))
    if config.topology.name != "tailored" or config.topology.avg_degree is not None:
        return config, graph
    degree = 2 * graph.number_of_edges() / weights.size
    while _largest_degree(graph) > most and degree > 2:
        degree = max(2.0, min(degree - 0.5, degree * most / _largest_degree(graph)))
        config = dataclasses.replace(config, topology=dataclasses.replace(config.topology, avg_degree=round(degree, 2)))
        graph = network_of(config, Placement("alone"))[1]
    return config, graph


def _largest_degree(graph: nx.Graph) -> int:
    return max(degree for _, degree in graph.degree)


def model_numbers(config: Config, settings: PlanConfig) -> int:
    """Parameters of the model that will be trained."""
    if settings.parameters is not None:
        return settings.parameters
    problem = config.problem
    if isinstance(problem, LeastSquaresConfig):
        return problem.dimension
    if isinstance(problem, Cifar10Config):
        model = models.image_model(problem.model, 10, problem.norm, 0)
        return sum(parameter.numel() for parameter in model.parameters())
    raise ConfigError(f"problem={problem.name}: say how large the model is, parameters=COUNT")


def _width(config: Config) -> int:
    return NARROW_BYTES if config.wire != "full" else problems.dtype_of(config).itemsize


def _quadratic(config: Config, nodes: int) -> Quadratic:
    """The draws of least squares that a config's seeds make; for another problem, those of the default."""
    problem = _stand_in(config)
    draws = max(1, min(len(config.seeds), MOST_NUMBERS // (nodes * problem.dimension)))
    drawn = LeastSquares(problem, config.seeds[:draws], range(nodes))
    curvature = (drawn.curvature + problem.regularization)[..., 0]
    return Quadratic(curvature, drawn.curvature * drawn.center, drawn.start, problem.noise)


def _stand_in(config: Config) -> LeastSquaresConfig:
    return config.problem if isinstance(config.problem, LeastSquaresConfig) else LeastSquaresConfig()


def _step(config: Config) -> float:
    return config.lr if isinstance(config.problem, LeastSquaresConfig) else Config().lr


def examine(
    config: Config,
    graph: nx.Graph,
    weights: Weights,
    quadratic: Quadratic,
    settings: PlanConfig,
    bytes_per_neighbour: int,
) -> Row:
    """One strategy on one graph, in numbers."""
    system = System.of(graph, weights, config.strategy.name, config.laziness)
    spectrum = spectral.spectrum_of(system.W, system.plan.mixing_weights)
    on = theory.OnNetwork(
        config.strategy.name, int(weights.size), spectrum.rho, float(system.plan.gradient_scale.max()),
        theory.kappa_lambda(weights) if config.strategy.name == "I" else 1.0, theory.c_lambda(weights),
    )  # fmt: skip
    times = [t for t in range(config.iterations + 1) if evaluated_at(t, config)]
    prediction = planner.predict(system, weights, quadratic, _step(config), times)
    degree, mean_degree = _largest_degree(graph), 2 * graph.number_of_edges() / weights.size
    seconds = None
    if settings.bandwidth is not None:
        sending = degree * bytes_per_neighbour / 2 / (1e9 * settings.bandwidth)
        overlaps = config.overlap and bytes_per_neighbour > ONE_MESSAGE
        seconds = planner.iteration_seconds(1e-3 * settings.compute, 1e-6 * settings.latency, sending, overlaps)
    return Row(
        config=config,
        degree=degree,
        mean_degree=mean_degree,
        gap=spectrum.gap,
        contraction=planner.contraction(system, quadratic.curvature[:, 0], _step(config)),
        lr_proved=theory.step_limit(on, smoothness(_stand_in(config))),
        lr_stable=planner.largest_stable_step(system, quadratic.curvature[:, 0]),
        bytes=degree * bytes_per_neighbour,
        mean_bytes=mean_degree * bytes_per_neighbour,
        prediction=prediction,
        iterations=prediction.reached(settings.accuracy),
        iteration_seconds=seconds,
        system=system,
    )


def _decided(
    rows: list[Row], settings: PlanConfig, weights: Weights, left_out: dict[str, str], quadratic: Quadratic
) -> Plan:
    """Rank them, by time where it is known, else by error; those that diverge come last."""
    if not any(row.is_stable for row in rows):
        most = max(rows, key=lambda row: row.lr_stable)
        raise ConfigError(
            f"lr={most.config.lr:g}: too large for every graph and strategy here; at most {most.lr_stable:.3g} "
            f"(Strategy {most.strategy} on {most.topology})"
        )

    def value(row: Row) -> float:
        return row.error if row.is_stable else float("inf")

    stable = [row for row in rows if row.is_stable]
    in_time = [row for row in stable if row.seconds is not None]
    order = planner.ranked(in_time, lambda row: float(row.seconds or 0), lambda row: row.error)
    order += planner.ranked([row for row in stable if row not in order], value, lambda row: row.bytes)
    order += [row for row in rows if not row.is_stable]
    best, best_lr, best_error = order[0], None, None
    if isinstance(best.config.problem, LeastSquaresConfig):
        best_lr, best_error = _best_step(best, weights, quadratic)
    return Plan(order, settings, weights, left_out, best_lr, best_error)


def _best_step(row: Row, weights: Weights, quadratic: Quadratic) -> tuple[float, float]:
    """The step size with the lowest predicted error for this many iterations, and that error."""
    few = Quadratic(quadratic.curvature[:, :3], quadratic.pull[:, :3], quadratic.start[:, :3], quadratic.noise)
    times = row.prediction.times
    tried = [row.lr_stable * share for share in STEP_SHARES]
    errors = [planner.predict(row.system, weights, few, lr, times).error for lr in tried]
    best = int(np.argmin(errors))
    return tried[best], errors[best]


def as_dict(found: Plan) -> dict[str, Any]:
    """The answer in plain values: what --json prints, and what the words are made of."""
    best, settings, weights = found.best, found.settings, found.weights
    other = found.other_strategy(best)
    chosen = best.config
    return {
        "weights": chosen.weights.name,
        "nodes": int(weights.size),
        "uniform": bool(np.ptp(weights) < 1e-12),
        "problem": chosen.problem.name,
        "lr": _step(chosen),
        "iterations": chosen.iterations,
        "accuracy": settings.accuracy,
        "bandwidth": settings.bandwidth,
        "latency": settings.latency,
        "compute": settings.compute,
        "ranked_by": "time" if found.by_time else "error",
        "rows": [_row_dict(row) for row in found.rows],
        "choices": list(_choices(found)),
        "left_out": found.left_out,
        "recommendation": {
            "strategy": best.strategy,
            "topology": best.topology,
            "either": other is not None and not planner.advantage(best.prediction, other.prediction).is_clear,
            "best_lr": found.best_lr,
            "best_lr_error": found.best_lr_error,
        },
        "overrides": overrides_of(chosen),
        "fragment": fragment(chosen),
    }


def _row_dict(row: Row) -> dict[str, Any]:
    names = (
        "strategy", "topology", "degree", "mean_degree", "gap", "contraction", "lr_proved", "lr_stable", "bytes",
        "mean_bytes", "error", "iterations", "iteration_seconds", "seconds",
    )  # fmt: skip
    values = {name: getattr(row, name) for name in names} | {"stable": row.is_stable}
    infinite = [key for key, value in values.items() if isinstance(value, float) and not np.isfinite(value)]
    return values | dict.fromkeys(infinite)


def _choices(found: Plan) -> Iterator[dict[str, Any]]:
    """I or II on each graph, and by how much: 0.1 is an error 10 % below the other strategy's."""
    for row in found.rows:
        other = found.other_strategy(row)
        if other is not None:
            ahead = planner.advantage(row.prediction, other.prediction)
            if ahead.share > 0 or (ahead.share == 0 and row.strategy == "II"):
                choice = {"topology": row.topology, "strategy": row.strategy, "either": not ahead.is_clear}
                yield choice | {"advantage": ahead.share, "uncertainty": ahead.uncertainty}
