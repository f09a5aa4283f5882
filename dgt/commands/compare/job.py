"""Strategy I against Strategy II over weights x topologies x seeds, on ranks that stay up between the cells.

Where a problem can stack its seeds they run side by side: they share graph and mixing row, so their parameters
travel in the same messages, and ten seeds cost little more than one. The numbers are those of ten separate runs.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dgt import problems
from dgt.config import Config, StrategyConfig
from dgt.config.files import write
from dgt.errors import ConfigError
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.runs import layout
from dgt.runs.logger import Progress
from dgt.runs.measures import COLUMNS, Measure, Metrics, NodeMetrics, measure_of
from dgt.training.recording import versions
from dgt.training.setup import network_of, shared_network
from dgt.training.trainer import train

RUN = ("weights", "topology", "strategy", "seed", "iteration")
Row = dict[str, object]


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
            boards = Boards.of_cell(Path(self.csv_path).parent, config, seeds, speaks=node.is_main)
            progress = Progress(config.iterations, label, speaks=node.is_main, lines=1)
            recorder = Recorder(config, seeds, progress, boards)
            config = dataclasses.replace(config, seed=seeds[0])
            weights, graph = shared_network(config, node)
            train(config, node, weights, graph, recorder.record, seeds)
            recorder.close()
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
    boards: Boards
    rows: list[Row] = field(default_factory=list)

    def record(self, iteration: int, metrics: Metrics, nodes: NodeMetrics) -> None:
        names = [name for name in metrics if _has_column(measure_of(name))]
        taken = next((name for name in names if name in RUN), None)
        if taken is not None:
            words = (
                f"a metric called {taken}; {layout.COMPARISON} has another column of this name, rename it in measure()"
            )
            raise ConfigError(f"problem={self.config.problem.name}: {words}")
        cell = (self.config.weights.name, self.config.topology.name, self.config.strategy.name)
        for k, seed in enumerate(self.seeds):
            values = {name: float(metrics[name][k]) for name in names}
            written = {name: repr(value) for name, value in values.items()}
            self.rows.append({**dict(zip(RUN, (*cell, seed, iteration), strict=True)), **written})
            self.boards.write(k, iteration, values)
        self.progress.update(iteration, {name: float(metrics[name].mean()) for name in names})

    def close(self) -> None:
        self.progress.close()
        self.boards.close()


@dataclass(slots=True)
class Boards:
    """TensorBoard's mirror of a run, a writer per seed; none without logger=tensorboard, and on all ranks but 0."""

    writers: list[Any] = field(default_factory=list)

    @classmethod
    def of_cell(cls, directory: Path, config: Config, seeds: Sequence[int], speaks: bool) -> Boards:
        """tensorboard/A-ring-II/seed-0 and so on, in this directory."""
        if config.logger.name != "tensorboard" or not speaks:
            return cls()
        from torch.utils.tensorboard import SummaryWriter

        cell = f"{config.weights.name}-{config.topology.name}-{config.strategy.name}"
        boards = cls()
        with boards.may_fail():
            boards.writers = [
                SummaryWriter(str(directory / layout.TENSORBOARD / cell / f"seed-{seed}")) for seed in seeds
            ]
        return boards

    def write(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        """The metrics of one of the seeds."""
        with self.may_fail():
            for name, value in values.items() if self.writers else ():
                self.writers[number].add_scalar(name, value, iteration)

    def close(self) -> None:
        with self.may_fail():
            for writer in self.writers:
                writer.close()

    @contextlib.contextmanager
    def may_fail(self) -> Iterator[None]:
        """A mirror that cannot be written does not end the comparison."""
        try:
            yield
        except OSError as error:
            self.writers = []
            print(f"dgt: tensorboard: {error.strerror or error}; going on without it", file=sys.stderr, flush=True)


def _has_column(measure: Measure) -> bool:
    return measure.recorded and not measure.of_all_seeds


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
    write(directory / layout.CONFIG, yaml.safe_dump(plan, sort_keys=False))
    write(directory / layout.ENVIRONMENT, json.dumps(versions(), indent=2) + "\n")
    with (directory / layout.COMPARISON).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow((*RUN, *COLUMNS))


def append_rows(path: str, rows: Sequence[Row]) -> None:
    """Add these rows; a metric that has no column yet gets one, empty in the rows before."""
    table = Path(path)
    with table.open(newline="", encoding="utf-8") as file:
        names = next(csv.reader(file))
    new = list(dict.fromkeys(name for row in rows for name in row if name not in names))
    if new:
        names += new
        _widen(table, names)
    with table.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, names, restval="").writerows(rows)


def _widen(table: Path, names: Sequence[str]) -> None:
    """The same rows with these columns; the file is the old one or the new one, never half of it."""
    wider = io.StringIO(newline="")
    with table.open(newline="", encoding="utf-8") as old:
        writer = csv.DictWriter(wider, names, restval="")
        writer.writeheader()
        writer.writerows(csv.DictReader(old))
    write(table, wider.getvalue())
