"""The answer of `dgt plan` as plain values, for --json and for `words.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dgt import problems
from dgt.commands.plan.examining import Centralised, Row, is_quadratic, momentum_of
from dgt.commands.plan.ranking import Plan, is_open
from dgt.config import AUTO, Config
from dgt.config.fragment import fragment, overrides_of
from dgt.config.schema import LR
from dgt.network import plan as planner
from dgt.network import stability
from dgt.training.step_size import Found


def as_dict(found: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    best, settings, weights = found.best, found.settings, found.weights
    other = best.other_strategy(found.rows)
    chosen = best.config
    run = advised(found)
    return {
        "weights": chosen.weights.name,
        "nodes": int(weights.size),
        "uniform": bool(np.ptp(weights) < 1e-12),
        "problem": chosen.problem.name,
        "lr": float(chosen.lr) if found.found and is_quadratic(chosen) else best.dynamics.lr,
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
        "ddp": _ddp(found.ddp),
        "choices": list(_choices(found)),
        "left_out": found.left_out,
        "recommendation": {
            "strategy": best.strategy,
            "topology": best.topology,
            "algorithm": best.algorithm,
            "wire": chosen.wire,
            "local_steps": chosen.local_steps,
            "either": other is not None and is_open(best, other),
            "best_lr": found.best_lr,
            "best_lr_error": found.best_lr_error,
        },
        # seeds are for the plan and for dgt compare, not for the run that is recommended
        "overrides": [word for word in overrides_of(run) if not word.startswith("seeds=")],
        "fragment": fragment(run),
    }


def advised(found: Plan) -> Config:
    """The run that is recommended, with lr=auto where nobody has said a step and the problem does not know one.

    Where least squares stands in for the problem, and its step had to be reduced, the problem's own is as well.
    """
    config = found.best.config
    if found.lr_is_given or found.found is not None or is_quadratic(config):
        return config
    usual, share = config.usual_lr, found.best.dynamics.share
    if problems.class_of(config).usual_lr == LR:
        return dataclasses.replace(config, lr=AUTO)
    return config if share == 1 else dataclasses.replace(config, lr=float(f"{usual * share:.1e}"))


def _trials(found: Found | None) -> dict[str, Any]:
    """Of lr=find; the loss is None where a trial diverged."""
    if found is None:
        return {}
    trials = [dataclasses.asdict(trial) for trial in found.trials]
    return {"trials": [trial if np.isfinite(trial["loss"]) else {**trial, "loss": None} for trial in trials]}


def _row_dict(row: Row) -> dict[str, Any]:
    config, candidate, dynamics = row.config, row.candidate, row.dynamics
    values = {
        "strategy": row.strategy,
        "algorithm": row.algorithm,
        "topology": row.topology,
        "wire": config.wire,
        "local_steps": config.local_steps,
        "momentum": momentum_of(config)[0],
        "lr": dynamics.lr,
        "reduced": row.is_reduced,
        "exact": dynamics.system.is_exact,
        "degree": candidate.degree,
        "mean_degree": candidate.mean_degree,
        "partners": candidate.partners,
        "gap": 1.0 - dynamics.rho,
        "contraction": row.contraction,
        "lr_proved": row.lr_proved,
        "lr_stable": dynamics.stable,
        "bytes": candidate.bytes,
        "mean_bytes": candidate.mean_bytes,
        "error": row.error,
        "consensus": row.consensus,
        "iterations": row.iterations,
        "iteration_seconds": row.iteration_seconds,
        "seconds": row.seconds,
        "stable": row.is_stable,
        "rounding": row.prediction.is_rounding,
    }
    return _finite(values)


def _ddp(ddp: Centralised) -> dict[str, Any]:
    names = ("lr", "error", "iterations", "bytes", "iteration_seconds", "seconds")
    return _finite({name: getattr(ddp, name) for name in names} | {"lr_stable": ddp.stable})


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """With None for what is not finite, which JSON does not know."""
    infinite = [key for key, value in values.items() if isinstance(value, float) and not np.isfinite(value)]
    return {**values, **dict.fromkeys(infinite)}


def _choices(found: Plan) -> Iterator[dict[str, Any]]:
    """I or II for each combination, and by how much: 0.1 is an error 10 % below the other strategy's."""
    for place, row in enumerate(found.rows):
        other = row.other_strategy(found.rows)
        if other is not None and place < found.rows.index(other):
            ahead = planner.advantage(row.prediction, other.prediction)
            yield {
                "topology": row.topology,
                "algorithm": row.algorithm,
                "wire": row.config.wire,
                "local_steps": row.config.local_steps,
                "strategy": row.strategy,
                "either": is_open(row, other),
                "advantage": ahead.share,
                "uncertainty": ahead.uncertainty,
                # for larger networks the contraction is an estimate, too rough for a comparison
                "without_noise": min((row, other), key=lambda one: one.contraction).strategy
                if found.weights.size <= stability.EXACT_NODES
                else None,
            }
