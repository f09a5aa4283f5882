"""The `dgt` command: `dgt train`, `dgt compare`, `dgt gaps`; each takes Hydra-style overrides and --help."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

from dgt import compose as composing
from dgt import launch, world
from dgt.config import Config, ConfigError
from dgt.launch import JoinOptions
from dgt.network.spectral import gap_table
from dgt.report import compare as compare_report
from dgt.report.tables import gap_lines, table
from dgt.training import compare as comparison
from dgt.training.jobs import TrainJob
from dgt.training.logger import check_logger, check_run_dir, default_run_dir
from dgt.training.setup import network_of

DEFAULT_SEEDS = 10


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors are one line on standard error and exit code 2 (bad input) or 1."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ConfigError as error:
        _leave(str(error), launch.EXIT_BAD_INPUT)
    except launch.LaunchError as error:
        _leave(str(error), error.code)
    except KeyboardInterrupt:
        _leave("interrupted", launch.EXIT_INTERRUPTED)


def _leave(reason: str, code: int) -> None:
    if world.placement().rank == 0:  # under a launcher every rank comes here with the same words
        word = "" if code == launch.EXIT_INTERRUPTED else "error: "
        print(f"dgt: {word}{reason}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def train(options: argparse.Namespace) -> None:
    """One run, or with -m one run per combination."""
    here = world.placement()
    if here.launcher != "alone":
        if options.multirun:
            raise ConfigError(f"-m: sweeps start their own ranks; run them outside {here.launcher}")
        launch.be_rank(lambda: _train_job(options.overrides), lambda job: JoinOptions.from_config(job.config))
        return
    runs = composing.expand(options.overrides) if options.multirun else [options.overrides]
    configs = [composing.compose(overrides) for overrides in runs]  # all mistakes before the first rank starts
    if options.multirun and any(config.run_dir for config in configs):
        raise ConfigError("run_dir: each run of a sweep has its own; leave it out")
    finished = []
    for config in configs:
        job = prepared(config)
        weights, _ = network_of(job.config, here)
        launch.start_ranks(job, int(weights.size), JoinOptions.from_config(job.config))
        finished.append(Path(str(job.config.run_dir)))
        if not options.json:
            print(f"run directory  {job.config.run_dir}")
    summaries = [
        json.loads((path / "summary.json").read_text(encoding="utf-8")) | {"run_dir": str(path)} for path in finished
    ]
    if options.json:
        print(json.dumps(summaries if options.multirun else summaries[0], indent=2))
    elif options.multirun:
        print(table([_sweep_row(summary) for summary in summaries]))


def _train_job(overrides: Sequence[str]) -> TrainJob:
    return prepared(composing.compose(overrides))


def prepared(config: Config) -> TrainJob:
    """Everything that can be wrong is found here, before any rank computes; rank 0 claims the run directory."""
    here = world.placement()
    network_of(config, here)
    if here.rank == 0:
        check_logger(config)
        config = dataclasses.replace(config, run_dir=config.run_dir or default_run_dir(config))
        check_run_dir(str(config.run_dir))
    return TrainJob(config)


def _sweep_row(summary: dict[str, typing.Any]) -> dict[str, str]:
    row = {key: str(summary[key]) for key in ("weights", "topology", "strategy", "seed")}
    return row | {key: f"{value:.4g}" for key, value in summary["last_fifth"].items()} | {"run": summary["run_dir"]}


def compare(options: argparse.Namespace) -> None:
    """Strategy I against II; ranks stay up between the cells of one network size."""
    here = world.placement()
    if here.launcher != "alone":
        raise ConfigError(f"dgt compare starts its own ranks, for every network size; run it outside {here.launcher}")
    seeds, overrides = _take_seeds(options.overrides)
    if any(item.key_or_group in ("strategy", "seed") for item in composing.parse(overrides)):
        raise ConfigError(
            "dgt compare runs both strategies and seeds=COUNT or seeds=[0,1,...]; leave strategy and seed out"
        )
    configs = [composing.compose(run) for run in composing.expand(overrides)]
    groups = comparison.by_network_size(comparison.both_strategies(configs), here)
    directory = configs[0].run_dir or default_run_dir(configs[0], "compare")
    check_run_dir(directory)
    path = str(Path(directory) / "compare.csv")
    comparison.start_csv(path)
    for nodes, cells in groups.items():
        job = comparison.CompareJob(cells, seeds, path)
        launch.start_ranks(job, nodes, JoinOptions.from_config(cells[0]))
    rows = compare_report.summarise(path)
    compare_report.write(rows, path, directory)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(compare_report.text(rows, len(seeds)))
    print(f"figure  {Path(directory) / 'figures' / 'compare.png'}\ndata    {path}")


def _take_seeds(overrides: Sequence[str]) -> tuple[list[int], list[str]]:
    """seeds=10 means 0..9, seeds=[3,5] means those; it is no config key because a run has one seed."""
    seeds = list(range(DEFAULT_SEEDS))
    rest = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "seeds":
            rest.append(override)
            continue
        try:
            parsed = json.loads(value)
            seeds = list(range(parsed)) if isinstance(parsed, int) else [int(seed) for seed in parsed]
        except (ValueError, TypeError):
            seeds = []
        if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
            raise ConfigError(f"seeds={value}: must be a count above 0 or a list of different seeds such as [0,1,2]")
    return seeds, rest


def gaps(options: argparse.Namespace) -> None:
    """The paper's spectral-gap table beside the published values."""
    config = composing.compose(options.overrides)
    rows = gap_table(config.laziness, config.topology.seed)
    print(json.dumps(rows, indent=2) if options.json else gap_lines(rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dgt", description="Weighted decentralized training: one process per network node."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "train", train, "train one network (or, with -m, one per combination of values)").add_argument(
        "-m", "--multirun", action="store_true", help="sweep: every combination of comma-separated values"
    )
    _command(
        commands,
        "compare",
        compare,
        "Strategy I against II over weights x topologies x seeds: table, CSV, figure",
    )
    _command(commands, "gaps", gaps, "the paper's spectral-gap table, recomputed")
    return parser


def _command(commands: typing.Any, name: str, run: typing.Any, help_: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=_key_help(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("overrides", nargs="*", metavar="key=value", help="settings, listed below")
    command.add_argument("--json", action="store_true", help="print JSON in place of text")
    command.set_defaults(run=run)
    return command


EXAMPLES = {
    "train": "dgt train weights=A topology=exponential strategy=II",
    "compare": "dgt compare weights=A,B topology=ring,grid,exponential,tailored seeds=10",
    "gaps": "dgt gaps laziness=0.5",
}


def _key_help(command: str) -> str:
    """What can be set, in the words of the files in `conf/`."""
    lines = []
    if command == "gaps":
        lines += [
            "settings:",
            "  laziness: 0.3        # epsilon",
            "  topology.seed: 0     # topology=tailored: which draw",
        ]
    else:
        lines += ["choices:"]
        lines += [f"  {group:<10} {', '.join(choices)}" for group, choices in composing.groups().items()]
        lines += ["             weights=[1,2,3] is a list, weights=my.txt a file", "", "settings:"]
        lines += [f"  {line}" for line in composing.settings()]
    if command == "compare":
        lines += ["  seeds: 10          # how many, or a list such as [0,1,2]"]
    return "\n".join([*lines, "", f"example: {EXAMPLES[command]}"])
