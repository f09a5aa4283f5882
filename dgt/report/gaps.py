"""The paper's spectral-gap table beside what is recomputed, as a figure, Markdown and CSV: `dgt gaps --figures DIR`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from dgt.config import TopologyConfig, files
from dgt.errors import ConfigError
from dgt.report import matrices, style
from dgt.report.tables import markdown_table

Rows = Sequence[Mapping[str, Any]]  # of `network.gaps.gap_table`
MATRICES: dict[str, dict[str, Any]] = {
    "W": {"color": style.BLUE, "marker": "o"},
    "ds": {"color": style.VERMILLION, "marker": "s"},
}
OPTIMIZED = "optimized"
NAMES = {"W": "$W$", "ds": r"$W^{\mathrm{ds}}$"}


def write_all(rows: Rows, topology: TopologyConfig, directory: Path) -> list[Path]:
    """The table with its figure, and the adjacency matrices of the tailored graphs in it."""
    try:
        written = write(rows, directory)
        for name, optimize in (("adjacency", True), ("adjacency_plain", False)):  # with swaps; as the paper
            drawn = matrices.papers(topology.replace(optimize=optimize))
            written += matrices.write(drawn, directory / name)
        return written
    except OSError as error:
        raise ConfigError(f"{directory}: cannot write there ({error.strerror}); choose another directory") from None


def write(rows: Rows, directory: str | Path) -> list[Path]:
    """gaps.pdf, .svg, .png, .md and .csv."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    files.write(directory / "gaps.md", markdown(rows))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    files.write(directory / "gaps.csv", table.getvalue())
    return [*figure(rows, directory / "gaps"), directory / "gaps.md", directory / "gaps.csv"]


def _with_optimized(rows: Rows) -> Rows:
    """The rows, with tailored graphs optimized by edge swaps as a topology of its own after the plain ones."""
    swapped = [row for row in rows if row.get("optimized") is not None]
    return [*rows, *({**row, "topology": OPTIMIZED, "gap": row["optimized"]} for row in swapped)]


def figure(rows: Rows, stem: str | Path) -> list[Path]:
    """A panel per weights, a line per topology: filled marks are recomputed, outlines published."""
    rows = _with_optimized(rows)
    panels = {row["weights"]: row["nodes"] for row in rows if row["weights"] != "uniform"}
    topologies = list(dict.fromkeys(row["topology"] for row in rows))
    with style.applied():
        picture = style.figure(style.PAGE, 0.24 * len(topologies) + 1.05)
        axes = picture.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for panel, (weights, nodes) in zip(axes, panels.items(), strict=True):
            for height, topology in enumerate(topologies):
                _dots(panel, height, [row for row in rows if _belongs(row, topology, weights, nodes)])
            panel.set_title(rf"$\lambda_{weights}$, {nodes} nodes")
            panel.set_xscale("log")
            panel.set_xlim(4e-4, 1)
            panel.grid(axis="x", color="#dddddd", linewidth=0.4)
            panel.spines["left"].set_visible(False)
            panel.tick_params(axis="y", length=0)
        axes[0].set_yticks(range(len(topologies)), topologies)
        axes[0].set_ylim(len(topologies) - 0.5, -0.75)
        picture.supxlabel("spectral gap   (filled: recomputed, outline: published)", fontsize=8)
        _name(axes[0], rows, next(iter(panels)))
        return style.save(picture, Path(stem))


def _belongs(row: Mapping[str, Any], topology: str, weights: str, nodes: int) -> bool:
    """Whether a cell is a gap of W for these weights, or of the doubly stochastic W on the same graph."""
    same = (row["topology"], row["nodes"]) == (topology, nodes) and row["tailored_for"] in (None, weights)
    return same and row["weights"] in (weights, "uniform")


def _kind(row: Mapping[str, Any]) -> str:
    return "ds" if row["weights"] == "uniform" else "W"


def _dots(panel: Axes, height: int, rows: Rows) -> None:
    panel.plot([row["gap"] for row in rows], [height] * len(rows), color="#bbbbbb", linewidth=1.0, zorder=1)
    for row in rows:
        look = MATRICES[_kind(row)]
        panel.plot(row["gap"], height, markersize=4, linestyle="none", **look)
        ring = {**look, "markerfacecolor": "none", "markersize": 7.5, "markeredgewidth": 0.8}
        panel.plot(float(row["published"]), height, linestyle="none", **ring)


def _name(panel: Axes, rows: Rows, weights: str) -> None:
    """Label the two dots of the first pair with their matrices."""
    first = [row for row in rows if _belongs(row, rows[0]["topology"], weights, rows[0]["nodes"])]
    most = max(row["gap"] for row in first)
    for row in first:
        side = 1 if row["gap"] == most else -1
        panel.annotate(
            NAMES[_kind(row)], (row["gap"], 0), (6 * side, 0), textcoords="offset points", va="center",
            ha="left" if side > 0 else "right", color=MATRICES[_kind(row)]["color"],
        )  # fmt: skip


def markdown(rows: Rows) -> str:
    """The table as the paper prints it: recomputed, published in brackets, the larger gap of a graph in bold."""
    rows = _with_optimized(rows)
    columns = list(dict.fromkeys((row["nodes"], row["weights"]) for row in sorted(rows, key=lambda row: row["nodes"])))
    lines = []
    for topology, drawn_for in dict.fromkeys((row["topology"], row["tailored_for"]) for row in rows):
        of_graph = [row for row in rows if (row["topology"], row["tailored_for"]) == (topology, drawn_for)]
        line = {"topology": f"{topology} for {drawn_for}" if drawn_for else topology}
        for nodes, name in columns:
            head = f"{nodes}: W^ds" if name == "uniform" else f"{nodes}: W({name})"
            found = [row for row in of_graph if (row["nodes"], row["weights"]) == (nodes, name)]
            line[head] = _cell(found[0], of_graph) if found else "-"
        lines.append(line)
    note = "Recomputed, in brackets as published; bold: the largest gap on this graph."
    more = "The paper's tailored graphs are another draw; optimized: edges swapped at the same degrees for a wider gap."
    return "\n".join([markdown_table(lines), "", note, more, ""])


def _cell(row: Mapping[str, Any], of_graph: Rows) -> str:
    digits = len(row["published"].partition(".")[2])
    gap = f"{row['gap']:.{digits}f}"
    most = max(other["gap"] for other in of_graph if other["nodes"] == row["nodes"])
    return f"**{gap}** ({row['published']})" if row["gap"] == most else f"{gap} ({row['published']})"
