"""`dgt plan`: for given weights, which strategy on which graph; from overrides to a ranked list and a config for it.

    dgt plan weights=A                                        # the usual graphs, both strategies
    dgt plan weights=A topology=ring,tailored budget.degree=6 parameters=11000000 bandwidth=1.2 latency=50 compute=100
    dgt plan weights=A topology=file topology.path=one.txt,two.txt

The mathematics is in `network/plan.py`, one network is examined in `candidates.py`, the words are in `words.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dgt import problems
from dgt.algorithms import GradientTracking
from dgt.commands.doctor import examination
from dgt.commands.plan.candidates import (
    BudgetConfig,
    Plan,
    PlanConfig,
    Row,
    affordable,
    decided,
    examine,
    model_numbers,
    momentum_of,
    quadratic_of,
    sooner,
    step_of,
    vector_bytes,
)
from dgt.config import AUTO, STRATEGIES, Config
from dgt.config import compose as composing
from dgt.config.checks import build, close_to
from dgt.config.fragment import fragment, overrides_of
from dgt.config.schema import LR
from dgt.config.settings import documented
from dgt.errors import ConfigError
from dgt.network import plan as planner
from dgt.network.topologies import PROPOSED
from dgt.processes.placement import Placement
from dgt.runs.sinks.progress import Progress
from dgt.training.setup import network_of
from dgt.training.step_size import Found

BOTH = ("strategy=I,II", "strategy=II,I")  # the same as no strategy at all
QUICK_NODES = 100  # fewer nodes take so little time that no progress is shown


def settings() -> list[str]:
    """'key: default   # meaning' for --help."""
    return [f"budget.{line}" for line in documented(BudgetConfig)] + documented(PlanConfig)


def plan(overrides: Sequence[str]) -> Plan:
    """The ranked candidates for these overrides."""
    settings, rest = split(overrides)
    configs, named = candidates(rest)
    first = next(iter(configs.values()))
    weights, _ = network_of(first, Placement("alone"), as_drawn=True)
    if weights.size == 1:
        raise ConfigError("dgt plan: a network of one node has nothing to choose")
    vectors = len(GradientTracking.messages)  # per exchange
    bytes_per_neighbour = vectors * vector_bytes(first, model_numbers(first, settings, weights))
    if settings.measure:
        talk = examination.measured(first.transport)
        settings = dataclasses.replace(settings, measure=False, latency=talk.microseconds, bandwidth=talk.gigabytes)
    graphs, left_out = affordable(configs, settings.budget, bytes_per_neighbour, named)
    strategies = [first.strategy.name] if _chosen(rest, "strategy") else STRATEGIES
    quadratic = quadratic_of(first, int(weights.size))
    cells = [(label, *graph, name) for label, graph in graphs.items() for name in strategies]
    progress = Progress(len(cells), "plan", speaks=weights.size > QUICK_NODES, lines=1, unit="candidate")
    rows = []
    for number, (label, config, graph, name) in enumerate(cells, start=1):
        config = dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, name=name))
        rows.append(examine(label, config, graph, weights, quadratic, settings, bytes_per_neighbour))
        progress.update(number, {})
    progress.close()
    return decided(rows, settings, weights, left_out, quadratic)


def split(overrides: Sequence[str]) -> tuple[PlanConfig, list[str]]:
    """Settings of the plan itself, and overrides of the runs that are planned."""
    own: dict[str, Any] = {}
    rest, top = [], [field.name for field in dataclasses.fields(PlanConfig)]
    config_keys = {field.name for field in dataclasses.fields(Config)}
    for override in overrides:
        key = override.partition("=")[0]
        section, _, name = key.partition(".")
        if override in BOTH:
            continue
        if section not in top:
            close = close_to(section, top)
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


def candidates(overrides: Sequence[str]) -> tuple[dict[str, Config], bool]:
    """A config for every graph by its name in the table, and whether the user named the graphs.

    Settings of a graph go to those that have them; several values of one make several graphs.
    """
    graph_settings = [word for word in overrides if word.startswith("topology.")]
    rest = [word for word in overrides if word not in graph_settings]
    for item in composing.parse(rest):
        if item.is_sweep_override() and item.key_or_group != "topology":
            raise ConfigError(f"{item.key_or_group}: dgt plan varies topology; give one {item.key_or_group}")
    named = _chosen(rest, "topology")
    runs = composing.expand(rest if named else [*rest, f"topology={','.join(PROPOSED)}"])
    taken: set[str] = set()
    configs: dict[str, Config] = {}
    for run in runs:
        fitting = [word for word in graph_settings if _belongs(word, run)]
        taken.update(fitting)
        for chosen in composing.expand(fitting):
            config = composing.compose([*run, *chosen])
            varied = [word.removeprefix("topology.") for word in chosen if word not in fitting]
            configs[" ".join([config.topology.name, *varied])] = config
    for word in graph_settings:
        if word not in taken:
            composing.compose([*runs[-1], *composing.expand([word])[0]])  # raises the error for this override
    for config in configs.values():
        check(config)
    return configs, named


def check(config: Config) -> None:
    """Raise for settings for which the prediction does not hold."""
    config.check_lr_is_known("plan")
    base = config.algorithm.values.get("base")
    if base is not None and config.problem.name == "least_squares":  # for others it only stands in
        raise ConfigError(f"algorithm.base={base}: dgt plan predicts gradient tracking, with momentum or without it")
    if config.algorithm.name != "gradient_tracking":
        raise ConfigError(f"algorithm={config.algorithm.name}: dgt plan is about gradient_tracking; leave it out")
    if config.local_steps != 1:
        raise ConfigError(f"local_steps={config.local_steps}: dgt plan predicts one exchange per step; leave it out")
    for key, value, usual in (
        ("schedule", config.schedule.name, "constant"), ("clip", config.clip, None), ("epochs", config.epochs, None),
        ("stop.when", config.stop.when, None),
    ):  # fmt: skip
        if value != usual and config.problem.name == "least_squares":  # for others it only stands in
            words = "dgt plan predicts so many iterations of the same step, gradients as they are"
            raise ConfigError(f"{key}={value}: {words}; leave it out")
    if config.iterations < 1:
        raise ConfigError(f"iterations={config.iterations}: dgt plan needs at least 1")


def _chosen(overrides: Sequence[str], group: str) -> bool:
    return any(item.key_or_group == group for item in composing.parse(overrides))


def _belongs(setting: str, run: Sequence[str]) -> bool:
    key = setting.partition("=")[0].partition(".")[2]
    known = composing.keys_of("topology", run)
    return key in known or "_target_" in known


def as_dict(found: Plan) -> dict[str, Any]:
    """The plan as plain values, for --json and for `words.text`."""
    best, settings, weights = found.best, found.settings, found.weights
    other = best.other_strategy(found.rows)
    chosen = best.config
    return {
        "weights": chosen.weights.name,
        "nodes": int(weights.size),
        "uniform": bool(np.ptp(weights) < 1e-12),
        "problem": chosen.problem.name,
        "lr": step_of(chosen),
        "noise": found.noise,
        "momentum": momentum_of(chosen)[0],
        "optimizer": chosen.algorithm.values.get("base") or "momentum" * bool(chosen.algorithm.values.get("momentum")),
        **_trials(found.found),
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
            "either": other is not None and _is_open(best, other),
            "best_lr": found.best_lr,
            "best_lr_error": found.best_lr_error,
        },
        # seeds are for the plan and for dgt compare, not for the run that is recommended
        "overrides": [word for word in overrides_of(advised(chosen)) if not word.startswith("seeds=")],
        "fragment": fragment(advised(chosen)),
    }


def advised(config: Config) -> Config:
    """With lr=auto where nobody has said a step, and the problem does not know one."""
    knows = problems.class_of(config).usual_lr != LR or config.problem.name == "least_squares"
    return config if knows or config.lr != config.usual_lr else dataclasses.replace(config, lr=AUTO)


def _trials(found: Found | None) -> dict[str, Any]:
    """Of lr=find; the loss is None where a trial diverged."""
    if found is None:
        return {}
    trials = [dataclasses.asdict(trial) for trial in found.trials]
    return {"trials": [trial if np.isfinite(trial["loss"]) else {**trial, "loss": None} for trial in trials]}


def _row_dict(row: Row) -> dict[str, Any]:
    names = (
        "strategy", "topology", "degree", "mean_degree", "gap", "contraction", "lr_proved", "lr_stable", "bytes",
        "mean_bytes", "error", "consensus", "iterations", "iteration_seconds", "seconds",
    )  # fmt: skip
    values = {name: getattr(row, name) for name in names}
    values |= {"stable": row.is_stable, "rounding": row.prediction.is_rounding}
    infinite = [key for key, value in values.items() if isinstance(value, float) and not np.isfinite(value)]
    return values | dict.fromkeys(infinite)


def _is_open(row: Row, other: Row) -> bool:
    """Whether neither strategy is clearly the better one."""
    return sooner(row, other) is None and not planner.advantage(row.prediction, other.prediction).is_clear


def _choices(found: Plan) -> Iterator[dict[str, Any]]:
    """I or II on each graph, and by how much: 0.1 is an error 10 % below the other strategy's."""
    for row in found.rows:
        other = row.other_strategy(found.rows)
        if other is not None and found.rows.index(row) < found.rows.index(other):
            ahead = planner.advantage(row.prediction, other.prediction)
            yield {
                "topology": row.topology,
                "strategy": row.strategy,
                "either": _is_open(row, other),
                "advantage": ahead.share,
                "uncertainty": ahead.uncertainty,
                # for larger networks the contraction is an estimate, too rough for a comparison
                "without_noise": min((row, other), key=lambda one: one.contraction).strategy
                if found.weights.size <= planner.EXACT_NODES
                else None,
            }
