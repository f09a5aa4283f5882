"""`dgt compare`: Strategy I against II over weights, topologies and seeds: table, CSV, figure."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dgt.commands.base import Command, choices
from dgt.errors import ConfigError
from dgt.processes import environment

if TYPE_CHECKING:
    from dgt.config import Config

log = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> None:
    """Both strategies on every cell; ranks are started once per network size."""
    from dgt import problems
    from dgt.commands.compare import job, resuming
    from dgt.config import compose as composing
    from dgt.config import effect
    from dgt.launching.launch import JoinOptions, start_ranks
    from dgt.report import compare as compare_report
    from dgt.runs import layout
    from dgt.runs.claiming import claim, refuse_results
    from dgt.runs.holding import held
    from dgt.runs.mirrors import check_logger

    here = environment.placement()
    if here.launcher != "alone":
        raise ConfigError(f"dgt compare starts its own ranks, for every network size; run it outside {here.launcher}")
    effect.refuse("compare", options.overrides)
    for item in composing.parse(options.overrides):
        if item.is_sweep_override() and item.key_or_group not in ("weights", "topology"):
            raise ConfigError(
                f"{item.input_line}: dgt compare varies weights and topology; give one {item.key_or_group}"
            )
    configs: list[Config] = []
    said: dict[str, None] = {}
    for words in composing.expand(options.overrides):
        config, notes = effect.on_compare(composing.compose(words))
        configs.append(config)
        said |= dict.fromkeys(notes)
    check_logger(configs[0])
    goes_on = resuming.goes_on(configs[0])
    configs = [dataclasses.replace(config, resume="none") for config in configs]
    for note in said:
        log.info(note)
    seeds = configs[0].seeds
    job.check(configs, seeds, here)
    problems.fetch(configs[0], environment.cache_dir(), log.info)
    cells = job.both_strategies(configs)
    groups = job.by_network_size(cells, here)
    directory = Path(claim(configs[0].run_dir, "compare", goes_on))
    path = str(directory / layout.COMPARISON)
    with held(directory, log.info):
        if not goes_on:
            refuse_results(directory)  # another process may have used the directory before the lock was taken
        done = resuming.finished(directory, cells, seeds)
        job.start(directory, cells, seeds)
        for nodes, group in groups.items():
            todo = job.CompareJob(group, seeds, path, done)
            if todo.runs:
                start_ranks(todo, nodes, JoinOptions.from_config(group[0]))
    results = compare_report.runs_of(directory)
    rows = compare_report.summarise(results)
    compare_report.write(rows, results, directory)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(compare_report.text(rows, results, len(seeds)))
    print(f"figure  {directory / layout.FIGURES / 'compare.png'}\ndata    {path}")


COMMAND = Command(
    name="compare",
    help="Strategy I against II over weights x topologies x seeds: table, CSV, figure",
    example="dgt compare weights=A,B topology=ring,grid,exponential,tailored seeds=10",
    run=run,
    settings=choices,
    order=3,
    composes=True,
    starts_ranks=True,
)
