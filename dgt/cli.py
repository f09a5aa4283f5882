"""The `dgt` command: what each of its commands does; what they take is in `options.py`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dgt import compose as composing
from dgt import doctor, failures, forkserver, launch, planning, problems, sweeps, world
from dgt.bench import scaling
from dgt.bench.job import BenchConfig, BenchJob
from dgt.checks import ConfigError, TrainingError, build, check_range, nearest
from dgt.config import Config
from dgt.data import cifar10
from dgt.fragment import write as write_fragment
from dgt.launch import JoinOptions, LaunchError
from dgt.network.gaps import PUBLISHED, gap_rows
from dgt.options import parser
from dgt.placement import Placement
from dgt.report import bench as bench_report
from dgt.report import command as reporting
from dgt.report import compare as compare_report
from dgt.report import plan as plan_report
from dgt.report.tables import gap_lines, table
from dgt.runs import prepared, run_here, tell, typed
from dgt.training import compare as comparison
from dgt.training import simulate as simulation
from dgt.training.logger import Progress, claim


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors are one line on standard error and exit code 2 (bad input) or 1."""
    try:
        options, rest = parser(COMMANDS).parse_known_args(arguments)
        unknown = next((word for word in rest if word.startswith("-")), None)
        if unknown is not None:
            raise ConfigError(f"{unknown}: no such option; see dgt --help")
        options.overrides += rest  # argparse stops collecting at an option between them
        if getattr(options, "config_dir", None):
            options.overrides.insert(0, composing.search_override(Path(options.config_dir)))
        options.run(options)
    except ConfigError as error:
        _refuse(error)
    except LaunchError as error:
        _leave(str(error) if error.code > 2 else f"error: {error}", error.code)
    except KeyboardInterrupt:
        _leave("interrupted", 128 + signal.SIGINT)


