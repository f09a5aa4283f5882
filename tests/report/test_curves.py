"""Figures of curves: valid files of the right size, nothing outside the paper, no words over other words."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from dgt.report import curves, style
from dgt.runs.measures import ACCURACY, DISTANCE, GRADIENT, LOSS, Measure
from tests.report.crafted import IMAGES, run, runs

PAPER = ("ring", "grid", "exponential", "tailored")


def words(figure: Figure) -> dict[str, list[object]]:
    """Every visible text with where it is; of tick labels those in view."""
    figure.draw_without_rendering()
    ticks = {
        id(tick.label1): axis.get_view_interval()[0] <= tick.get_loc() <= axis.get_view_interval()[1]
        for panel in figure.axes
        for axis in (panel.xaxis, panel.yaxis)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    }
    hidden = {id(text) for panel in figure.axes if not panel.get_visible() for text in panel.findobj(Text)}
    found: dict[str, list[object]] = {}
    for text in figure.findobj(Text):
        shown = text.get_visible() and text.get_text().strip() and ticks.get(id(text), True) and id(text) not in hidden
        if shown:
            found.setdefault(text.get_text(), []).append(text.get_window_extent())
    return found


def check_layout(figure: Figure) -> None:
    places = [(name, box) for name, boxes in words(figure).items() for box in boxes]
    assert len(places) > 5
    for name, box in places:
        inside = box.x0 > -1 and box.y0 > -1 and box.x1 < figure.bbox.x1 + 1 and box.y1 < figure.bbox.y1 + 1
        assert inside, f"{name!r} leaves the figure"
    for (name, box), (other, place) in itertools.combinations(places, 2):
        shared = [min(box.x1, place.x1) - max(box.x0, place.x0), min(box.y1, place.y1) - max(box.y0, place.y0)]
        assert min(shared) < 1.5, f"{name!r} covers {other!r}"


@pytest.mark.parametrize("width", [style.PAGE, style.COLUMN])
@pytest.mark.parametrize(
    ("weights", "topologies", "shown"),
    [
        ("A", PAPER, [GRADIENT]),
        ("AB", PAPER, [DISTANCE]),
        ("A", (*PAPER, "geometric", "erdos_renyi"), [LOSS, ACCURACY]),
        ("D", ("ring",), [GRADIENT]),
    ],
)
def test_no_words_cover_others_or_leave_the_figure(
    weights: str, topologies: tuple[str, ...], shown: list[Measure], width: float
) -> None:
    metrics = ("loss", "accuracy", "grad_norm", "distance")
    found = runs(weights, topologies, seeds=2, metrics=metrics)
    with style.applied():
        figure = curves.draw([curves.grid_of(found, measure) for measure in shown], width)
        assert figure.get_figwidth() <= width
        check_layout(figure)


def test_the_figure_comes_as_pdf_svg_and_png(tmp_path: Path) -> None:
    paths = curves.write(runs(seeds=2), GRADIENT, tmp_path / "figures" / "grad_norm")
    assert [path.name for path in paths] == ["grad_norm.pdf", "grad_norm.svg", "grad_norm.png"]
    pdf, svg, png = (path.read_bytes() for path in paths)
    assert pdf.startswith(b"%PDF-")
    assert b"/Type3" not in pdf
    assert svg.startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")
    height, width, _ = imread(paths[2]).shape
    assert width == pytest.approx(220 * 4.1, abs=1)
    assert 300 < height < 1500
    again = curves.write(runs(seeds=2), GRADIENT, tmp_path / "again")
    assert again[0].read_bytes() == pdf
    assert again[1].read_bytes() == svg


def test_drawing_leaves_pyplot_and_settings_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    curves.write(runs(seeds=1), DISTANCE, tmp_path / "distance")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_lines_are_means_over_seeds_with_the_verdict_above() -> None:
    found = runs(topologies=("ring",), seeds=4)
    grid = curves.grid_of(found, GRADIENT)
    two = [run for run in found if run.choice("strategy") == "II"]
    by_hand = np.mean([[record["grad_norm"] for record in run.records] for run in two], axis=0)
    with style.applied():
        figure = curves.draw([grid], style.PAGE)
    drawn = [line.get_ydata() for line in figure.axes[0].lines]
    assert any(np.allclose(line, by_hand) for line in drawn)
    late = [np.mean([r["grad_norm"] for r in run.records if r["iteration"] >= 240]) for run in found]
    percent = 100 * (1 - np.mean(late[4:]) / np.mean(late[:4]))
    assert f"II {percent:.1f} % lower" in words(figure)
    assert {"Strategy I", "Strategy II"} <= set(words(figure))
    assert "4 seeds" in figure.get_suptitle()


def test_strategies_differ_in_dashes_and_not_only_in_colour() -> None:
    one, two = style.STRATEGIES["I"], style.STRATEGIES["II"]
    assert one["linestyle"] != two["linestyle"]
    looks = [str(sorted(style.line(number).items())) for number in range(35)]
    assert len(set(looks)) == 35


def test_accuracy_is_in_percent_and_higher_is_said_in_points() -> None:
    with style.applied():
        figure = curves.draw([curves.grid_of(runs(metrics=IMAGES), ACCURACY)], style.PAGE)
        found = words(figure)
    assert any(word.endswith("%") and word[:-1].isdigit() for word in found)
    assert any(word.startswith("II") and "points lower" in word for word in found)


def test_whatever_else_differs_names_the_lines() -> None:
    found = [run(seed=seed, lr=lr, strategy=s) for seed in (0, 1) for lr in (0.01, 0.02) for s in ("I", "II")]
    grid = curves.grid_of(found, GRADIENT)
    names = ["Strategy I, lr 0.01", "Strategy I, lr 0.02", "Strategy II, lr 0.01", "Strategy II, lr 0.02"]
    assert grid.lines == names
    with style.applied():
        check_layout(curves.draw([grid], style.PAGE))


def test_settings_of_problem_and_weights_never_replace_a_curve_by_another() -> None:
    problem = [{"name": "least_squares", "noise": noise} for noise in (0.5, 2.0)]
    grid = curves.grid_of([run(strategy=s, problem=one) for one in problem for s in ("I", "II")], GRADIENT)
    assert grid.lines == [
        "Strategy I, noise 0.5",
        "Strategy I, noise 2",
        "Strategy II, noise 0.5",
        "Strategy II, noise 2",
    ]
    found = [run("lognormal", nodes=1000) for _ in range(2)]
    for one, spread in zip(found, (0.5, 1.5), strict=True):
        one.config["weights"] = {"name": "lognormal", "spread": spread}
    grid = curves.grid_of(found, GRADIENT)
    assert grid.rows == ["weights lognormal, spread 0.5, 1000 nodes", "weights lognormal, spread 1.5, 1000 nodes"]


def test_lines_that_the_last_panel_has_not_are_named_too() -> None:
    grid = curves.grid_of([run(topology="ring", strategy="II"), run(topology="grid", strategy="I")], GRADIENT)
    with style.applied():
        figure = curves.draw([grid], style.PAGE)
    assert [entry.get_text() for entry in figure.legends[0].get_texts()] == ["Strategy II", "Strategy I"]


def test_many_lines_have_a_legend_in_place_of_labels() -> None:
    found = [run(lr=0.001 * k) for k in range(1, 21)]
    with style.applied():
        figure = curves.draw([curves.grid_of(found, DISTANCE)], style.PAGE)
        assert len(figure.legends[0].get_texts()) == 20
        check_layout(figure)


def test_an_unfinished_seed_is_left_out_and_said(tmp_path: Path) -> None:
    found = [*runs(topologies=("ring",), seeds=2), run(seed=7, until=120)]
    grid = curves.grid_of(found, GRADIENT)
    assert grid.cells["weights A, 16 nodes", "ring"]["Strategy II"].values.shape == (21, 2)
    with style.applied():
        assert "1 unfinished left out" in curves.draw([grid], style.PAGE).get_suptitle()
        alone = curves.grid_of([run(seed=7, until=120), run(seed=8, until=90)], GRADIENT)
        assert "2 unfinished, as far as they go" in curves.draw([alone], style.PAGE).get_suptitle()


def test_values_that_are_no_numbers_or_zero_do_not_stop_the_drawing() -> None:
    found = runs(topologies=("ring",), seeds=2)
    for record in found[0].records[5:]:
        record["grad_norm"] = float("nan")
    for record in found[-1].records:
        record["grad_norm"] = 0.0
    with style.applied():
        check_layout(curves.draw([curves.grid_of(found, GRADIENT)], style.PAGE))


def test_lines_without_a_finite_mean_are_left_out_and_said(tmp_path: Path) -> None:
    found = runs(seeds=2)  # ring I, ring II, tailored I, tailored II
    for record in [*found[0].records, *found[4].records, *found[5].records, *found[6].records]:
        record["grad_norm"] = float("nan")
    grid = curves.grid_of(found, GRADIENT)
    assert {place[1]: list(lines) for place, lines in grid.cells.items()} == {"ring": ["Strategy II"]}
    with style.applied():
        figure = curves.draw([grid], style.PAGE)
        check_layout(figure)
    assert "3 without a finite mean left out" in figure.get_suptitle()
    assert curves.write(found[4:6], GRADIENT, tmp_path / "none") == []


def test_where_nothing_is_above_zero_the_scale_is_linear() -> None:
    found = runs(topologies=("ring",), seeds=1)
    for record in [*found[0].records, *found[1].records]:
        record["grad_norm"] = 0.0
    with style.applied():
        figure = curves.draw([curves.grid_of(found, GRADIENT)], style.PAGE)
        check_layout(figure)
    assert figure.axes[0].get_yscale() == "linear"


def test_dollars_in_a_config_begin_no_formula() -> None:
    odd = "/a/$b_$c{"
    found = [run(), run(note=odd), run()]
    for one, path in zip(found, (odd, "b", "b"), strict=True):
        one.config["topology"] = {"name": "file", "path": path}
    found[2].config["weights"] = {"name": odd}
    with style.applied():
        figure = curves.draw([curves.grid_of(found, GRADIENT)], style.PAGE)
        figure.draw_without_rendering()
    titles = [panel.get_title() for panel in figure.axes]
    assert any(title.endswith(r"path /a/\$b_\$c{") for title in titles)


def test_nothing_measured_nothing_drawn(tmp_path: Path) -> None:
    assert curves.write(runs(), ACCURACY, tmp_path / "accuracy") == []
    assert list(tmp_path.iterdir()) == []
