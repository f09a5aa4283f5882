"""Strategy I against Strategy II over weights x topologies x seeds, on ranks that stay up between the cells.

All seeds of a cell run side by side: they share graph and mixing row, so their parameters travel in the same
messages, and ten seeds cost little more than one. The numbers are those of ten separate runs.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from dgt.config import Config, StrategyConfig
from dgt.training.logger import Progress
from dgt.training.metrics import Metrics
from dgt.training.setup import network_of
from dgt.training.trainer import train
from dgt.world import Node, Placement

COLUMNS = ("loss", "grad_norm", "distance", "consensus", "tracking_residual")
HEADER = ("weights", "topology", "strategy", "seed", "iteration", *COLUMNS)


@dataclass(frozen=True, slots=True)
class CompareJob:
    """The cells of one network size; rows are appended to `csv_path` by rank 0."""

    cells: list[Config]
    seeds: list[int]
    csv_path: str

    def run(self, node: Node) -> None:
        for number, config in enumerate(self.cells, start=1):
            label = f"[{number}/{len(self.cells)}] {cell_name(config)} {config.strategy.name}"
            progress = Progress(config.iterations, label, speaks=node.is_main, lines=1)
            rows: list[list[object]] = []
            weights, graph = network_of(config, node.placement)

            def record(iteration: int, metrics: Metrics, config: Config = config, rows: list = rows,
                       progress: Progress = progress) -> None:  # fmt: skip
                for k, seed in enumerate(self.seeds):
                    values = [repr(float(metrics[name][k])) if name in metrics else "" for name in COLUMNS]
                    rows.append(
                        [
                            config.weights.name,
                            config.topology.name,
                            config.strategy.name,
                            seed,
                            iteration,
                            *values,
                        ]
                    )
                progress.update(iteration, {name: float(metrics[name].mean()) for name in COLUMNS if name in metrics})

            train(config, node, weights, graph, record, self.seeds)
            progress.close()
            if node.is_main:
                append_rows(self.csv_path, rows)


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
        weights, _ = network_of(config, placement)
        groups.setdefault(int(weights.size), []).append(config)
    return groups


def start(directory: Path, cells: Sequence[Config], seeds: list[int]) -> None:
    """config.yaml with every cell, and the head of compare.csv."""
    plan = {"seeds": seeds, "cells": [cell.to_dict() for cell in cells]}
    (directory / "config.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    with (directory / "compare.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(HEADER)


def append_rows(path: str, rows: list[list[object]]) -> None:
    with Path(path).open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
