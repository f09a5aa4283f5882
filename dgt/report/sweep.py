"""The line of a run in the table that ends a sweep: dgt train -m lr=0.01,0.02 strategy=I,II."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgt.errors import ConfigError
from dgt.report import aggregate
from dgt.runs import measures
from dgt.runs.reader import read

NAMES = ("weights", "topology", "strategy", "seed")


def row(summary: Mapping[str, Any], swept: Mapping[str, str]) -> dict[str, str]:
    """The run's name, the swept settings, its metrics over the last fifth of the iterations, its directory."""
    names = {key: str(summary[key]) for key in NAMES} | {key: swept[key] for key in swept if key not in NAMES}
    means = dict(summary["last_fifth"]) | _own_metrics(Path(str(summary["run_dir"])))
    return names | {key: f"{value:.4g}" for key, value in means.items()} | {"run": str(summary["run_dir"])}


def _own_metrics(run_dir: Path) -> dict[str, float]:
    """Metrics of a user's own problem: those that are not in dgt's table of metrics."""
    try:
        run = read(run_dir)
    except ConfigError:  # the run directory was deleted meanwhile
        return {}
    own = [name for name in run.metrics if name not in measures.BY_METRIC]
    return {name: aggregate.late_mean(run, name) for name in own}
