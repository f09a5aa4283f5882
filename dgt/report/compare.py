"""The comparison of both strategies from the files of `dgt compare`: its runs, verdict per cell, table and figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dgt.checks import ConfigError
from dgt.report import measures
from dgt.report.groups import Curve, curve, grouped
from dgt.report.measures import ACCURACY
from dgt.report.runs import COMPARISON, FINISHED, Run, not_ended, read_json
from dgt.report.tables import table

CELL = ("weights", "topology", "strategy")


def runs_of(directory: str | Path) -> list[Run]:
    """What `dgt compare` wrote, as one run per cell and seed; lines that are not complete are left out."""
    directory = Path(directory)
    configs = _configs(directory)
    found: dict[tuple[str, ...], Run] = {}
    try:
        with (directory / COMPARISON).open(newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.DictReader(file):
                record = _record(row)
                if record is not None:
                    cell = tuple(str(row[key]) for key in CELL)
                    run = found.setdefault((*cell, str(row["seed"])), _run(directory, configs, cell, str(row["seed"])))
                    run.records.append(record)
    except OSError as error:
        raise ConfigError(f"{directory / COMPARISON}: {error.strerror}") from None
    environment = read_json(directory, "environment.json", [], dict)
    longest = max((run.records[-1]["iteration"] for run in found.values()), default=0)
    for run in found.values():
        ended = run.records[-1]["iteration"] == (run.iterations or longest)
        run.state = FINISHED if ended else not_ended(run, [COMPARISON])
        run.environment = environment
    return list(found.values())


def _configs(directory: Path) -> dict[tuple[str, ...], Any]:
    """The config of every cell; without one, its names are still in the CSV."""
    try:
        plan = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
        return {tuple(str(cell[key]["name"]) for key in CELL): cell for cell in plan["cells"]}
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return {}


def _run(directory: Path, configs: Mapping[tuple[str, ...], Any], cell: tuple[str, ...], seed: str) -> Run:
    config = configs.get(cell, dict(zip(CELL, cell, strict=True)))
    return Run(directory, f"{directory.name} {' '.join(cell)} seed {seed}", config={**config, "seed": seed})


def _record(row: Mapping[str | None, str | None]) -> dict[str, Any] | None:
    """The numbers of a line; None if it is half-written."""
    try:
        if None in row or None in row.values() or not all(row[key] for key in (*CELL, "seed")):
            return None
        numbers = {str(key): value for key, value in row.items() if key not in (*CELL, "seed", "iteration") and value}
        return {"iteration": int(str(row["iteration"])), **{key: float(str(value)) for key, value in numbers.items()}}
    except (KeyError, ValueError):
        return None


def measure_of(runs: Sequence[Run]) -> measures.Measure:
    """The gradient norm where it is known, else the loss."""
    return measures.main(name for run in runs for name in run.metrics)


def cells(runs: Sequence[Run], metric: str) -> dict[tuple[str, str], dict[str, Curve]]:
    """(weights, topology) -> strategy -> curve, for the cells that have this metric."""
    found: dict[tuple[str, str], dict[str, Curve]] = {}
    for group in grouped(runs):
        weights, topology, strategy = (group.runs[0].choice(key) for key in CELL)
        if (measured := curve(group, metric)) is not None:
            found.setdefault((weights, topology), {})[strategy] = measured
    return found


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per (weights, topology): the late mean of both strategies, their ratio, and which is lower.

    The ratio is None where Strategy I is at 0.
    """
    measure = measure_of(runs)
    accuracies = cells(runs, ACCURACY.metric)
    rows = []
    for cell, curves in cells(runs, measure.metric).items():
        if not {"I", "II"} <= set(curves):
            continue  # the comparison ended before its second strategy
        one, two = (float(curves[name].late(measure.late).mean()) for name in ("I", "II"))
        lower = "equal" if np.isclose(one, two, rtol=1e-9, atol=0) else "II" if two < one else "I"
        ratio = two / one if one else None
        row = {"weights": cell[0], "topology": cell[1], "I": one, "II": two, "II/I": ratio, "lower": lower}
        for name, accuracy in accuracies.get(cell, {}).items():
            row[f"accuracy {name}"] = float(accuracy.values[-1].mean())
        rows.append(row)
    return rows


def text(rows: Sequence[dict[str, Any]], runs: Sequence[Run], seeds: int) -> str:
    """The table for the terminal, with the verdict in a sentence."""
    measure = measure_of(runs)
    shown = [
        {
            "weights": row["weights"],
            "topology": row["topology"],
            "Strategy I": f"{row['I']:.4g}",
            "Strategy II": f"{row['II']:.4g}",
            "II/I": "I is 0" if row["II/I"] is None else f"{row['II/I']:.3f}",
            "lower": row["lower"],
            **{name: f"{value:.1%}" for name, value in row.items() if name.startswith("accuracy")},
        }
        for row in rows
    ]
    wins = sum(row["lower"] in ("II", "equal") for row in rows)
    verdict = f"Strategy II is at or below Strategy I in {wins} of {len(rows)} cells."
    if not rows:
        return "nothing to compare by: the problem reports neither a gradient norm nor a loss"
    accuracy = "; accuracy at the end" if "accuracy I" in rows[0] else ""
    number = f"{seeds} seed{'s' if seeds > 1 else ''}"
    what = f"{measure.label}, mean of the {measure.late_words} of the iterations{accuracy}, {number}"
    return f"{what}\n\n{table(shown)}\n\n{verdict}"


def write(rows: Sequence[dict[str, Any]], runs: Sequence[Run], directory: str | Path) -> None:
    """summary.json and the figures of all cells beside the CSV."""
    from dgt.report import curves  # matplotlib takes half a second to load

    directory = Path(directory)
    (directory / "summary.json").write_text(json.dumps(list(rows), indent=2) + "\n", encoding="utf-8")
    for name, measure in (("compare", measure_of(runs)), ("accuracy", ACCURACY)):
        curves.write(runs, measure, directory / "figures" / name)
