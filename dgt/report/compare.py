"""The comparison of both strategies from its CSV: verdict per cell, text table, and a figure like the paper's."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgt.report.tables import table


@dataclass(frozen=True, slots=True)
class Measure:
    """What the strategies are compared by: a column of the CSV and which late part of the run counts."""

    column: str
    label: str
    late: float  # share of the iterations after which values count
    late_words: str
    logarithmic: bool


# the paper's two: exact gradients for least squares, the mean loss of 30 iterations for models trained on data
GRADIENT = Measure("grad_norm", "weighted gradient norm", 0.8, "last fifth", True)
LOSS = Measure("loss", "interval loss", 0.5, "second half", False)
ACCURACY = Measure("accuracy", "test accuracy", 0.8, "last fifth", False)

# Okabe-Ito colours, told apart in print and by colour-blind readers
STYLE = {"I": {"color": "#D55E00", "linestyle": "--"}, "II": {"color": "#0072B2", "linestyle": "-"}}

Curves = dict[tuple[str, str, str], dict[int, list[float]]]  # (weights, topology, strategy) -> iteration -> per seed


def read(path: str | Path, column: str) -> Curves:
    """Curves of one column, the seeds of an iteration side by side; empty if the run has no such metric."""
    curves: Curves = {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row[column]:
                cell = curves.setdefault((row["weights"], row["topology"], row["strategy"]), {})
                cell.setdefault(int(row["iteration"]), []).append(float(row[column]))
    return curves


def measure_of(path: str | Path) -> Measure:
    """The gradient norm where it is known, else the loss."""
    return GRADIENT if read(path, GRADIENT.column) else LOSS


def late_mean(curve: dict[int, list[float]], late: float) -> float:
    """Mean over seeds and the late part of the iterations."""
    start = late * max(curve)
    return float(np.mean([values for iteration, values in curve.items() if iteration >= start]))


def summarise(path: str | Path) -> list[dict[str, Any]]:
    """One row per (weights, topology): the late mean of both strategies, their ratio, and which is lower."""
    measure = measure_of(path)
    curves, accuracies = read(path, measure.column), read(path, ACCURACY.column)
    rows = []
    for weights, topology in dict.fromkeys((w, t) for w, t, _ in curves):
        one, two = (late_mean(curves[weights, topology, name], measure.late) for name in ("I", "II"))
        lower = "equal" if np.isclose(one, two, rtol=1e-9, atol=0) else "II" if two < one else "I"
        row = {"weights": weights, "topology": topology, "I": one, "II": two, "II/I": two / one, "lower": lower}
        for name in ("I", "II") if accuracies else ():
            curve = accuracies[weights, topology, name]
            row[f"accuracy {name}"] = float(np.mean(curve[max(curve)]))
        rows.append(row)
    return rows


def text(rows: Sequence[dict[str, Any]], path: str | Path, seeds: int) -> str:
    """The table for the terminal, with the verdict in a sentence."""
    measure = measure_of(path)
    shown = [
        {
            "weights": row["weights"],
            "topology": row["topology"],
            "Strategy I": f"{row['I']:.4g}",
            "Strategy II": f"{row['II']:.4g}",
            "II/I": f"{row['II/I']:.3f}",
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


def write(rows: Sequence[dict[str, Any]], csv_path: str | Path, directory: str | Path) -> None:
    """summary.json and the figures (PNG and PDF) beside the CSV."""
    directory = Path(directory)
    (directory / "summary.json").write_text(json.dumps(list(rows), indent=2) + "\n", encoding="utf-8")
    (directory / "figures").mkdir(exist_ok=True)
    for name, measure in (("compare", measure_of(csv_path)), ("accuracy", ACCURACY)):
        curves = read(csv_path, measure.column)
        for suffix in ("png", "pdf") if curves else ():
            figure(curves, measure, directory / "figures" / f"{name}.{suffix}")


def figure(curves: Curves, measure: Measure, path: str | Path) -> None:
    """One row of panels per weights, one panel per topology, both strategies, mean and spread over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    weights = list(dict.fromkeys(key[0] for key in curves))
    topologies = list(dict.fromkeys(key[1] for key in curves))
    picture, axes = pyplot.subplots(
        len(weights),
        len(topologies),
        figsize=(3.1 * len(topologies), 2.5 * len(weights) + 0.5),
        squeeze=False,
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    for (weight, topology, strategy), curve in curves.items():
        panel = axes[weights.index(weight)][topologies.index(topology)]
        iterations = sorted(curve)
        values = np.array([curve[iteration] for iteration in iterations])  # [iterations, seeds]
        panel.plot(iterations, values.mean(1), label=f"Strategy {strategy}", linewidth=1.6, **STYLE[strategy])
        panel.set_yscale("log" if measure.logarithmic else "linear")
        low, high = np.percentile(values, [10, 90], axis=1)
        panel.fill_between(iterations, low, high, color=STYLE[strategy]["color"], alpha=0.15, linewidth=0)
    for i, weight in enumerate(weights):
        axes[i][0].set_ylabel(f"weights {weight}\n{measure.label}")
        for j, topology in enumerate(topologies):
            axes[i][j].grid(alpha=0.3, which="both", linewidth=0.4)
            both = {name: curves[weight, topology, name] for name in STYLE}
            if measure.logarithmic:
                _magnify(axes[i][j], both, measure)
            else:
                axes[i][j].text(0.5, 0.96, _verdict(both, measure), transform=axes[i][j].transAxes, va="top")
            if i == 0:
                axes[i][j].set_title(topology)
            if i == len(weights) - 1:
                axes[i][j].set_xlabel("iteration")
    picture.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    picture.savefig(path, dpi=150)
    pyplot.close(picture)


def _magnify(panel: Any, curves: dict[str, dict[int, list[float]]], measure: Measure) -> None:
    """The last two thirds again on a linear scale, where the strategies differ, with the late ratio in words."""
    inset = panel.inset_axes((0.36, 0.36, 0.6, 0.46))
    for name, curve in curves.items():
        shown = [iteration for iteration in sorted(curve) if iteration >= max(curve) / 3]
        inset.plot(shown, [np.mean(curve[iteration]) for iteration in shown], linewidth=1.2, **STYLE[name])
    inset.set_title(_verdict(curves, measure), fontsize="small")
    inset.tick_params(labelsize="x-small")


def _verdict(curves: dict[str, dict[int, list[float]]], measure: Measure) -> str:
    one, two = (late_mean(curves[name], measure.late) for name in ("I", "II"))
    word = "lower" if two < one else "higher"
    if measure is ACCURACY:
        return f"II is {100 * abs(two - one):.1f} points {word}"
    return f"II is {100 * abs(1 - two / one):.1f} % {word}"
