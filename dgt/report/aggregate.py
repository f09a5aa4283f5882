"""Means and spreads over seeds, for a sweep or any other set of runs: table.csv, table.md, and the terminal.

    print(aggregate.write(find(["runs"]), Path("report")))

A line for every combination of the config keys that differ; the seed is what means are taken over.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dgt.config import files
from dgt.report.groups import NAMED, Array, Group, grouped
from dgt.report.tables import markdown_table, table
from dgt.runs import layout, measures
from dgt.runs.run import Run, is_number, problems_of

LATE = 0.8  # the last fifth of a run's iterations
FEW = 4  # metrics printed in the terminal; the files have all of them
OBJECTIVE = ("problem", "weights", "nodes")  # config keys: lines that differ in one minimise different functions


@dataclass
class Line:
    """One group: every metric at the end and over the last fifth, a value per seed."""

    choices: dict[str, str]
    seeds: int
    end: dict[str, Array] = field(default_factory=dict)  # metric -> [seeds]
    late: dict[str, Array] = field(default_factory=dict)
    mark: str = ""
    remarks: list[str] = field(default_factory=list)


@dataclass
class Part:
    """The lines of the table of one problem."""

    problem: str
    shared: str  # what all of them have in common
    lines: list[Line]

    @property
    def metrics(self) -> list[str]:
        """Metrics of the training result: the paper's first, then those of a problem of the user's own."""
        found = dict.fromkeys(name for line in self.lines for name in line.end)
        known = [name for name in measures.LEARNT if name in found]
        return known + [name for name in found if name not in known and name not in measures.UPKEEP]


def parts(runs: Sequence[Run]) -> list[Part]:
    """One part per problem: numbers of different problems cannot be compared in one table."""
    found = []
    for problem in problems_of(runs):
        groups = grouped([run for run in runs if run.choice("problem") == problem])
        if groups:
            same = [key for key in NAMED[1:] if key not in groups[0].choices]
            shared = ", ".join(f"{key} {groups[0].runs[0].choice(key)}" for key in same)
            found.append(Part(problem, shared, [_line(group) for group in groups]))
    return found


def _line(group: Group) -> Line:
    names = [name for name in group.metrics if name != "iteration"]
    line = Line(
        group.choices,
        len(group.runs),
        end={name: np.array([_end(run, name) for run in group.runs]) for name in names},
        late={name: np.array([late_mean(run, name) for run in group.runs]) for name in names},
    )
    of = len(group.runs) + (len(group.unfinished) if group.is_finished else 0)
    if group.unfinished and group.is_finished:
        line.remarks.append(f"{len(group.unfinished)} of {of} seeds unfinished and left out")
    elif group.unfinished:
        last = sorted({run.records[-1]["iteration"] for run in group.runs})
        span = f"{last[0]}" if len(last) == 1 else f"{last[0]} to {last[-1]}"
        line.remarks.append(
            f"unfinished: values of iteration {span} of {group.runs[0].iterations or 'an unknown number'}"
        )
    if group.repeated:
        line.remarks.append(f"{len(group.repeated)} more of a seed that was run before: the last finished one counts")
    line.mark = "*" * bool(line.remarks)
    return line


def _end(run: Run, metric: str) -> float:
    values = [record[metric] for record in run.records if is_number(record.get(metric))]
    return float(values[-1]) if values else math.nan


def late_mean(run: Run, metric: str) -> float:
    """The mean over the last fifth of the iterations; NaN if one of the values is NaN."""
    start = LATE * run.records[-1]["iteration"]
    late = [record[metric] for record in run.records if record["iteration"] >= start and is_number(record.get(metric))]
    return math.fsum(late) / len(late) if late and np.isfinite(late).all() else math.nan


def mean(values: Array) -> float:
    return float(values.mean())


def spread(values: Array) -> float | None:
    """Sample standard deviation over the seeds; None for a single seed."""
    return float(values.std(ddof=1)) if values.size > 1 else None


# --------------------------------------------------------------------------------------------------------- files


def write(runs: Sequence[Run], directory: str | Path) -> str:
    """table.csv and table.md in this directory; returns the table for the terminal."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    found = parts(runs)
    rows = csv_rows(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table_ = io.StringIO(newline="")
    writer = csv.DictWriter(table_, names, restval="")
    writer.writeheader()
    writer.writerows(rows)
    files.write(directory / layout.TABLE_CSV, table_.getvalue())
    files.write(directory / layout.TABLE_TEXT, markdown(found, runs))
    return text(found, runs)


def csv_rows(found: Sequence[Part]) -> list[dict[str, Any]]:
    """Everything in full precision, a row per line: <metric>_end_mean, _end_std, _late_mean, _late_std."""
    rows = []
    for part in found:
        for line in part.lines:
            row: dict[str, Any] = {"problem": part.problem, **line.choices, "seeds": line.seeds}
            row["remarks"] = "; ".join(line.remarks)
            for metric in line.end:
                for when, values in (("end", line.end[metric]), ("late", line.late[metric])):
                    row[f"{metric}_{when}_mean"] = repr(mean(values))
                    std = spread(values)
                    row[f"{metric}_{when}_std"] = "" if std is None else repr(std)
            rows.append(row)
    return rows


def text(found: Sequence[Part], runs: Sequence[Run]) -> str:
    """The table for the terminal: means over the last fifth of the iterations."""
    blocks = []
    for part in found:
        shown = part.metrics[:FEW]
        rows = _rows(part, shown, lambda line: line.late, bold=False)
        blocks.append(f"{_caption(part)}, last fifth of the iterations\n\n{table(rows)}")
    return "\n\n".join([*blocks, *_notes(found, runs)])


def markdown(found: Sequence[Part], runs: Sequence[Run]) -> str:
    """Both tables of every problem, the best of the lines with the same objective in bold."""
    blocks = []
    for part in found:
        blocks.append(f"## {_caption(part)}")
        for title, values in _WHEN.items():
            blocks += [f"### {title}", markdown_table(_rows(part, part.metrics, values, bold=True))]
    legend = "Bold: the best mean among lines of the same problem and weights."
    return "\n\n".join([*blocks, *[f"{note}  " for note in _notes(found, runs)], legend]) + "\n"


_WHEN: dict[str, Callable[[Line], dict[str, Array]]] = {
    "Mean over the last fifth of the iterations": lambda line: line.late,
    "At the end": lambda line: line.end,
}


def _caption(part: Part) -> str:
    most = max(line.seeds for line in part.lines)
    how = "mean ± standard deviation over seeds" if most > 1 else "one seed, so no spread"
    return f"{part.problem} ({part.shared}): {how}" if part.shared else f"{part.problem}: {how}"


def _rows(
    part: Part, metrics: Sequence[str], values: Callable[[Line], dict[str, Array]], bold: bool
) -> list[dict[str, str]]:
    columns = {
        metric: _column([values(line).get(metric, np.array([math.nan])) for line in part.lines]) for metric in metrics
    }
    best = {metric: _best(part.lines, metric, values) for metric in metrics}
    return [
        {
            **line.choices,
            "seeds": f"{line.seeds}{line.mark}",
            **{
                metric: f"**{columns[metric][k].strip()}**" if bold and k in best[metric] else columns[metric][k]
                for metric in metrics
            },
        }
        for k, line in enumerate(part.lines)
    ]


def _best(lines: Sequence[Line], metric: str, values: Callable[[Line], dict[str, Array]]) -> set[int]:
    """The best line of every objective that has several lines, if it is known whether lower or higher is better."""
    # nodes that disagree are closer to their local optima and have a lower loss: with a gradient norm, ignore the loss
    measure = measures.measure_of(metric)
    if not measure.better or (measure is measures.LOSS and any(measures.GRADIENT.metric in line.end for line in lines)):
        return set()
    blocks: dict[tuple[str, ...], dict[int, float]] = {}
    for k, line in enumerate(lines):
        objective = tuple(value for key, value in line.choices.items() if key.split(".")[0] in OBJECTIVE)
        if metric in line.end and math.isfinite(found := mean(values(line)[metric])):
            blocks.setdefault(objective, {})[k] = found
    choose = max if measure.higher_is_better else min
    return {k for block in blocks.values() if len(block) > 1 for k in block if block[k] == choose(block.values())}


def _column(values: Sequence[Array]) -> list[str]:
    """'0.3275 ± 0.0041', aligned, with as many digits as the spread makes significant."""
    means, spreads = [mean(found) for found in values], [spread(found) for found in values]
    digits = _digits(means, [std for std in spreads if std])
    words = [(_number(m, digits), "" if s is None else _number(s, digits)) for m, s in zip(means, spreads, strict=True)]
    left, right = (max(len(pair[k]) for pair in words) for k in (0, 1))
    if not right:
        return [m.rjust(left) for m, _ in words]
    return [f"{m.rjust(left)} ± {s.rjust(right)}" if s else m.rjust(left).ljust(left + 3 + right) for m, s in words]


def _digits(means: Sequence[float], spreads: Sequence[float]) -> int | None:
    """Decimals such that the median spread shows two digits, or without spread the mean four; None if too small."""
    finite = [abs(value) for value in means if value and math.isfinite(value)]
    known = [value for value in spreads if math.isfinite(value)]
    if not finite:
        return 3
    scale, significant = (float(np.median(known)), 2) if known else (float(np.median(finite)), 4)
    digits = significant - 1 - math.floor(math.log10(scale))
    if known:
        digits = min(digits, 5 - math.floor(math.log10(max(finite))))  # never more than six digits of a mean
    return None if digits > 7 else max(digits, 0)


def _number(value: float, digits: int | None) -> str:
    if not math.isfinite(value):
        return "no number"
    return f"{value:.2e}" if digits is None else f"{value:.{digits}f}"


def _notes(found: Sequence[Part], runs: Sequence[Run]) -> list[str]:
    notes = []
    if len(found) > 1:
        notes.append(f"{len(found)} different problems: a table each, as their numbers cannot be compared.")
    for part in found:
        for line in part.lines:
            name = " ".join(line.choices.values()) or part.problem
            notes += [f"* {name}: {remark}" for remark in line.remarks]
        counts = {line.seeds for line in part.lines}
        if len(counts) > 1:
            notes.append(
                f"{part.problem}: {min(counts)} to {max(counts)} seeds per line; mind the spread of the shorter ones."
            )
    silent = [run.name for run in runs if not run.records]
    if silent:
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        notes.append(f"nothing measured, so left out: {', '.join(silent[:3])}{more}")
    return notes
