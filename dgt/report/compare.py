"""The comparison of both strategies from the files of `dgt compare`: its runs, verdict per cell, table and figure."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from dgt.config import files, plain_yaml
from dgt.errors import ConfigError, printable
from dgt.report.groups import Curve, curve, grouped
from dgt.report.tables import table
from dgt.runs import layout, measures
from dgt.runs.contents import MOST_METRICS, read_json
from dgt.runs.layout import COMPARISON
from dgt.runs.measures import ACCURACY
from dgt.runs.reader import not_ended
from dgt.runs.run import FINISHED, Run
from dgt.runs.searching import MOST_RUNS

Array = npt.NDArray[np.float64]
CELL = ("weights", "topology", "strategy")
SHARES = ("accuracy", "average_accuracy")  # told in points
FEW = 3  # metrics of a user's own problem that are printed; summary.json has all
MOST_BYTES, MOST_PLAN = 256 * 2**20, 16 * 2**20


def runs_of(directory: str | Path) -> list[Run]:
    """What `dgt compare` wrote, as one run per cell and seed; lines that are not complete are left out."""
    directory = Path(directory)
    configs = _configs(directory)
    found: dict[tuple[str, ...], Run] = {}
    try:
        lines = files.read_text(directory / COMPARISON, MOST_BYTES, errors="replace").splitlines()
        for row in csv.DictReader(lines):
            record = _record(row)
            if record is not None:
                cell, seed = tuple(str(row[key]) for key in CELL), str(row["seed"])
                if (*cell, seed) not in found:
                    found[(*cell, seed)] = _run(directory, configs, cell, seed)
                found[(*cell, seed)].records.append(record)
                if len(found) > MOST_RUNS:
                    raise ConfigError(f"{directory / COMPARISON}: more than {MOST_RUNS} runs in there")
    except OSError as error:
        raise ConfigError(f"{directory / COMPARISON}: {error.strerror}") from None
    except csv.Error as error:
        raise ConfigError(f"{directory / COMPARISON}: not a table that dgt compare wrote ({error})") from None
    environment = read_json(directory, layout.ENVIRONMENT, [], dict)
    longest = max((run.records[-1]["iteration"] for run in found.values()), default=0)
    for run in found.values():
        ended = run.records[-1]["iteration"] == (run.iterations or longest)
        run.state = FINISHED if ended else not_ended(run, [COMPARISON])
        run.environment = environment
    return list(found.values())


def _configs(directory: Path) -> dict[tuple[str, ...], Any]:
    """The config of every cell; for a cell without one only the names that the CSV has."""
    try:
        plan = plain_yaml.parsed(files.read_text(directory / layout.CONFIG, MOST_PLAN))
        return {tuple(str(cell[key]["name"]) for key in CELL): cell for cell in plan["cells"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _run(directory: Path, configs: Mapping[tuple[str, ...], Any], cell: tuple[str, ...], seed: str) -> Run:
    config = configs.get(cell, dict(zip(CELL, cell, strict=True)))
    name = printable(f"{directory.name} {' '.join(cell)} seed {seed}")
    return Run(directory, name, config={**config, "seed": seed})


def _record(row: Mapping[str | None, str | None]) -> dict[str, Any] | None:
    """The numbers of a line; None if it is half-written."""
    try:
        if None in row or None in row.values() or not all(row[key] for key in (*CELL, "seed")):
            return None
        numbers = {
            printable(str(key)): value
            for key, value in row.items()
            if key not in (*CELL, "seed", "iteration") and value
        }
        if len(str(row["iteration"])) > 18 or len(numbers) > MOST_METRICS:
            return None
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

    The ratio is None where Strategy I is at 0. 'II-I' is the mean difference of runs with the same seed, and 'II-I +-'
    half its 95 % interval, where there are several. Then the same of every other metric at the end: 'accuracy I', ...
    """
    measure = measure_of(runs)
    further = {name: cells(runs, name) for name in _further(runs)}
    rows = []
    for cell, curves in cells(runs, measure.metric).items():
        if not {"I", "II"} <= set(curves):
            continue  # the comparison ended before its second strategy
        one, two = (float(curves[name].late(measure.late).mean()) for name in ("I", "II"))
        lower = "equal" if np.isclose(one, two, rtol=1e-9, atol=0) else "II" if two < one else "I"
        ratio = two / one if one else None
        row = {"weights": cell[0], "topology": cell[1], "I": one, "II": two, "II/I": ratio, "lower": lower}
        row |= _paired("", *(curves[name].late(measure.late) for name in ("I", "II")))
        for metric, of_cells in further.items():
            for name, values in of_cells.get(cell, {}).items():
                row[f"{metric} {name}"] = _at_end(values)
            if {"I", "II"} <= set(of_cells.get(cell, {})):
                row |= _paired(f"{metric} ", *(of_cells[cell][name].values[-1] for name in ("I", "II")))
        rows.append(row)
    return rows


