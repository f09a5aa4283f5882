"""What docs/extending.md shows, on real ranks: algorithm, graph, problem, schedule and logger by `_target_`."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dgt.commands
from dgt import algorithms
from tests.distributed.conftest import Said

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "extending.md").read_text(encoding="utf-8")

needs_machinery = pytest.mark.skipif(
    not hasattr(algorithms, "NeighbourOptimizer"), reason="algorithms from outside need dgt.algorithms.machinery"
)
needs_sinks = pytest.mark.skipif(
    importlib.util.find_spec("dgt.runs.sink") is None, reason="loggers from outside need dgt.runs.sink"
)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    for file in (DOCS / "examples").glob("my_*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def lines_of(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@needs_machinery
@pytest.mark.timeout(120)
@pytest.mark.parametrize("schedule", [[], ["schedule._target_=my_schedule.Root", "schedule.scale=2"]])
def test_an_algorithm_from_outside_equals_its_twin(
    schedule: list[str], examples: Path, dgt_here: Callable[..., Said]
) -> None:
    words = [
        "nodes=3", "weights=[1,2,3]", "iterations=6", "eval_every=1", "lr=0.01",
        "algorithm._target_=my_algorithm.HeavyBall", "algorithm.beta=0.5", *schedule,
    ]  # fmt: skip
    for name, run in (("train", "ranks"), ("simulate", "twin")):
        said = dgt_here(name, *words, f"run_dir={run}")
        assert said.code == 0, said.stderr
    ranks, twin = (lines_of(examples / run / "metrics.jsonl") for run in ("ranks", "twin"))
    assert len(ranks) == len(twin) == 7
    for ours, theirs in zip(ranks, twin, strict=True):
        for key in ("loss", "grad_norm", "consensus", "bytes_sent"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-12), key
    assert "beta: 0.5" in (examples / "ranks" / "config.yaml").read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="graph-problem"),
        pytest.param(
            ["algorithm._target_=my_algorithm.HeavyBall", "logger._target_=my_logger.Table", "logger.file=t.csv"],
            marks=[needs_machinery, needs_sinks],
            id="all-four",
        ),
    ],
)
def test_everything_from_outside_at_once(examples: Path, dgt_here: Callable[..., Said], words: list[str]) -> None:
    said = dgt_here(
        "train", "nodes=4", "iterations=40", "eval_every=10", "lr=0.05", "run_dir=run",
        "topology._target_=my_topology.wheel", "topology.spokes=1", "problem._target_=my_line.Line", *words,
    )  # fmt: skip
    assert said.code == 0, said.stderr
    metrics = lines_of(examples / "run" / "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.5 * metrics[1]["loss"]
    assert "slope" in metrics[-1]
    assert json.loads((examples / "run" / "network.json").read_text())[0]["edges"] == [
        [0, 1], [0, 2], [0, 3], [1, 2], [2, 3],
    ]  # fmt: skip
    written = (examples / "run" / "config.yaml").read_text()
    assert "points: 32" in written, "what was not given is at its default"
    if words:
        assert len((examples / "run" / "t.csv").read_text().splitlines()) == len(metrics)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ["topology._target_=my_topology.wheel", "topology.spoke=1"],
            "topology.spoke: no such key; did you mean spokes",
        ),
        (["topology._target_=my_topology.Wheel"], "topology._target_=my_topology.Wheel: cannot import it (module "),
        (["problem._target_=my_line.Line", "problem.points=1"], "problem.points=1: must be at least 2"),
        (["algorithm._target_=nowhere.Mine"], "algorithm._target_=nowhere.Mine: cannot import it (No module named "),
    ],
)
def test_what_is_wrong_is_one_line(
    examples: Path, dgt_here: Callable[..., Said], words: list[str], answer: str
) -> None:
    said = dgt_here("train", "nodes=4", *words)
    assert said.stderr.startswith(f"dgt: error: {answer}")
    assert (said.code, said.stderr.count("\n")) == (2, 1)


def test_a_command_is_one_file(examples: Path, dgt_here: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    (examples / "more").mkdir()
    shutil.copy(examples / "my_command.py", examples / "more" / "degrees.py")
    monkeypatch.setattr(dgt.commands, "__path__", [*dgt.commands.__path__, str(examples / "more")])
    said = dgt_here("degrees", "topology=star", "nodes=5")
    assert (said.code, said.stdout) == (0, "4 1 1 1 1\n")


def test_the_page_shows_the_examples() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    files = [file.read_text() for file in (DOCS / "examples").glob("my_*.py")]
    assert len(shown) == 6
    assert all(block in files for block in shown)
