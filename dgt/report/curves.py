"""A metric over the iterations: a row of panels per weights, a panel per topology, a line per strategy (or whatever
else differs), mean and spread over the seeds. The paper's curves are `write(runs, GRADIENT, "figures/grad_norm")`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dgt.report import style
from dgt.report.groups import Array, Curve, Group, curve, grouped
from dgt.report.networks import nodes_of
from dgt.runs.measures import Measure
from dgt.runs.run import Run

BAND = (10, 90)  # percent of the seeds between which the band lies
ABREAST = {style.PAGE: 4, style.COLUMN: 2}  # panels per row


def write(runs: Sequence[Run], measure: Measure, stem: str | Path, width: float = style.PAGE) -> list[Path]:
    """The figure of one metric as PDF, SVG and PNG; no file if no run has the metric."""
    return write_several(runs, [measure], stem, width)


def write_several(
    runs: Sequence[Run], shown: Sequence[Measure], stem: str | Path, width: float = style.PAGE
) -> list[Path]:
    """Several metrics of the same runs below each other, like the paper's loss and accuracy."""
    grids = [grid for measure in shown if (grid := grid_of(runs, measure)).cells]
    if not grids:
        return []
    with style.applied():
        return style.save(draw(grids, width), Path(stem))


@dataclass
class Grid:
    """The curves of one metric by place: (row, column) -> line -> curve."""

    measure: Measure
    cells: dict[tuple[str, str], dict[str, Curve]] = field(default_factory=dict)
    left_out: int = 0  # unfinished runs of groups that have finished ones
    unfinished: int = 0  # unfinished runs that are drawn because their group has no finished one
    without: int = 0  # lines that have no finite mean anywhere

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def lines(self) -> list[str]:
        return list(dict.fromkeys(line for lines in self.cells.values() for line in lines))


def grid_of(runs: Sequence[Run], measure: Measure) -> Grid:
    grid = Grid(measure)
    for group in grouped(runs):
        measured = curve(group, measure.metric)
        if measured is not None and not np.isfinite(measured.values.mean(1)).any():
            grid.without += 1
        elif measured is not None:
            place = (style.plain(_row(group)), style.plain(_column(group)))
            grid.cells.setdefault(place, {})[style.plain(_line(group))] = measured
            grid.left_out += len(group.unfinished) if group.is_finished else 0
            grid.unfinished += 0 if group.is_finished else len(group.unfinished)
    return grid


def _row(group: Group) -> str:
    nodes = nodes_of(group.runs[0])
    own = {key.partition(".")[2]: value for key, value in group.choices.items() if key.startswith("weights.")}
    values = textwrap.shorten(own.pop("values", "").replace(",", ", "), 24, placeholder=" ...")
    label = f"weights {values.strip('-') or group.runs[0].choice('weights')}"
    return ", ".join([label, *(f"{key} {value}" for key, value in own.items()), *([f"{nodes} nodes"] if nodes else [])])


def _column(group: Group) -> str:
    own = [f"{key.partition('.')[2]} {value}" for key, value in group.choices.items() if key.startswith("topology.")]
    return ", ".join([group.runs[0].choice("topology"), *own])


def _line(group: Group) -> str:
    """A line's name: 'Strategy II', with other settings that differ: 'Strategy II, lr 0.02'."""
    strategy = f"Strategy {group.runs[0].choice('strategy')}"
    told = ("weights", "topology", "nodes", "strategy")
    own = {key: value for key, value in group.choices.items() if key.split(".")[0] not in told and key != "problem"}
    words = [value if key == "algorithm" else f"{key.removeprefix('problem.')} {value}" for key, value in own.items()]
    return ", ".join([strategy] * (not words or "strategy" in group.choices) + words)


