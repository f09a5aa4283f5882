"""Benchmarks as tables and figures: medians over rounds of what all ranks measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dgt.report.tables import table

Results = Mapping[str, Mapping[str, list[float]]]  # variant -> measure -> [round]
BASES = ("compute", "limit", "ddp", "shared")
# Okabe-Ito colours, told apart in print and by colour-blind readers
COLOURS = {
    "compute": "#999999", "limit": "#000000", "ddp": "#D55E00", "decent_dp": "#CC79A7", "naive": "#E69F00",
    "messages": "#56B4E9", "shared": "#0072B2", "no_overlap": "#009E73", "buckets": "#F0E442", "bfloat16": "#882255",
    "unchecked": "#44AA99", "crc": "#117733", "momentum": "#88CCEE", "adamw": "#332288", "ddp_momentum": "#DDCC77",
    "ddp_adamw": "#999933", "int8": "#AA4499", "int4": "#661100",
}  # fmt: skip
OTHERS = ("#661100", "#6699CC", "#AA4466", "#4477AA", "#228833", "#CCBB44", "#AA3377", "#BBBBBB")


def colour(name: str) -> str:
    """Of a variant, the same in all figures."""
    return COLOURS.get(name) or OTHERS[sum(name.encode()) % len(OTHERS)]


def summarise(results: Results) -> list[dict[str, Any]]:
    """One row per variant; ratios are medians of the rounds' own ratios."""
    rounds = {
        name: {measure: np.array(values) for measure, values in measures.items()} for name, measures in results.items()
    }
    rows = []
    for name, measures in rounds.items():
        row: dict[str, Any] = {"variant": name}
        for measure in ("wall", "cpu", "wait"):
            row[f"{measure}_ms"] = _number(1e3 * np.median(measures[measure]))
        for measure in ("cpu", "wall"):
            for base in BASES:
                if base in rounds:
                    row[f"{measure}/{base}"] = _number(np.median(measures[measure] / rounds[base][measure]))
        row["mb_sent"] = _number(np.median(measures["bytes"]) / 1e6)
        row["peak_mb"] = _number(measures["peak_mb"][0])
        rows.append(row)
    return rows


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


SHOWN = (
    "wall_ms", "cpu_ms", "wait_ms", "cpu/compute", "cpu/limit", "cpu/ddp", "wall/compute", "wall/ddp", "wall/shared",
    "mb_sent", "peak_mb",
)  # fmt: skip


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """For the terminal."""
    shown = [{"variant": row["variant"], **{name: _short(row[name]) for name in SHOWN if name in row}} for row in rows]
    said = table(shown) + "\nper iteration and rank; medians over the rounds, ratios taken within a round"
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row.get("terms"):
            groups.setdefault(row["terms"], []).append(row["variant"])
    if not groups:
        return said
    return "\n".join([said, "not on equal terms with DDP:", *(f"  {', '.join(k)}: {t}" for t, k in groups.items())])


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def figure(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Two rows of bars: CPU time of a rank, and wall time of an iteration with the part spent waiting."""
    from dgt.report import style  # matplotlib takes half a second to load

    names = [row["variant"] for row in rows]
    picture = style.figure(9, 0.36 * len(rows) + 1.2)
    panels = picture.subplots(1, 2, sharey=True)
    for panel, measure, words in zip(panels, ("cpu_ms", "wall_ms"), ("CPU per rank", "wall time"), strict=True):
        values = [row[measure] for row in rows]
        bars = panel.barh(names, values, color=[colour(name) for name in names])
        panel.bar_label(bars, [f" {value:.3g}" for value in values], fontsize="small")
        panel.set_title(f"{words}, ms per iteration", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    waits = [row["wait_ms"] or 0.0 for row in rows]
    panels[1].barh(
        names, waits, left=[row["wall_ms"] - wait for row, wait in zip(rows, waits, strict=True)],
        color="none", edgecolor="white", hatch="////", linewidth=0,
    )  # fmt: skip
    panels[1].set_xlabel("hatched: standing still for neighbours, where known", fontsize="small")
    for panel in panels:
        panel.set_xlim(right=1.15 * panel.get_xlim()[1])
    panels[0].invert_yaxis()
    picture.suptitle(title, fontsize="medium")
    style.save(picture, path)


def scaling_rows(measured: Sequence[tuple[str, int, Results]]) -> list[dict[str, Any]]:
    """One row per cell and variant."""
    return [{"grows": grows, "value": value, **row} for grows, value, results in measured for row in summarise(results)]


def scaling_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CPU per rank and iteration, one column per variant."""
    lines: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((row["grows"], row["value"]), {"grows": row["grows"], "to": f"{row['value']:,}"})
        line[row["variant"]] = _short(row["cpu_ms"])
    return table(list(lines.values())) + "\nCPU per rank and iteration in ms, medians over the rounds"


def scaling_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel each for ranks, degree and bytes: CPU per rank and iteration, on logarithmic axes."""
    from dgt.report import style  # matplotlib takes half a second to load

    grown = list(dict.fromkeys(row["grows"] for row in rows))
    picture = style.figure(3.4 * len(grown), 3.2)
    panels = picture.subplots(1, len(grown))
    labels = {"ranks": "ranks (degree 2)", "degree": "degree", "bytes": "bytes of the model (ring)"}
    for panel, grows in zip(np.atleast_1d(panels), grown, strict=True):
        for name in dict.fromkeys(row["variant"] for row in rows):
            points = [(row["value"], row["cpu_ms"]) for row in rows if (row["grows"], row["variant"]) == (grows, name)]
            if points:
                x, y = zip(*points, strict=True)
                panel.plot(x, y, marker="o", markersize=3.5, color=colour(name), label=name)
        panel.set_xscale("log", base=10 if grows == "bytes" else 2)
        panel.set_yscale("log")
        panel.set_xlabel(labels[grows])
        panel.grid(alpha=0.3, which="both", linewidth=0.4)
        if grows != "bytes":
            ticks = sorted({row["value"] for row in rows if row["grows"] == grows})
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.minorticks_off()
    np.atleast_1d(panels)[0].set_ylabel("CPU per rank and iteration, ms")
    handles, names = np.atleast_1d(panels)[0].get_legend_handles_labels()
    picture.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    style.save(picture, path)
