"""The style of all figures: sizes for a column or a page in print, lines that differ without colour, no pyplot.

with style.applied():
    figure = style.figure(style.PAGE, 2.0)
    ...
    style.save(figure, Path("figures/gaps"))     # gaps.pdf, gaps.svg, gaps.png
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from dgt.config import files

COLUMN, PAGE = 3.25, 6.75  # inches: one column, and both, of a two-column paper
FORMATS = ("pdf", "svg", "png")
GREY = "#666666"

# Okabe-Ito colours, told apart by colour-blind readers; the dashes tell lines apart in a grey print
BLUE, VERMILLION = "#0072B2", "#D55E00"
STRATEGIES: dict[str, dict[str, Any]] = {
    "I": {"color": VERMILLION, "linestyle": (0, (3.2, 1.2))},
    "II": {"color": BLUE, "linestyle": "-"},
}
_COLOURS = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (3.2, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)))

_SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # TrueType fonts: text stays searchable, and journals refuse Type 3
    "svg.hashsalt": "dgt",  # fixed ids: the same data gives the same bytes
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}


def applied() -> AbstractContextManager[None]:
    """matplotlib's settings inside a `with` block, in which a figure is made and saved."""
    return matplotlib.rc_context(_SETTINGS)


def figure(width: float, height: float) -> Figure:
    """A figure that is not registered with pyplot's global state."""
    return Figure(figsize=(width, height), layout="constrained")


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line of a panel; all of the first 35 differ."""
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}


def plain(words: str) -> str:
    """Text from a config with dollar signs escaped, which would begin a formula."""
    return words.replace("$", r"\$")


def header(figure: Figure, words: Sequence[str]) -> None:
    """What the figure shows, small and grey above it, in as many lines as its width needs."""
    title = figure.suptitle("", x=0.01, ha="left", fontsize=7, color=GREY)
    lines: list[str] = []
    for word in words:
        between = " " if lines and lines[-1].endswith(":") else "; "
        title.set_text(between.join([*lines[-1:], word]))
        fits = lines and title.get_window_extent().width < 0.97 * figure.bbox.width
        lines[-1:] = [title.get_text()] if fits else [*lines[-1:], word]
    title.set_text("\n".join(lines))


def light_grid(panel: Axes) -> None:
    panel.grid(which="major", color="#dddddd", linewidth=0.4)
    panel.set_axisbelow(True)


def end_labels(panel: Axes, ends: Sequence[tuple[str, float, str]]) -> list[Annotation]:
    """The name of each line, in its colour, right of where it ends: (name, last value, colour)."""
    right, (low, high) = panel.get_xlim()[1], panel.get_ylim()
    return [
        panel.annotate(
            name, (right, min(max(value, low), high)), (3, 0), textcoords="offset points", va="center", color=colour,
            fontsize=7, fontweight="bold", annotation_clip=False,
        )
        for name, value, colour in ends
    ]  # fmt: skip


def spread(figure: Figure, groups: Sequence[Sequence[Annotation]]) -> None:
    """Move the labels of a panel up and down until none covers another; needs the final layout, so call it last."""
    if not any(groups):
        return
    figure.draw_without_rendering()
    apart = 8.5 * figure.dpi / 72
    for labels in groups:
        placed = sorted(labels, key=lambda label: label.xy[1])
        wanted = [float(label.axes.transData.transform(label.xy)[1]) for label in placed if label.axes]
        for label, here, there in zip(placed, _apart(wanted, apart), wanted, strict=True):
            label.set_position((3, (here - there) * 72 / figure.dpi))


def _apart(wanted: list[float], apart: float) -> list[float]:
    """The nearest positions to the wanted ones, in the same order, with at least `apart` between neighbours."""
    blocks: list[list[float]] = []  # positions that would overlap form a block, spaced evenly about its mean
    for place in wanted:
        blocks.append([place])
        while len(blocks) > 1 and _span(blocks[-2], apart)[1] + apart > _span(blocks[-1], apart)[0]:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_span(block, apart)[0] + k * apart for block in blocks for k in range(len(block))]


def _span(block: list[float], apart: float) -> tuple[float, float]:
    middle, half = sum(block) / len(block), (len(block) - 1) / 2 * apart
    return middle - half, middle + half


def save(figure: Figure, stem: Path) -> list[Path]:
    """The figure as PDF, SVG and PNG beside each other."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is computed once, not for every format
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in FORMATS]
    for path, suffix in zip(paths, FORMATS, strict=True):
        with files.replacing(path) as file:
            figure.savefig(file, format=suffix, dpi=220, metadata=no_date.get(suffix))
    return paths
