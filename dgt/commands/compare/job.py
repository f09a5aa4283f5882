"""Strategy I against Strategy II over weights x topologies x seeds, on ranks that stay up between the cells.

Where a problem can stack its seeds they run side by side: they share graph and mixing row, so their parameters
travel in the same messages, and ten seeds cost little more than one. The numbers are those of ten separate runs.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dgt import problems
from dgt.checks import ConfigError
from dgt.config import Config, StrategyConfig
from dgt.node import Node
from dgt.placement import Placement
from dgt.training.logger import Progress
from dgt.training.metrics import Metrics, NodeMetrics
from dgt.training.recording import versions
from dgt.training.setup import network_of, shared_network
from dgt.training.trainer import train

COLUMNS = (
    "loss", "grad_norm", "distance", "accuracy", "average_accuracy", "test_loss", "consensus", "tracking_residual",
    "evaluation_share",
)  # fmt: skip
HEADER = ("weights", "topology", "strategy", "seed", "iteration", *COLUMNS)


@dataclass(frozen=True, slots=True)
class CompareJob:
    """The cells of one network size; rows are appended to `csv_path` by rank 0."""

    cells: list[Config]
    seeds: list[int]
    csv_path: str

    def run(self, node: Node) -> None:
        runs = [(config, seeds) for config in self.cells for seeds in self._groups_of_seeds(config)]
        for number, (config, seeds) in enumerate(runs, start=1):
            label = f"[{number}/{len(runs)}] {cell_name(config)} {config.strategy.name}"
            if len(seeds) < len(self.seeds):
                label += f" seed {seeds[0]}"
            recorder = Recorder(config, seeds, Progress(config.iterations, label, speaks=node.is_main, lines=1))
            config = dataclasses.replace(config, seed=seeds[0])
            weights, graph = shared_network(config, node)
            train(config, node, weights, graph, recorder.record, seeds)
            recorder.progress.close()
            if node.is_main:
                append_rows(self.csv_path, recorder.rows)

    def _groups_of_seeds(self, config: Config) -> list[list[int]]:
        return [self.seeds] if problems.stacks_seeds(config) else [[seed] for seed in self.seeds]


@dataclass(slots=True)
class Recorder:
    """The rows of one run, one per seed and evaluation."""

    config: Config
    seeds: list[int]
    progress: Progress
    rows: list[list[object]] = field(default_factory=list)

    def record(self, iteration: int, metrics: Metrics, nodes: NodeMetrics) -> None:
        cell = [self.config.weights.name, self.config.topology.name, self.config.strategy.name]
        for k, seed in enumerate(self.seeds):
            values = [repr(float(metrics[name][k])) if name in metrics else "" for name in COLUMNS]
            self.rows.append([*cell, seed, iteration, *values])
        self.progress.update(iteration, {name: float(metrics[name].mean()) for name in COLUMNS if name in metrics})


def cell_name(config: Config) -> str:
    return f"{config.weights.name} {config.topology.name}"


def both_strategies(configs: Sequence[Config]) -> list[Config]:
    """Each config once with Strategy I and once with II."""
    return [
        dataclasses.replace(config, strategy=StrategyConfig(name=name)) for config in configs for name in ("I", "II")
    ]


def by_network_size(configs: Sequence[Config], placement: Placement) -> dict[int, list[Config]]:
    """Cells grouped by number of nodes: ranks can stay up within a group."""
    groups: dict[int, list[Config]] = {}
    for config in configs:
        weights, _ = network_of(config, placement, as_drawn=True)
        groups.setdefault(int(weights.size), []).append(config)
    return groups


def check(configs: Sequence[Config], seeds: Sequence[int], placement: Placement) -> None:
    """Find what can be wrong before the first run; cells are told apart by the names of weights and topology."""
    names = [cell_name(config) for config in configs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice}: two cells of this name; compare them in runs of their own")
    for config in configs:
        # shards, and with them weights=data_size, may depend on the seed
        for seed in seeds if not problems.stacks_seeds(config) else seeds[:1]:
            weights, _ = network_of(dataclasses.replace(config, seed=seed), placement, as_drawn=True)
            problems.check(config, weights)


def start(directory: Path, cells: Sequence[Config], seeds: list[int]) -> None:
    """config.yaml with every cell, environment.json, and the head of compare.csv."""
    plan = {"seeds": seeds, "cells": [cell.to_dict() for cell in cells]}
    (directory / "config.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    (directory / "environment.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
    with (directory / "compare.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(HEADER)


def append_rows(path: str, rows: list[list[object]]) -> None:
    with Path(path).open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
