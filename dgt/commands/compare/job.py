"""Strategy I against Strategy II over weights x topologies x seeds, on ranks that are started once per network size.

Where a problem can stack its seeds they run side by side: they share graph and mixing row, so their parameters
travel in the same messages, and ten seeds cost little more than one. The numbers are those of ten separate runs.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dgt import problems
from dgt.commands.compare.resuming import Done, cell_of
from dgt.config import Config, StrategyConfig
from dgt.config.files import write
from dgt.errors import ConfigError
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.runs import layout
from dgt.runs.folders import Once
from dgt.runs.logger import LONGEST_WAIT
from dgt.runs.measures import COLUMNS, Measure, Metrics, NodeMetrics, measure_of
from dgt.runs.mirrors import Mirrors
from dgt.runs.sink import RunInfo
from dgt.runs.sinks.progress import Progress
from dgt.training import schedules
from dgt.training.guard import Guard
from dgt.training.recording import versions
from dgt.training.setup import network_of
from dgt.training.trainer import train

log = logging.getLogger(__name__)

RUN = ("weights", "topology", "strategy", "seed", "iteration")
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class CompareJob:
    """The cells of one network size; rows are appended to `csv_path` by rank 0, but of those that are done."""

    cells: list[Config]
    seeds: list[int]
    csv_path: str
    done: Done = frozenset()

    @property
    def runs(self) -> list[tuple[Config, list[int]]]:
        """What is to be done: configs, and the seeds that run side by side."""
        cells = [(config, seeds) for config in self.cells for seeds in self._groups_of_seeds(config)]
        left = (
            (config, [seed for seed in seeds if (*cell_of(config), seed) not in self.done]) for config, seeds in cells
        )
        return [(config, seeds) for config, seeds in left if seeds]

    def run(self, node: Node) -> None:
        runs = self.runs
        for number, (config, seeds) in enumerate(runs, start=1):
            label = f"[{number}/{len(runs)}] {cell_name(config)} {config.strategy.name}"
            if len(seeds) < len(self.seeds):
                label += f" seed {seeds[0]}"
            mirrors = mirrors_of(config, seeds, Path(self.csv_path).parent, speaks=node.is_main)
            progress = Progress(config.iterations, label, speaks=node.is_main, lines=1)
            recorder = Recorder(config, seeds, progress, mirrors)
            config = dataclasses.replace(config, seed=seeds[0])
            weights, drawn = network_of(config, node.placement, as_drawn=True)
            train(config, node, weights, drawn, Guard(recorder.record), seeds)
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
    mirrors: list[Mirrors]
    rows: list[Row] = field(default_factory=list)
    final: list[Row] = field(default_factory=list)
    """The last record of every seed."""

    def __post_init__(self) -> None:
        for mirror in self.mirrors:
            mirror.start(-1)

    def record(self, iteration: int, metrics: Metrics, nodes: NodeMetrics) -> None:
        names = [name for name in metrics if _has_column(measure_of(name))]
        taken = next((name for name in names if name in RUN), None)
        if taken is not None:
            words = (
                f"a metric called {taken}; {layout.COMPARISON} has another column of this name, rename it in measure()"
            )
            raise ConfigError(f"problem={self.config.problem.name}: {words}")
        cell = (self.config.weights.name, self.config.topology.name, self.config.strategy.name)
        self.final = []
        for k, seed in enumerate(self.seeds):
            values = {name: float(metrics[name][k]) for name in names}
            written = {name: repr(value) for name, value in values.items()}
            run = dict(zip(RUN, (*cell, seed, iteration), strict=True))
            self.rows.append({**run, **written})
            self.final.append({**run, **values})
            self.mirrors[k].record(iteration, values, None)
        self.progress.update(iteration, {name: float(metrics[name].mean()) for name in names})

    def close(self) -> None:
        self.progress.close()
        for mirror, final in zip(self.mirrors, self.final, strict=True):
            mirror.finish(final)
        until = time.monotonic() + min(LONGEST_WAIT, self.config.timeout / 2)
        for mirror in self.mirrors:
            mirror.close(max(0.0, until - time.monotonic()))


def mirrors_of(config: Config, seeds: Sequence[int], directory: Path, speaks: bool) -> list[Mirrors]:
    """The sinks of one run, for every seed its own: tensorboard/A-ring-II/seed-0 and so on; none but on rank 0."""
    cell, tell = f"{config.weights.name}-{config.topology.name}-{config.strategy.name}", Once(log.info)
    made = []
    for seed in seeds if speaks else ():
        values = dataclasses.replace(config, seed=seed).to_dict()
        run = RunInfo(directory, values, cell_name(config), config.iterations, part=f"{cell}/seed-{seed}")
        made.append(Mirrors(config.logger, run, tell))
    return made


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
    """Raise for mistakes before the first run; the names of weights and topology must identify a cell."""
    names = [cell_name(config) for config in configs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice}: two cells of this name; compare them in runs of their own")
    for config in configs:
        # shards, and with them weights=data_size, may depend on the seed
        for seed in seeds if not problems.stacks_seeds(config) else seeds[:1]:
            weights, _ = network_of(dataclasses.replace(config, seed=seed), placement, as_drawn=True)
            problems.check(config, weights)
        config.iterations = problems.iterations_of(config, int(weights.size))
        config.check_targets()
        config.check_lr_is_known("compare")
        schedules.of(config)


def start(directory: Path, cells: Sequence[Config], seeds: list[int]) -> None:
    """config.yaml with every cell, environment.json, and the head of compare.csv unless it is there."""
    plan = {"seeds": seeds, "cells": [cell.to_dict() for cell in cells]}
    write(directory / layout.CONFIG, yaml.safe_dump(plan, sort_keys=False))
    write(directory / layout.ENVIRONMENT, json.dumps(versions(), indent=2) + "\n")
    with (
        contextlib.suppress(FileExistsError),
        (directory / layout.COMPARISON).open("x", newline="", encoding="utf-8") as file,
    ):
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
