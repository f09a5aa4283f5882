"""Plain text tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Columns as wide as their widest entry; words to the left, numbers to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *[[row.get(name, "") for name in names] for row in rows]]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    numeric = [all(_is_number(line[k]) for line in cells[1:] if line[k]) for k in range(len(names))]
    lines = [
        "  ".join(
            text.rjust(w) if right else text.ljust(w) for text, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("x%"))
    except ValueError:
        return False
    return True


def gap_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """The spectral gaps beside the published ones, with a mark where the printed digits agree."""
    shown = []
    for row in rows:
        digits = len(row["published"].partition(".")[2])
        gap = f"{row['gap']:.{digits}f}"
        line = {
            "nodes": str(row["nodes"]),
            "topology": row["topology"] if row["tailored_for"] is None else f"tailored for {row['tailored_for']}",
            "weights": row["weights"],
            "gap": gap,
            "published": row["published"],
            "same": "yes" if gap == row["published"] else "other draw" if row["tailored_for"] else "NO",
        }
        swapped = "optimized" in row
        line["optimized"] = f"{row['optimized']:.{digits}f}" if swapped else ""
        line["x published"] = f"{row['factor']:.2f}x" if swapped else ""
        if "optimal" in row:
            line["best weights"] = f"{row['optimal']:.{digits}f}"
        shown.append(line)
    notes = [
        "weights 'uniform' is the doubly stochastic W; tailored graphs are random, the paper shows one draw.",
        "optimized: edges swapped at the same degrees, for the weights the graph is tailored for (topology.optimize).",
    ]
    if any("optimal" in row for row in rows):
        notes.append(
            "best weights: what a W that knows the whole (optimized) graph reaches; ours knows neighbours only."
        )
    return "\n".join([table(shown), *notes])