def _refuse(error: ConfigError) -> NoReturn:
    """Bad input. A launcher ends all ranks with the first: there they meet, rank 0 speaks, and all leave.

    What is wrong with one host's data or environment is told by its own ranks, as the others do not come to a meeting.
    """

    def again() -> NoReturn:
        raise error

    if world.is_launched() and not isinstance(error, cifar10.DataError):
        launch.be_rank(again, lambda _: JoinOptions())
    forkserver.stop()
    print(f"dgt: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(failures.EXIT_BAD_INPUT)


def _leave(words: str, code: int) -> NoReturn:
    forkserver.stop()
    tell(words)  # under a launcher every rank comes here with the same words
    raise SystemExit(code)


def train(options: argparse.Namespace) -> None:
    """One run, or with -m one run per combination."""
    here = world.placement()
    show = "json" if options.json else "text"
    overrides, slurm = sweeps.split(options.overrides)
    slurm = sweeps.checked(slurm, options.multirun) if slurm else []
    if here.launcher != "alone":
        if options.multirun:
            raise ConfigError(f"-m: sweeps start their own ranks; run them outside {here.launcher}")
        launch.be_rank(
            lambda: prepared(composing.compose(overrides), show),
            lambda job: JoinOptions.from_config(job.config),
        )
        return
    runs, configs = _runs(options, overrides, below_one_directory=bool(slurm))
    if slurm:
        summaries, failed = sweeps.on_slurm(slurm, runs, configs)
    else:
        quietly = options.multirun and options.json
        summaries, failed = [run_here(config, "nothing" if quietly else show) for config in configs], 0
    _show_sweep(options, summaries)
    if failed:
        raise LaunchError(f"{failed} of {len(runs)} runs failed")


def simulate(options: argparse.Namespace) -> None:
    """As `train`, on the single-process twin."""
    _refuse_many("simulate")
    _, configs = _runs(options, options.overrides)
    for config in configs:
        simulation.check(config)
    show = "text" if not options.json else "nothing" if options.multirun else "json"
    try:
        _show_sweep(options, [simulation.simulate(config, show, typed()) for config in configs])
    except TrainingError as error:
        raise LaunchError(str(error)) from None


def _refuse_many(command: str) -> None:
    here = world.placement()
    if here.size > 1:
        raise ConfigError(f"dgt {command} is one process; run it outside {here.launcher}")


def _runs(
    options: argparse.Namespace, overrides: list[str], below_one_directory: bool = False
) -> tuple[list[list[str]], list[Config]]:
    """The runs of a sweep, or the only one; all mistakes are found before the first starts."""
    runs = composing.expand(overrides) if options.multirun else [overrides]
    if options.only is not None:
        if not options.multirun:
            raise ConfigError(f"--only={options.only}: picks one run of a sweep; add -m")
        check_range("--only", options.only, 0, len(runs) - 1)
        runs = [runs[options.only]]
    configs = [composing.compose(overrides) for overrides in runs]
    if len(configs) > 1 and any(config.run_dir for config in configs) and not below_one_directory:
        raise ConfigError("run_dir: each run of a sweep has its own; leave it out")
    return runs, configs


def _show_sweep(options: argparse.Namespace, summaries: list[dict[str, typing.Any]]) -> None:
    if options.multirun and (summaries or options.json):
        print(json.dumps(summaries, indent=2) if options.json else table([_sweep_row(row) for row in summaries]))


def _sweep_row(summary: dict[str, typing.Any]) -> dict[str, str]:
    row = {key: str(summary[key]) for key in ("weights", "topology", "strategy", "seed")}
    return row | {key: f"{value:.4g}" for key, value in summary["last_fifth"].items()} | {"run": summary["run_dir"]}


def compare(options: argparse.Namespace) -> None:
    """Strategy I against II; ranks stay up between the cells of one network size."""
    here = world.placement()
    if here.launcher != "alone":
        raise ConfigError(f"dgt compare starts its own ranks, for every network size; run it outside {here.launcher}")
    for item in composing.parse(options.overrides):
        if item.key_or_group in ("strategy", "seed"):
            raise ConfigError(f"{item.key_or_group}: dgt compare runs both strategies and seeds=COUNT; leave it out")
        if item.key_or_group.split(".")[0] in ("resume", "warm_start", "checkpoint", "on_peer_loss", "chaos"):
            raise ConfigError(f"{item.key_or_group}: for dgt train only; dgt compare runs every cell from its start")
        if item.is_sweep_override() and item.key_or_group not in ("weights", "topology"):
            raise ConfigError(
                f"{item.input_line}: dgt compare varies weights and topology; give one {item.key_or_group}"
            )
    configs = [composing.compose(run) for run in composing.expand(options.overrides)]
    seeds = configs[0].seeds
    comparison.check(configs, seeds, here)
    problems.fetch(configs[0], world.cache_dir(), tell)
    cells = comparison.both_strategies(configs)
    groups = comparison.by_network_size(cells, here)
    directory = Path(claim(configs[0].run_dir, "compare"))
    path = str(directory / "compare.csv")
    comparison.start(directory, cells, seeds)
    for nodes, group in groups.items():
        launch.start_ranks(comparison.CompareJob(group, seeds, path), nodes, JoinOptions.from_config(group[0]))
    results = compare_report.runs_of(directory)
    rows = compare_report.summarise(results)
    compare_report.write(rows, results, directory)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(compare_report.text(rows, results, len(seeds)))
    print(f"figure  {directory / 'figures' / 'compare.png'}\ndata    {path}")


def examine(options: argparse.Namespace) -> None:
    """What is here, and whether ranks can talk: two of this host, or those that a launcher started."""
    if options.overrides:
        _say_why(options)
        return
    if world.placement().launcher == "alone":
        findings: list[doctor.Finding] | None = doctor.here() + doctor.exchange()
    else:
        findings = launch.be_rank(doctor.ClusterJob, lambda _: JoinOptions(device="cpu"))
    if findings is None:
        return
    print(json.dumps(doctor.as_dicts(findings), indent=2) if options.json else doctor.text(findings))
    if any(finding.verdict == doctor.BAD for finding in findings):
        raise SystemExit(failures.EXIT_FAILED)


def _say_why(options: argparse.Namespace) -> None:
    """Why a run failed, from the notes its ranks left."""
    run_dir = Path(options.overrides[0])
    if len(options.overrides) > 1 or not os.access(run_dir / "config.yaml", os.R_OK):
        raise ConfigError(f"{' '.join(options.overrides)}: dgt doctor takes one run directory, or nothing")
    notes = failures.of_run(run_dir)
    if options.json:
        print(json.dumps([dataclasses.asdict(note) for note in notes], indent=2))
    else:
        print("\n".join(failures.in_words(run_dir)))
    if notes:
        raise SystemExit(failures.EXIT_FAILED)


def plan(options: argparse.Namespace) -> None:
    """Which strategy on which graph, ranked; and the words that train it."""
    _refuse_many("plan")
    found = planning.plan(options.overrides)
    answer = planning.as_dict(found)
    folder = found.settings.write
    if folder is not None:
        write_fragment(found.best.config, folder)
    answer["recommendation"]["reason"] = plan_report.reason(answer)
    print(json.dumps(answer, indent=2) if options.json else plan_report.text(answer, folder))


def gaps(options: argparse.Namespace) -> None:
    """The paper's spectral-gap table beside the published values."""
    for item in composing.parse(options.overrides):
        if item.key_or_group not in ("laziness", "topology.seed"):
            raise ConfigError(
                f"{item.key_or_group}: the table is the paper's; only laziness and topology.seed can be set"
            )
    config = composing.compose(["topology=tailored", *options.overrides])
    rows, progress = [], Progress(len(PUBLISHED), "best weights", speaks=options.optimal, unit="gap")
    for row in gap_rows(config.laziness, config.topology.seed, optimal=options.optimal):
        rows.append(row)
        progress.update(len(rows), {})
    progress.close()
    if options.figures:
        from dgt.report import gaps as gaps_report  # matplotlib takes half a second to load

        written = gaps_report.write_all(rows, config.topology, Path(options.figures))
        tell(f"{options.figures} has {', '.join(path.name for path in written)}")
    print(json.dumps(rows, indent=2) if options.json else gap_lines(rows))


def data(options: argparse.Namespace) -> None:
    """Fetch and verify a data set."""
    settings = {"root": str(world.cache_dir()), "source": "auto"}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key not in settings or not value:
            raise ConfigError(f"{override}: no such setting; {nearest(key, [f'{name}=...' for name in settings])}")
        settings[key] = value
    root = Path(settings["root"])
    folder = cifar10.ensure(root, settings["source"], tell)
    arrays = cifar10.load(root)
    cifar10.verify(arrays, root)
    if options.json:
        print(json.dumps({"folder": str(folder), "train": len(arrays.train_y), "test": len(arrays.test_y)}, indent=2))
    else:
        print(f"CIFAR-10 in {folder}: {len(arrays.train_y)} training and {len(arrays.test_y)} test images, verified")


def run(options: argparse.Namespace) -> None:
    """A user's own program on every rank."""
    here = world.placement()
    if here.launcher != "alone":
        raise ConfigError(f"dgt run starts its own ranks; inside {here.launcher}, run the program itself")
    check_range("-n", options.nodes, 1)
    if not Path(options.program).is_file():
        raise ConfigError(f"{options.program}: no such file")
    launch.start_ranks(launch.Script(options.program, options.arguments), options.nodes, JoinOptions())


def bench(options: argparse.Namespace) -> None:
    """What an iteration costs, by turns on the same ranks."""
    here, overrides = world.placement(), list(options.overrides)
    grows = overrides[:1] == ["scaling"]
    settings = composing.plain_values(overrides[grows:])
    if here.launcher != "alone":
        if grows:
            raise ConfigError(f"dgt bench scaling starts its own ranks; run it outside {here.launcher}")
        settings.setdefault("nodes", here.size)
        cells: list[BenchConfig] = []

        def prepare() -> BenchJob:
            cells.append(_bench_config(settings, here))
            return BenchJob(cells)

        results = launch.be_rank(prepare, lambda _: JoinOptions())
        if here.rank == 0:
            _show_bench(cells[0], results[0], options.json)
        return
    if grows:
        settings = {"nodes": 32, "variants": ["compute", "limit", "ddp", "messages", "shared"]} | settings
        _bench_scaling(_bench_config(settings, here), options.json)
        return
    config = _bench_config(settings, here)
    _show_bench(config, launch.start_ranks(BenchJob([config]), config.nodes, JoinOptions())[0][0], options.json)


def _bench_config(settings: dict[str, typing.Any], here: Placement) -> BenchConfig:
    config: BenchConfig = build(BenchConfig, settings, "")
    if here.launcher != "alone" and config.nodes != here.size:
        raise ConfigError(f"nodes={config.nodes}: {here.launcher} started {here.size} ranks")
    if here.rank == 0:
        config = dataclasses.replace(config, run_dir=claim(config.run_dir, "bench"))
    return config


def _show_bench(config: BenchConfig, results: bench_report.Results, as_json: bool) -> None:
    rows = bench_report.summarise(results)
    title = f"{config.preset}, {config.nodes} ranks, {config.topology}"
    bench_report.figure(rows, title, Path(str(config.run_dir)) / "figures" / "bench")
    _write_bench(config, rows, bench_report.text(rows), "bench", as_json)


def _bench_scaling(config: BenchConfig, as_json: bool) -> None:
    measured = []
    by_nodes: dict[int, list[tuple[str, int, BenchConfig]]] = {}
    for cell in scaling.cells(config):
        by_nodes.setdefault(cell[2].nodes, []).append(cell)
    for nodes, cells in by_nodes.items():
        results = launch.start_ranks(BenchJob([cell for _, _, cell in cells]), nodes, JoinOptions())[0]
        measured += [(grows, value, result) for (grows, value, _), result in zip(cells, results, strict=True)]
    measured.sort(key=lambda cell: (scaling.GROWTH.index(cell[0]), cell[1]))
    rows = bench_report.scaling_rows(measured)
    bench_report.scaling_figure(rows, Path(str(config.run_dir)) / "figures" / "scaling")
    _write_bench(config, rows, bench_report.scaling_text(rows), "scaling", as_json)


def _write_bench(
    config: BenchConfig, rows: list[dict[str, typing.Any]], words: str, figure: str, as_json: bool
) -> None:
    directory = Path(str(config.run_dir))
    record = json.dumps({"config": dataclasses.asdict(config), "rows": rows}, indent=2)
    (directory / "bench.json").write_text(record + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{words}\nfigure  {directory / 'figures' / figure}.png\ndata    {directory / 'bench.json'}")


def report(options: argparse.Namespace) -> None:
    """The page, figures and tables of runs."""
    paths, out = reporting.parse(options.overrides)
    if options.follow and not reporting.follow(paths, out):
        return
    progress: list[Progress] = []

    def advance(done: int, of: int, name: str) -> None:
        if not progress:
            progress.append(Progress(of, "figures", lines=1, unit="figure"))
        progress[0].update(done, {})

    written, words = reporting.write(paths, out, advance)
    for bar in progress:
        bar.close()
    if options.json:
        print(json.dumps([str(path) for path in written], indent=2))
    else:
        beside = written[0].parent
        places = [f"page    {written[0]}"]
        if words:
            places += [f"tables  {beside / 'table.md'}, table.csv", f"figures {beside / 'figures'}"]
        print("\n\n".join(part for part in (words, "\n".join(places)) if part))


COMMANDS = {
    "train": train, "simulate": simulate, "compare": compare, "doctor": examine, "plan": plan, "gaps": gaps,
    "data": data, "bench": bench, "report": report, "run": run,
}  # fmt: skip