def _paired(prefix: str, one: Array, two: Array) -> dict[str, float]:
    """The mean of II - I over the seeds, and half the 95 % interval of Student's t; nothing for a single seed."""
    if one.size != two.size or one.size < 2 or not np.isfinite(one - two).all():
        return {}
    each = two - one
    half = scipy.stats.t.ppf(0.975, each.size - 1) * each.std(ddof=1) / math.sqrt(each.size)
    return {f"{prefix}II-I": float(each.mean()), f"{prefix}II-I +-": float(half)}


def _differences(rows: Sequence[dict[str, Any]], measure: measures.Measure) -> str:
    """A line per cell: 'A ring: interval loss -0.041 +- 0.012, accuracy +2.3 +- 0.6 points'."""
    lines = []
    for row in rows:
        said = []
        for metric, label in (("", measure.label), *((f"{name} ", name.replace("_", " ")) for name in SHARES)):
            if f"{metric}II-I" not in row:
                continue
            mean, half = row[f"{metric}II-I"], row[f"{metric}II-I +-"]
            share = metric.strip() in SHARES
            said.append(
                f"{label} {100 * mean:+.2f} ± {100 * half:.2f} points" if share else f"{label} {mean:+.2g} ± {half:.2g}"
            )
        if said:
            lines.append(f"  {row['weights']} {row['topology']}: {', '.join(said)}")
    return "\nII - I, paired over seeds, with 95 % intervals:\n" + "\n".join(lines) + "\n" if lines else ""


def _at_end(values: Curve) -> float | None:
    """The mean over the seeds that have a value at the last iteration; None if none has, or it is not finite."""
    last = values.values[-1]
    known = last[np.isfinite(last)]
    return float(known.mean()) if known.size else None


def _further(runs: Sequence[Run]) -> list[str]:
    """Measures of a model, and what a problem reports of its own."""
    measured = dict.fromkeys(name for run in runs for name in run.metrics)
    paper = (measures.GRADIENT, measures.DISTANCE, measures.LOSS, measures.CONSENSUS)
    found = [name for name in measured if measures.measure_of(name) not in paper and name not in measures.UPKEEP]
    return sorted(found, key=lambda name: name != ACCURACY.metric)  # stable sort: all others keep their order


def _own(runs: Sequence[Run]) -> list[str]:
    """Metrics of a user's own problem: those that are not in dgt's table of metrics."""
    return [name for name in _further(runs) if name not in measures.BY_METRIC]


def text(rows: Sequence[dict[str, Any]], runs: Sequence[Run], seeds: int) -> str:
    """The table for the terminal, with the verdict in a sentence."""
    measure, own = measure_of(runs), _own(runs)
    shown = [
        {
            "weights": row["weights"],
            "topology": row["topology"],
            "Strategy I": f"{row['I']:.4g}",
            "Strategy II": f"{row['II']:.4g}",
            "II/I": "I is 0" if row["II/I"] is None else f"{row['II/I']:.3f}",
            "lower": row["lower"],
            **{name.replace("_", " "): _word(row.get(name), ".1%") for name in _columns(SHARES) if name in row},
            **{name: _word(row.get(name), ".4g") for name in _columns(own[:FEW]) if name in row},
        }
        for row in rows
    ]
    wins = sum(row["lower"] in ("II", "equal") for row in rows)
    verdict = f"Strategy II is at or below Strategy I in {wins} of {len(rows)} cells."
    if not rows:
        return "nothing to compare by: the problem reports neither a gradient norm nor a loss"
    at_end = [ACCURACY.metric] * (f"{ACCURACY.metric} I" in rows[0]) + own[:FEW]
    further = f"; {', '.join(at_end)} at the end" if at_end else ""
    number = f"{seeds} seed{'s' if seeds > 1 else ''}"
    what = f"{measure.label}, mean of the {measure.late_words} of the iterations{further}, {number}"
    left = f"\nmore metrics at the end in {layout.SUMMARY}: {', '.join(own[FEW:])}" if own[FEW:] else ""
    return f"{what}\n\n{table(shown)}\n{_differences(rows, measure)}\n{verdict}{left}{_warning(runs, measure)}"


def _warning(runs: Sequence[Run], measure: measures.Measure) -> str:
    """Where the verdict is by a loss that a node can lower by going its own way."""
    skewed = any((run.config.get("problem") or {}).get("partition") == "dirichlet" for run in runs)
    if measure is not measures.LOSS or not skewed:
        return ""
    return (
        "\nNodes have unequal labels: the interval loss is of each node's own labels, which a model that disagrees "
        "with the others fits best; judge by the accuracies."
    )


def _word(value: float | None, digits: str) -> str:
    return "" if value is None else format(value, digits)


def _columns(metrics: Sequence[str]) -> list[str]:
    return [f"{metric} {name}" for metric in metrics for name in ("I", "II")]


def write(rows: Sequence[dict[str, Any]], runs: Sequence[Run], directory: str | Path) -> None:
    """summary.json and the figures of all cells beside the CSV."""
    from dgt.report import curves  # matplotlib takes half a second to load

    directory = Path(directory)
    files.write(directory / layout.SUMMARY, json.dumps(list(rows), indent=2) + "\n")
    for name, measure in (("compare", measure_of(runs)), (ACCURACY.metric, ACCURACY)):
        curves.write(runs, measure, directory / layout.FIGURES / name)
