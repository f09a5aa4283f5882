"""Plain text tables for the terminal, and Markdown ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Columns as wide as their widest entry; words to the left, numbers to the right."""
    names, cells = _cells(rows)
    lines, widths, _ = _aligned([names, *cells])
    return "\n".join([lines[0].rstrip(), "  ".join("-" * w for w in widths), *(line.rstrip() for line in lines[1:])])


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """The same in Markdown, with aligned columns in its source."""
    names, cells = _cells(rows)
    escaped = [[text.replace("|", r"\|") for text in line] for line in (names, *cells)]
    lines, widths, right = _aligned(escaped, " | ", least=3)
    rule = " | ".join("-" * (w - r) + ":" * r for w, r in zip(widths, right, strict=True))
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def _cells(rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[row.get(name, "") for name in names] for row in rows]


def _aligned(cells: list[list[str]], between: str = "  ", least: int = 0) -> tuple[list[str], list[int], list[bool]]:
    """The lines, how wide their columns are, and which of them hold numbers."""
    widths = [max(least, *(len(line[k]) for line in cells)) for k in range(len(cells[0]))]
    right = [all(_is_number(line[k]) for line in cells[1:] if line[k]) for k in range(len(widths))]
    lines = [
        between.join(text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True))
        for line in cells
    ]
    return lines, widths, right


def _is_number(text: str) -> bool:
    """Also '12.5%', '2x', '0.31 ± 0.02', and any of them in bold or marked by a star."""
    try:
        float(text.strip("*").partition(" ±")[0].rstrip("x%"))
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
