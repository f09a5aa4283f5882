"""From the command line of `dgt bench` to a table, a figure and bench.json."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path

from dgt.commands.bench import links, scaling
from dgt.commands.bench import results as bench_report
from dgt.commands.bench.catalogue import terms
from dgt.commands.bench.hosts import refuse_without_rights
from dgt.commands.bench.job import BenchConfig, BenchJob, refuse_without_effect
from dgt.config import compose as composing
from dgt.config.checks import build
from dgt.config.files import write
from dgt.errors import ConfigError
from dgt.launching.launch import JoinOptions, start_ranks
from dgt.launching.rank import be_rank
from dgt.processes import environment
from dgt.processes.placement import Placement
from dgt.runs import layout
from dgt.runs.claiming import claim


def bench(overrides: list[str], as_json: bool) -> None:
    """Measure on ranks of this host, or on those that a launcher started."""
    here = environment.placement()
    grows = overrides[:1] == ["scaling"]
    settings = composing.plain_values(overrides[grows:])
    refuse_without_effect(settings, grows)
    if here.launcher != "alone":
        if settings.get("preset") == "links":
            raise ConfigError(f"preset=links makes its own hosts and ranks; run it outside {here.launcher}")
        if grows:
            raise ConfigError(f"dgt bench scaling starts its own ranks; run it outside {here.launcher}")
        settings.setdefault("nodes", here.size)
        cells: list[BenchConfig] = []

        def prepare() -> BenchJob:
            cells.append(_config(settings, here))
            return BenchJob(cells)

        results = be_rank(prepare, lambda _: JoinOptions())
        if here.rank == 0:
            _show(cells[0], results[0], as_json)
        return
    if grows:
        settings = {"nodes": 32, "variants": ["compute", "limit", "ddp", "messages", "shared"]} | settings
        _scaling(_config(settings, here), as_json)
        return
    if settings.get("preset") == "links":
        refuse_without_rights()
    config = _config(settings, here)
    results = links.measure(config) if config.preset == "links" else _on_this_host(config)
    _show(config, results, as_json)


def _on_this_host(config: BenchConfig) -> bench_report.Results:
    results: list[bench_report.Results] = start_ranks(BenchJob([config]), config.nodes, JoinOptions())[0]
    return results[0]


def _config(settings: dict[str, typing.Any], here: Placement) -> BenchConfig:
    config: BenchConfig = build(BenchConfig, settings, "")
    if here.launcher != "alone" and config.nodes != here.size:
        raise ConfigError(f"nodes={config.nodes}: {here.launcher} started {here.size} ranks")
    if here.rank == 0:
        config = dataclasses.replace(config, run_dir=claim(config.run_dir, "bench"))
    return config


def _show(config: BenchConfig, results: bench_report.Results, as_json: bool) -> None:
    rows = bench_report.summarise(results)
    title = f"{config.preset}, {config.nodes} ranks, {config.topology}"
    if config.preset == "links":
        title += f", {config.layout} hosts, {config.rate}, {config.delay:g} ms"
    bench_report.figure(rows, title, Path(str(config.run_dir)) / layout.FIGURES / "bench")
    for row in rows:
        row["terms"] = terms([row["variant"]], config).get(row["variant"], "")
    _write(config, rows, bench_report.text(rows), "bench", as_json)


def _scaling(config: BenchConfig, as_json: bool) -> None:
    measured = []
    by_nodes: dict[int, list[tuple[str, int, BenchConfig]]] = {}
    for cell in scaling.cells(config):
        by_nodes.setdefault(cell[2].nodes, []).append(cell)
    for nodes, cells in by_nodes.items():
        results = start_ranks(BenchJob([cell for _, _, cell in cells]), nodes, JoinOptions())[0]
        measured += [(grows, value, result) for (grows, value, _), result in zip(cells, results, strict=True)]
    measured.sort(key=lambda cell: (scaling.GROWTH.index(cell[0]), cell[1]))
    rows = bench_report.scaling_rows(measured)
    bench_report.scaling_figure(rows, Path(str(config.run_dir)) / layout.FIGURES / "scaling")
    _write(config, rows, bench_report.scaling_text(rows), "scaling", as_json)


def _write(config: BenchConfig, rows: list[dict[str, typing.Any]], words: str, figure: str, as_json: bool) -> None:
    directory = Path(str(config.run_dir))
    record = json.dumps({"config": dataclasses.asdict(config), "rows": rows}, indent=2)
    write(directory / layout.BENCH, record + "\n")
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{words}\nfigure  {directory / layout.FIGURES / figure}.png\ndata    {directory / layout.BENCH}")
