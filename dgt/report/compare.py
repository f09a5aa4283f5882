"""The comparison of both strategies from its CSV: verdict per cell, text table, and a figure like the paper's."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dgt.report.tables import table

METRIC = "grad_norm"
# Okabe-Ito colours, told apart in print and by colour-blind readers
STYLE = {"I": {"color": "#D55E00", "linestyle": "--"}, "II": {"color": "#0072B2", "linestyle": "-"}}

Curves = dict[tuple[str, str, str], dict[int, list[float]]]  # (weights, topology, strategy) -> iteration -> per seed


def read(path: str | Path, metric: str = METRIC) -> Curves:
    """Curves of one metric, the seeds of an iteration side by side."""
    curves: Curves = {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cell = curves.setdefault((row["weights"], row["topology"], row["strategy"]), {})
            cell.setdefault(int(row["iteration"]), []).append(float(row[metric]))
    return curves


def late_mean(curve: dict[int, list[float]]) -> float:
    """Mean over seeds and the last fifth of the iterations."""
    start = 0.8 * max(curve)
    return float(np.mean([values for iteration, values in curve.items() if iteration >= start]))


def summarise(path: str | Path) -> list[dict[str, Any]]:
    """One row per (weights, topology): the late mean of both strategies, their ratio, and which is lower."""
    curves = read(path)
    rows = []
    for weights, topology in dict.fromkeys((w, t) for w, t, _ in curves):
        one, two = (late_mean(curves[weights, topology, name]) for name in ("I", "II"))
        lower = "equal" if np.isclose(one, two, rtol=1e-9, atol=0) else "II" if two < one else "I"
        rows.append({"weights": weights, "topology": topology, "I": one, "II": two, "II/I": two / one, "lower": lower})
    return rows


def text(rows: Sequence[dict[str, Any]], seeds: int) -> str:
    """The table for the terminal, with the verdict in a sentence."""
    shown = [
        {
            "weights": row["weights"],
            "topology": row["topology"],
            "Strategy I": f"{row['I']:.4g}",
            "Strategy II": f"{row['II']:.4g}",
            "II/I": f"{row['II/I']:.3f}",
            "lower": row["lower"],
        }
        for row in rows
    ]
    wins = sum(row["lower"] in ("II", "equal") for row in rows)
    verdict = f"Strategy II is at or below Strategy I in {wins} of {len(rows)} cells."
    what = f"weighted gradient norm, mean of the last fifth of the iterations, {seeds} seeds"
    return f"{what}\n\n{table(shown)}\n\n{verdict}"


def write(rows: Sequence[dict[str, Any]], csv_path: str | Path, directory: str | Path) -> None:
    """summary.json and the figure (PNG and PDF) beside the CSV."""
    directory = Path(directory)
    (directory / "summary.json").write_text(json.dumps(list(rows), indent=2) + "\n", encoding="utf-8")
    (directory / "figures").mkdir(exist_ok=True)
    for suffix in ("png", "pdf"):
        figure(read(csv_path), directory / "figures" / f"compare.{suffix}")


def figure(curves: Curves, path: str | Path) -> None:
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
        panel.semilogy(iterations, values.mean(1), label=f"Strategy {strategy}", linewidth=1.6, **STYLE[strategy])
        low, high = np.percentile(values, [10, 90], axis=1)
        panel.fill_between(iterations, low, high, color=STYLE[strategy]["color"], alpha=0.15, linewidth=0)
    for i, weight in enumerate(weights):
        axes[i][0].set_ylabel(f"weights {weight}\nweighted gradient norm")
        for j, topology in enumerate(topologies):
            axes[i][j].grid(alpha=0.3, which="both", linewidth=0.4)
            _magnify(axes[i][j], {name: curves[weight, topology, name] for name in STYLE})
            if i == 0:
                axes[i][j].set_title(topology)
            if i == len(weights) - 1:
                axes[i][j].set_xlabel("iteration")
    picture.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    picture.savefig(path, dpi=150)
    pyplot.close(picture)


def _magnify(panel: Any, curves: dict[str, dict[int, list[float]]]) -> None:
    """The last two thirds again on a linear scale, where the strategies differ, with the late ratio in words."""
    inset = panel.inset_axes((0.36, 0.36, 0.6, 0.46))
    for name, curve in curves.items():
        late = [iteration for iteration in sorted(curve) if iteration >= max(curve) / 3]
        inset.plot(late, [np.mean(curve[iteration]) for iteration in late], linewidth=1.2, **STYLE[name])
    ratio = late_mean(curves["II"]) / late_mean(curves["I"])
    inset.set_title(f"II is {100 * abs(1 - ratio):.1f} % {'lower' if ratio < 1 else 'higher'}", fontsize="small")
    inset.tick_params(labelsize="x-small")