def draw(grids: Sequence[Grid], width: float) -> Figure:
    """All panels; a row of the grid that is too long for the figure's width is wrapped."""
    columns = grids[0].columns
    abreast = min(3 if len(columns) in (5, 6, 9) else 4, len(columns), ABREAST[width])
    stripes = [
        (grid, row, part)
        for row in grids[0].rows
        for part in (columns[k : k + abreast] for k in range(0, len(columns), abreast))
        for grid in grids
        if any((row, column) in grid.cells for column in part)
    ]
    large = 1.5 if len(stripes) == 1 and abreast == 1 else 1.0
    heights = [large * h for grid, _, _ in stripes for h in ((1.1, 0.8) if grid.measure.close_up else (1.25,))]
    styles = _styles([line for grid in grids for line in grid.lines])
    # line names are right of the last panel of a row, or in a legend below all panels if there is no room
    beside = width == style.PAGE and len(styles) <= 9 * large and all(_last_has_all(*stripe) for stripe in stripes)
    legend_rows = 0 if beside else -(-len(styles) // max(2, abreast))
    height = sum(heights) + 0.14 * len(stripes) + 0.16 * legend_rows + 0.55
    figure = style.figure(min(width, 0.9 + 1.6 * abreast + 0.75 * (abreast == 1)), height)
    axes = figure.subplots(
        len(heights), abreast, squeeze=False, sharex=True, sharey="row", gridspec_kw={"height_ratios": heights}
    )
    labels: list[list[Annotation]] = []
    at, above = 0, None
    for grid, row, part in stripes:
        stripe = axes[at : at + 1 + grid.measure.close_up]
        at += len(stripe)
        labels.append(_stripe(stripe, grid, row, part, styles, titled=part != above))
        _name_axes(stripe, row, grid.measure, len(grids[0].rows) > 1, len(grids) > 1)
        above = part
    for panel in axes[-1]:
        panel.set_xlabel("iteration")
    shared = len({look["color"] for look in styles.values()}) < len(styles)  # a colour is used by both strategies
    style.header(figure, [*_what(grids), *["dashed: Strategy I"] * (shared and beside)])
    if beside:
        style.spread(figure, labels)
    else:
        for label in (label for found in labels for label in found):
            label.remove()
        handles = [Line2D([], [], label=name, **look) for name, look in styles.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=max(2, abreast), frameon=False)
    return figure


def _last_has_all(grid: Grid, row: str, part: Sequence[str]) -> bool:
    """Whether the last panel of the row has all lines of the other panels, so that naming its lines names all."""
    shown = [set(grid.cells[row, column]) for column in part if (row, column) in grid.cells]
    return set().union(*shown) == shown[-1]


def _styles(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    names = list(dict.fromkeys(lines))
    strategies = [name.partition(", ")[0].removeprefix("Strategy ") for name in names]
    if set(strategies) <= set(style.STRATEGIES) and len(set(strategies)) == len(names):
        return {name: style.STRATEGIES[strategy] for name, strategy in zip(names, strategies, strict=True)}
    parts = {name: name.partition(", ") for name in names}
    rest = list(dict.fromkeys(part[2] for part in parts.values()))
    if len(rest) < len(names):  # pairs of I and II: colour by the other settings, dashes by strategy
        dashes = {f"Strategy {key}": look["linestyle"] for key, look in style.STRATEGIES.items()}
        return {
            name: {**style.line(rest.index(part[2])), "linestyle": dashes.get(part[0], ":")}
            for name, part in parts.items()
        }
    return {name: style.line(number) for number, name in enumerate(names)}


def _stripe(
    stripe: Any,  # [1, or 2 with a close-up; panels]
    grid: Grid,
    row: str,
    columns: Sequence[str],
    styles: Mapping[str, Mapping[str, Any]],
    titled: bool,
) -> list[Annotation]:
    """One row of panels; returns the names of the lines, written right of the last panel."""
    measure = grid.measure
    shown = {k: grid.cells[row, name] for k, name in enumerate(columns) if (row, name) in grid.cells}
    for k in range(stripe.shape[1]):
        for panel in stripe[:, k]:
            panel.set_visible(k in shown)
            panel.tick_params(labelleft=k == min(shown))
    for k, curves in shown.items():
        _panel(stripe[0, k], curves, measure, styles)
        words = verdict(curves, measure)
        if titled:
            stripe[0, k].set_title(columns[k], pad=13 if words else 5)
        stripe[0, k].text(0.5, 1.04, words, transform=stripe[0, k].transAxes, ha="center", fontsize=7, color=style.GREY)
        if measure.close_up:
            _close_up(stripe[1, k], curves, [c for found in shown.values() for c in found.values()], styles)
    last = max(shown)
    ends = [(name, _end(measured), str(styles[name]["color"])) for name, measured in shown[last].items()]
    return style.end_labels(stripe[-1, last], ends)


def _end(measured: Curve) -> float:
    """The height of a line's right end: its mean over the last tenth, or its last finite value."""
    means = measured.values.mean(1)
    known = means[np.isfinite(means)]
    return float(known[-max(1, means.size // 10) :].mean()) if known.size else 0.0


def _panel(panel: Axes, curves: Mapping[str, Curve], measure: Measure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """The mean of every line with its band."""
    for number, (name, measured) in enumerate(curves.items()):
        # the first line, which is dashed, is drawn on top: a line that coincides with it shows through the gaps
        dot = "o" if len(measured.iterations) == 1 else None  # a line through a single point would not be visible
        panel.plot(measured.iterations, measured.values.mean(1), zorder=3 - 0.01 * number, marker=dot, **styles[name])
        if measured.values.shape[1] > 1:
            low, high = np.percentile(measured.values, BAND, axis=1)
            panel.fill_between(measured.iterations, low, high, color=styles[name]["color"], alpha=0.18, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    style.light_grid(panel)
    if measure.logarithmic and any((measured.values.mean(1) > 0).any() for measured in curves.values()):
        panel.set_yscale("log", nonpositive="mask")
    if measure.higher_is_better:
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))


def _close_up(
    panel: Axes, curves: Mapping[str, Curve], row: Sequence[Curve], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    """The plateau of the whole row on a linear scale: the mean, faint, and its moving average."""
    late = np.concatenate([c.values.mean(1)[c.iterations >= c.iterations[-1] / 3] for c in row])
    late = late[np.isfinite(late)]
    style.light_grid(panel)
    if not late.size:
        return
    low, high = float(late.min()), float(late.max())
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    panel.set_ylim(low - room, high + room)
    for number, (name, measured) in enumerate(curves.items()):
        mean = measured.values.mean(1)
        start = int(np.argmax(mean <= high))  # where the line enters the picture
        panel.plot(measured.iterations, mean, alpha=0.3, **{**styles[name], "linewidth": 0.5, "linestyle": "-"})
        smooth = _moving_average(mean[start:], max(1, mean.size // 10))
        panel.plot(measured.iterations[start:], smooth, zorder=3 - 0.01 * number, **styles[name])


def _moving_average(values: Array, window: int) -> Array:
    """Centred moving average; at both ends over a shorter window."""
    ones = np.ones(window)
    total: Array = np.convolve(values, ones, "full") / np.convolve(np.ones(values.size), ones, "full")
    return total[(window - 1) // 2 :][: values.size]


def _name_axes(stripe: Any, row: str, measure: Measure, several_rows: bool, several_measures: bool) -> None:
    words = row.replace(", ", "\n") if several_rows else textwrap.fill(measure.label, 16)
    stripe[0, 0].set_ylabel(words if not (several_rows and several_measures) else f"{row}\n{measure.label}")
    if measure.close_up:
        stripe[1, 0].set_ylabel("close-up")


def verdict(curves: Mapping[str, Curve], measure: Measure) -> str:
    """'II 12.8 % lower' over the last iterations; empty unless the lines are Strategy I and II."""
    if set(curves) != {"Strategy I", "Strategy II"}:
        return ""
    one, two = (float(curves[f"Strategy {name}"].late(measure.late).mean()) for name in ("I", "II"))
    if not np.isfinite([one, two]).all():
        return ""
    word = "lower" if two < one else "higher"
    if measure.higher_is_better:
        return f"II {100 * abs(two - one):.1f} points {word}"
    return f"II {100 * abs(1 - two / one):.1f} % {word}" if one else ""


def _what(grids: Sequence[Grid]) -> list[str]:
    """The header: what is drawn, and over how many seeds."""
    curves = [measured for grid in grids for lines in grid.cells.values() for measured in lines.values()]
    low, high = (choose(measured.values.shape[1] for measured in curves) for choose in (min, max))
    seeds = f"mean and {BAND[0]}\N{EN DASH}{BAND[1]} % band over {low if low == high else f'{low} to {high}'} seeds"
    first = " and ".join(f"{grid.measure.label} {grid.measure.symbol}".strip() for grid in grids)
    row = [f"{grids[0].rows[0]}:"] if len(grids[0].rows) == 1 else []
    words = [*row, first, seeds if high > 1 else "one seed"]
    if any(grid.measure.close_up for grid in grids):
        words.append("close-up: linear scale, moving average of the mean")
    if grids[0].left_out:
        words.append(f"{grids[0].left_out} unfinished left out")
    if grids[0].unfinished:
        words.append(f"{grids[0].unfinished} unfinished, as far as they go")
    if grids[0].without:
        words.append(f"{grids[0].without} without a finite mean left out")
    return words
