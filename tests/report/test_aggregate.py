"""Tables over seeds against numpy by hand; what is missing or unequal is said."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from dgt.report import aggregate
from dgt.report.groups import grouped
from dgt.runs.run import Run
from tests.report.crafted import IMAGES, run, runs


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def late(found: Run, metric: str) -> float:
    return float(np.mean([record[metric] for record in found.records if record["iteration"] >= 240]))


def test_means_and_spreads_are_numpys_in_full_precision(tmp_path: Path) -> None:
    found = runs("AB", ("ring", "grid"), seeds=4)
    aggregate.write(found, tmp_path)
    rows = rows_of(tmp_path)
    assert [(row["weights"], row["topology"], row["strategy"]) for row in rows[:3]] == [
        ("A", "ring", "I"),
        ("A", "ring", "II"),
        ("A", "grid", "I"),
    ]
    for k, row in enumerate(rows):
        group = found[4 * k : 4 * k + 4]
        ends, lates = [r.records[-1]["grad_norm"] for r in group], [late(r, "grad_norm") for r in group]
        assert float(row["grad_norm_end_mean"]) == pytest.approx(np.mean(ends), rel=1e-14)
        assert float(row["grad_norm_end_std"]) == pytest.approx(np.std(ends, ddof=1), rel=1e-12)
        assert float(row["grad_norm_late_mean"]) == pytest.approx(np.mean(lates), rel=1e-14)
        assert float(row["grad_norm_late_std"]) == pytest.approx(np.std(lates, ddof=1), rel=1e-12)
        assert row["seeds"] == "4"


def test_the_best_of_the_same_weights_is_bold(tmp_path: Path) -> None:
    found = runs("AB", ("ring", "grid"), seeds=3)
    for each in found:
        for record in each.records:
            record["grad_norm"] *= 10 if each.choice("weights") == "A" else 1
    aggregate.write(found, tmp_path)
    text = (tmp_path / "table.md").read_text()
    table = text.split("### ")[1].splitlines()
    head = [cell.strip() for cell in table[2].strip("|").split("|")]
    lines = [dict(zip(head, [c.strip() for c in line.strip("|").split("|")], strict=True)) for line in table[4:12]]
    bold = [(line["weights"], line["strategy"]) for line in lines if "**" in line["grad_norm"]]
    assert bold == [("A", "II"), ("B", "II")] or bold == [("A", "II")] * 2 + [("B", "II")] * 2  # equal on both graphs
    assert not any("**" in line["loss"] for line in lines), "with known gradients the loss is no merit"
    assert len({len(line) for line in table[2:12]}) == 1, "aligned"


def test_higher_accuracy_is_better(tmp_path: Path) -> None:
    found = runs(topologies=("ring",), seeds=2, metrics=IMAGES)
    aggregate.write(found, tmp_path)
    lines = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| I")]
    accuracy = [line.split("|")[4] for line in lines]
    assert "**" in accuracy[0], "Strategy I has the higher values here"
    assert "**" not in accuracy[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0.3271, 0.3279], [0.3121, 0.3129]], ["0.32750 ± 0.00057", "0.31250 ± 0.00057"]),
        ([[1.0, 3.0], [200.0, 202.0]], ["  2.0 ± 1.4", "201.0 ± 1.4"]),
        ([[0.123456], [0.987654]], ["0.1235", "0.9877"]),
        ([[123456.7], [3.0]], ["123457", "     3"]),
        ([[1e-12, 3e-12]], ["2.00e-12 ± 1.41e-12"]),
        ([[0.5, 0.7], [0.1]], ["0.60 ± 0.14", "0.10       "]),
        ([[0.0, 0.0]], ["0.000 ± 0.000"]),
        ([[float("nan"), 1.0], [1.0, 2.0]], ["no number ± no number", "     1.50 ±      0.71"]),
    ],
)
def test_digits_follow_the_spread(values: list[list[float]], words: list[str]) -> None:
    assert aggregate._column([np.array(value) for value in values]) == words


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    words = aggregate.write([run(strategy="I"), run(strategy="II")], tmp_path)
    assert "one seed, so no spread" in words
    assert "±" not in words
    assert rows_of(tmp_path)[0]["grad_norm_end_std"] == ""


def test_unfinished_and_repeated_runs_are_marked(tmp_path: Path) -> None:
    found = [run(seed=0), run(seed=1), run(seed=2, until=120), run(seed=1), run(strategy="I", seed=0, until=60)]
    words = aggregate.write(found, tmp_path)
    one, two = sorted(rows_of(tmp_path), key=lambda row: row["strategy"])
    assert two["seeds"] == "2"
    assert "1 of 3 seeds unfinished and left out" in two["remarks"]
    assert "1 more of a seed that was run before" in two["remarks"]
    assert "unfinished: values of iteration 60 of 300" in one["remarks"]
    assert float(one["grad_norm_end_mean"]) == found[-1].records[-1]["grad_norm"]
    assert re.search(r"^II\s+2\*", words, flags=re.MULTILINE)
    assert "* II: 1 of 3 seeds unfinished" in words
    assert "1 to 2 seeds per line" in words


def test_different_problems_have_a_table_each(tmp_path: Path) -> None:
    other = run(metrics=IMAGES, problem={"name": "cifar10", "model": "cnn"})
    words = aggregate.write([*runs(seeds=2), other], tmp_path)
    assert "2 different problems: a table each" in words
    assert words.index("least_squares (") < words.index("cifar10 (")
    assert "problem.model" not in words, "what only one problem has does not divide the other"


def test_runs_without_measurements_are_named(tmp_path: Path) -> None:
    silent = Run(Path("empty"), "empty")
    words = aggregate.write([run(), silent], tmp_path)
    assert "nothing measured, so left out: empty" in words
    assert aggregate.write([silent], tmp_path) == "nothing measured, so left out: empty"
    assert (tmp_path / "table.csv").read_text().strip() == ""


def test_a_diverged_seed_is_not_hidden_in_the_mean(tmp_path: Path) -> None:
    found = [run(seed=0), run(seed=1)]
    found[1].records[-1]["grad_norm"] = float("nan")
    assert "no number" in aggregate.write(found, tmp_path)


def test_only_keys_that_differ_make_groups() -> None:
    found = [run(seed=seed, topology=name, run_dir=f"r{seed}") for seed in (0, 1) for name in ("ring", "tailored")]
    for each in found:
        each.config["topology"]["avg_degree"] = 5.0 if each.choice("topology") == "tailored" else None
    groups = grouped(found)
    assert [group.choices for group in groups] == [{"topology": "ring"}, {"topology": "tailored"}]
    assert [len(group.runs) for group in groups] == [2, 2]
    found[1].config["topology"]["avg_degree"] = 7.0
    assert {"topology": "tailored", "topology.avg_degree": "7"} in [group.choices for group in grouped(found)]


def test_groups_are_sorted_by_one_key_after_the_other() -> None:
    found = [run(topology=name, strategy=strategy) for strategy in ("I", "II") for name in ("star", "ring")]
    assert [tuple(group.choices.values()) for group in grouped(found)] == [
        ("star", "I"),
        ("star", "II"),
        ("ring", "I"),
        ("ring", "II"),
    ]


def test_a_run_without_config_is_grouped_by_its_summary() -> None:
    known = run()
    bare = Run(Path("bare"), "bare", {}, known.records, summary={"weights": "B", "topology": "ring"})
    assert [group.choices["weights"] for group in grouped([known, bare])] == ["A", "B"]
