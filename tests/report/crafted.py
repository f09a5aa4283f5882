"""Runs made up for tests: a curve per weights, topology, strategy and seed, in memory or as `dgt compare` writes it."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgt.commands.compare import job as comparison
from dgt.config import Config, StrategyConfig, TopologyConfig, WeightsConfig
from dgt.runs.run import FINISHED, SILENT, Run

LEAST_SQUARES = ("loss", "grad_norm", "distance", "consensus")
IMAGES = ("loss", "accuracy", "average_accuracy", "consensus")


def config(weights: str = "A", topology: str = "ring", strategy: str = "II") -> Config:
    return dataclasses.replace(
        Config(),
        weights=WeightsConfig(name=weights),
        topology=TopologyConfig(name=topology),
        strategy=StrategyConfig(name=strategy),
    )


def run(
    weights: str = "A",
    topology: str = "ring",
    strategy: str = "II",
    seed: int = 0,
    metrics: Sequence[str] = LEAST_SQUARES,
    until: int = 300,
    **changes: object,
) -> Run:
    """A run whose values fall with the iterations to a level that depends on strategy and seed."""
    random = np.random.default_rng(seed)
    level = 0.2 + 0.1 * (strategy == "I") + 0.01 * random.random()
    records = []
    for iteration in range(0, until + 1, 15):
        value = level * (1 + 100 * 0.9**iteration) * (1 + 0.1 * random.random())
        records.append({"iteration": iteration, **dict.fromkeys(metrics, value)})
    settings = config(weights, topology, strategy).to_dict() | {"seed": seed} | changes
    name = f"{weights}-{topology}-{strategy}-{seed}"
    return Run(Path(name), name, settings, records, state=FINISHED if until == 300 else SILENT)


def runs(
    weights: str = "A", topologies: Sequence[str] = ("ring", "tailored"), seeds: int = 3, **more: object
) -> list[Run]:
    return [
        run(w, topology, strategy, seed, **more)  # type: ignore[arg-type]
        for w in weights
        for topology in topologies
        for strategy in ("I", "II")
        for seed in range(seeds)
    ]


def compare_directory(directory: Path, found: Sequence[Run]) -> Path:
    """These runs as `dgt compare` would have left them."""
    cells = {run.label: config(*(run.choice(key) for key in ("weights", "topology", "strategy"))) for run in found}
    directory.mkdir(parents=True)
    comparison.start(directory, list(cells.values()), sorted({int(run.choice("seed")) for run in found}))
    with (directory / "compare.csv").open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for run in found:
            head = [run.choice(key) for key in ("weights", "topology", "strategy", "seed")]
            for record in run.records:
                values = [repr(record[name]) if name in record else "" for name in comparison.COLUMNS]
                writer.writerow([*head, record["iteration"], *values])
    return directory
