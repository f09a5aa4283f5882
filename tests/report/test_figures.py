"""All figures of a comparison, and those that need no run: adjacency matrices and spectral gaps."""

from __future__ import annotations

import csv
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.stats

from dgt.cli import main
from dgt.config import TopologyConfig
from dgt.errors import ConfigError
from dgt.network import graphs, weights
from dgt.network.gaps import gap_table
from dgt.processes import output
from dgt.report import compare, figures, gaps, matrices, style
from tests.report.crafted import IMAGES, compare_directory, run, runs


@pytest.fixture
def one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three take three times as long; that all of them are right is tested with the curves."""
    monkeypatch.setattr(style, "FORMATS", ("svg",))


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return gap_table()


def test_a_comparison_reads_back_as_runs(tmp_path: Path) -> None:
    made = runs("AC", seeds=3)
    found = compare.runs_of(compare_directory(tmp_path / "c", made))
    assert len(found) == len(made)
    for one, other in zip(found, made, strict=True):
        assert (one.label, one.choice("seed"), one.records) == (other.label, other.choice("seed"), other.records)
        assert one.state == "finished"
    (row, *_) = compare.summarise(found)
    late = [np.mean([r["grad_norm"] for r in made[k].records if r["iteration"] >= 240]) for k in range(6)]
    assert row["I"] == pytest.approx(np.mean(late[:3]), rel=1e-12)
    assert row["II/I"] == pytest.approx(np.mean(late[3:]) / np.mean(late[:3]), rel=1e-12)
    assert row["lower"] == "II"
    paired = [late[3 + k] - late[k] for k in range(3)]
    assert row["II-I"] == pytest.approx(np.mean(paired), rel=1e-12)
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(paired), scipy.stats.sem(paired))
    assert row["II-I +-"] == pytest.approx((high - low) / 2, rel=1e-9)
    shown = compare.text([row], found, 3)
    assert f"A ring: weighted gradient norm {row['II-I']:+.2g} ± {row['II-I +-']:.2g}" in shown


def test_a_comparison_by_loss_under_unequal_labels_warns(tmp_path: Path) -> None:
    made = runs("A", topologies=("ring",), seeds=2, metrics=IMAGES)
    warning = "Nodes have unequal labels"
    assert warning not in compare.text(compare.summarise(made), made, 2)
    for one in made:
        one.config["problem"] = {"name": "cifar10", "partition": "dirichlet"}
    said = compare.text(compare.summarise(made), made, 2)
    assert warning in said
    assert "judge by the accuracies" in said


def test_a_comparison_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    directory = compare_directory(tmp_path / "c", runs(seeds=2))
    path = directory / "compare.csv"
    text = path.read_text()
    path.write_text(text[: text.index("A,tailored,II") + 40])  # half a line of the last strategy
    (directory / "config.yaml").write_text("cells: [")
    found = compare.runs_of(directory)
    assert {run.label for run in found} == {"A ring I", "A ring II", "A tailored I"}
    assert [(row["weights"], row["topology"]) for row in compare.summarise(found)] == [("A", "ring")]
    path.write_text("nonsense\n1,2,3\n")
    assert compare.runs_of(directory) == []
    path.unlink()
    with pytest.raises(ConfigError, match=r"compare.csv: No such file"):
        compare.runs_of(directory)


def names(jobs: list[figures.Job]) -> list[str]:
    return [name for name, _ in jobs]


def test_the_papers_figures_come_from_one_comparison() -> None:
    topologies = ("ring", "grid", "exponential", "tailored")
    planned = names(figures.plan(runs("ABCD", topologies, seeds=1), Path("out")))
    assert planned[:4] == ["grad_norm_16", "grad_norm_32", "grad_norm_64", "distance"]
    assert planned[-2:] == ["adjacency", "gaps"]
    assert {f"grad_norm_{name}" for name in "ABCD"} | {f"distance_{name}" for name in "ABCD"} <= set(planned)
    planned = names(figures.plan(runs("AC", topologies, seeds=1, metrics=IMAGES), Path("out")))
    assert planned[:3] == ["loss", "accuracy", "loss_accuracy_A"]


@pytest.mark.usefixtures("one_format")
def test_names_in_a_config_lead_to_no_other_folder(tmp_path: Path) -> None:
    names = (str(tmp_path / "elsewhere"), "../../up")
    found = [run("uniform", nodes=4, metrics=("loss",), problem={"name": name}) for name in names]
    for one in found:
        one.config["weights"] = {"name": "../../../up"}
    paths = figures.write(found, tmp_path / "figures")
    assert len(paths) == 4
    assert all((tmp_path / "figures") in path.resolve().parents for path in paths)


@pytest.mark.usefixtures("one_format")
def test_files_are_where_the_plan_says_and_every_figure_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    found = [run("uniform", nodes=4, metrics=("loss",), problem={"name": name}) for name in ("p", "q")]
    paths = figures.write(found, tmp_path, lambda *step: told.append(step))
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "p/loss.svg",
        "p/column/loss_uniform.svg",
        "q/loss.svg",
        "q/column/loss_uniform.svg",
    ]
    assert all(path.stat().st_size > 3000 for path in paths)
    assert told == [(1, 4, "loss"), (2, 4, "loss_uniform"), (3, 4, "loss"), (4, 4, "loss_uniform")]
    assert figures.write([], tmp_path / "none") == []


@pytest.mark.usefixtures("one_format")
def test_a_figure_that_fails_is_told_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> list[Path]:
        raise ValueError("no\nink")

    told: list[tuple[int, int, str]] = []
    monkeypatch.setattr(figures.gaps, "write", fails)
    monkeypatch.setattr(figures, "_gaps", lambda _: [])
    output.log_to_stderr(is_main=True)
    paths = figures.write([run(metrics=("loss",))], tmp_path, lambda *step: told.append(step))
    assert [path.name for path in paths] == ["loss.svg", "loss_A.svg"]
    assert capsys.readouterr().err == "dgt: figure gaps could not be drawn: no ink\n"
    assert told[-1] == (3, 3, "gaps")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"laziness": 5.0}, (0.3, 0)),
        ({"laziness": 10**400}, (0.3, 0)),
        ({"laziness": 0.5, "topology": {"name": "tailored", "seed": 7}}, (0.5, 7)),
        ({"topology": {"name": "tailored", "seed": "x"}}, (0.3, 0)),
        ({"topology": {"name": "tailored", "seed": None}}, (0.3, 0)),
        ({"topology": {"name": "tailored", "seed": -1}}, (0.3, 0)),
    ],
)
def test_settings_nobody_could_have_run_with_do_not_reach_the_gaps(
    config: dict[str, object], expected: tuple[float, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []
    monkeypatch.setattr(figures, "gap_table", lambda *settings: asked.append(settings))
    made = run()
    made.config |= config
    figures._gaps([made])
    assert asked == [expected]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_name_of_one_odd_letter_is_no_symbol(nodes: int) -> None:
    with style.applied():
        figure = style.figure(3, 3)
        matrices.adjacency(figure.subplots(), "$", weights.uniform(nodes), nx.complete_graph(nodes))
        figure.draw_without_rendering()


def test_blocks_are_blue_where_there_is_an_edge() -> None:
    lambdas = weights.named("A")
    graph = graphs.from_config(TopologyConfig(name="tailored"), lambdas)
    with style.applied():
        figure = style.figure(3, 3)
        panel = figure.subplots()
        matrices.adjacency(panel, "A", lambdas, graph)
    blocks = [path.vertices[:4].mean(0).round().astype(int) for path in panel.collections[0].get_paths()]
    drawn = np.zeros((16, 16))
    for column, row in blocks:
        drawn[row, column] += 1
    assert (drawn == nx.to_numpy_array(graph, nodelist=range(16))).all()
    assert panel.yaxis_inverted()
    above, right = panel.child_axes
    assert [bar.get_height() for bar in above.patches] == pytest.approx(lambdas)
    assert [bar.get_width() for bar in right.patches] == [graph.degree[node] for node in range(16)]


def test_the_graphs_drawn_are_those_of_the_runs() -> None:
    found = matrices.of_runs([run("B", "ring"), run("A", "tailored"), run("C", "tailored")])
    assert list(found) == ["A", "C"]
    other = run("A", "tailored")
    other.config["topology"]["seed"] = 5
    ((_, graph),) = matrices.of_runs([other]).values()
    expected = graphs.from_config(TopologyConfig(name="tailored", seed=5), weights.named("A"))
    assert nx.utils.graphs_equal(graph, expected)
    assert matrices.of_runs([run("data_size", "tailored")]) == {}
    other.networks = [{"nodes": [0, 1, 2], "weights": [1.5, 1.0, 0.5], "edges": [[0, 1], [1, 2]]}]
    ((lambdas, graph),) = matrices.of_runs([other]).values()
    assert (lambdas.tolist(), sorted(graph.edges)) == ([1.5, 1.0, 0.5], [(0, 1), (1, 2)]), "what was recorded counts"
    assert matrices.of_runs([run("uniform", "tailored", nodes=20_000)]) == {}, "blocks too small to be seen"


def test_gap_files_hold_every_cell(rows: list[dict], tmp_path: Path) -> None:
    written = gaps.write(rows, tmp_path / "new")
    assert [path.name for path in written] == ["gaps.pdf", "gaps.svg", "gaps.png", "gaps.md", "gaps.csv"]
    with (tmp_path / "new" / "gaps.csv").open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert [float(row["gap"]) for row in stored] == [row["gap"] for row in rows]
    table = " ".join((tmp_path / "new" / "gaps.md").read_text().split())
    assert "| ring | 0.034 (0.034) | **0.053** (0.053) | 0.027 (0.027) |" in table
    swapped = [row for row in rows if row.get("optimized")]
    assert table.count(" (0.") == len(rows) + len(swapped)


@pytest.mark.usefixtures("one_format")
def test_optimized_graphs_stand_below_the_plain_ones(rows: list[dict], tmp_path: Path) -> None:
    plain = [{key: value for key, value in row.items() if key not in ("optimized", "factor")} for row in rows]
    wider = [row | {"optimized": 0.45, "factor": 1.4} if row["tailored_for"] == "A" else row for row in plain]
    table = " ".join(gaps.markdown(wider).split())
    assert table.index("| tailored for D |") < table.index("| optimized for A | **0.450** (0.311)")
    assert "optimized for B" not in table
    assert len(gaps.write(wider, tmp_path)) == 3


def test_gaps_and_matrices_cannot_be_written_everywhere(rows: list[dict], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: cannot write there \(File exists\)"):
        gaps.write_all(rows, TopologyConfig(name="tailored"), tmp_path / "file")


@pytest.mark.usefixtures("one_format")
def test_report_of_a_comparison_writes_tables_and_figures_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [run("uniform", topology="star", strategy=name, seed=seed) for name in ("I", "II") for seed in (0, 1)]
    compare_directory(tmp_path / "c", found)
    main(["report", "c"])
    said = capsys.readouterr().out
    assert "0.2" in said
    assert "figures c/figures" in said
    for name in (
        "report.html",
        "table.csv",
        "table.md",
        "figures/grad_norm.svg",
        "figures/column/distance_uniform.svg",
    ):
        assert (tmp_path / "c" / name).stat().st_size > 200
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["report", "c", "out=file/report.html"])
    assert "cannot write there" in capsys.readouterr().err


@pytest.mark.usefixtures("one_format")
def test_gaps_writes_its_figures_where_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rows: list[dict]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dgt.network.gaps.gap_rows", lambda *_, **__: rows)
    main(["gaps", "--figures", "drawn"])
    assert "published" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert {"gaps.md", "gaps.csv", "gaps.svg", "adjacency.svg", "adjacency_plain.svg"} <= names
