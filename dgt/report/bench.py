"""The table of a benchmark: medians over rounds of what all ranks measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dgt.report.tables import table

Results = Mapping[int, Mapping[str, Mapping[str, list[float]]]]  # rank -> variant -> measure -> rounds


def summarise(results: Results) -> list[dict[str, Any]]:
    """One row per variant; ratios are medians of the rounds' own ratios, means over ranks within a round."""
    rounds = {
        name: {
            measure: np.mean([rank[name][measure] for rank in results.values()], axis=0)
            for measure in ("wall", "cpu", "wait", "bytes", "memory_mb")
        }
        for name in next(iter(results.values()))
    }
    rows = []
    for name, measures in rounds.items():
        row: dict[str, Any] = {"variant": name}
        for measure in ("wall", "cpu", "wait"):
            row[f"{measure}_ms"] = 1e3 * float(np.median(measures[measure]))
        for base in ("compute", "limit", "ddp"):
            for measure in ("cpu", "wall"):
                if base in rounds:
                    row[f"{measure}/{base}"] = float(np.median(measures[measure] / rounds[base][measure]))
        row["mb_sent"] = float(np.median(measures["bytes"])) / 1e6
        row["memory_mb"] = float(measures["memory_mb"][0])
        rows.append(row)
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """For the terminal."""
    shown = [{name: value if name == "variant" else f"{value:.3g}" for name, value in row.items()} for row in rows]
    return table(shown) + "\nper iteration and rank, medians over the rounds; ratios are taken within a round"
