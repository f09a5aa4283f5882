"""Nothing that a user sets or measures is dropped on the way: comparisons, sweeps, and runs that have ended."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dgt.commands.report.pages import runs_in
from dgt.config import Config
from dgt.report.payload import payload
from dgt.runs.naming import LONGEST, file_name, label_of
from tests.distributed.conftest import Said
from tests.distributed.ranks import DGT, command
from tests.distributed.runs import metrics, told

pytestmark = pytest.mark.timeout(120)

OWN = """
import torch

import dgt


class Own(dgt.Problem):
    def __init__(self, context, width=2):
        torch.manual_seed(context.seed)
        self.model = torch.nn.Linear(width, 1)
        self.x, self.y = torch.randn(8, width), torch.full((8, 1), 1.0 + context.node)
        self.steps, self.seed = 0, context.seed

    def backward(self, iteration):
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.steps += 1
        return loss.item()

    def measure(self):
        own = {"bias": self.model.bias.item(), "accuracy": 0.5}
        return own | {"late": float(self.steps)} if self.steps > 3 and self.seed == 1 else own

    def measure_average(self, part, parts):
        return {"average_test_loss": torch.nn.functional.mse_loss(self.model(self.x), self.y).item() / parts}
"""
PROBLEM = ["problem=custom", "problem._target_=own_problem.Own", "lr=0.1", "iterations=6", "eval_every=2"]


@pytest.fixture
def own_problem(tmp_path: Path) -> None:
    (tmp_path / "own_problem.py").write_text(OWN)


def test_a_comparison_keeps_every_metric_and_mirrors_it_to_tensorboard(
    tmp_path: Path, dgt_here: Callable[..., Said], own_problem: None
) -> None:
    """Only a fixed list of metrics reached compare.csv: a problem's own, and average_test_loss, were dropped.

    The problem measures `late` with the second seed, from its fourth step on: a column that comes up while rows are
    there already. logger and placement were ignored without a word, and so was what an experiment's file says about
    checkpoints.
    """
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "safe.yaml").write_text("# @package _global_\ncheckpoint:\n  every: 2\n")
    done = dgt_here(
        "compare", "--config-dir", "conf", "experiment=safe", *PROBLEM, "nodes=3", "seeds=2", "run_dir=c",
        "logger=tensorboard", "placement=graph",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    with (tmp_path / "c" / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4
    for row in rows:
        assert row["weights"] == "uniform", "three nodes, and no weights named"
        assert 0 not in (float(row["bias"]), float(row["average_test_loss"])), row
        assert (row["late"] != "") == (int(row["iteration"]) > 3 and row["seed"] == "1"), row

    # table and summary
    head, _, line = done.stdout.split("\n\n")[1].splitlines()
    assert re.split(r"\s{2,}", head)[-4:] == ["bias I", "bias II", "late I", "late II"]
    assert line.split()[-2:] == ["6", "6"]
    (summary,) = json.loads((tmp_path / "c" / "summary.json").read_text())
    assert summary["late I"] == 6.0
    assert summary["average_test_loss II"] == pytest.approx(
        sum(float(row["average_test_loss"]) for row in rows if (row["iteration"], row["strategy"]) == ("6", "II")) / 2
    )
    # page
    runs = runs_in([str(tmp_path / "c")])
    assert {"bias", "average_test_loss", "late"} <= {metric["name"] for metric in payload(runs)["metrics"]}

    boards = sorted(str(path.parent.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("events.*"))
    assert boards == [f"tensorboard/uniform-ring-{name}/seed-{seed}" for name in ("I", "II") for seed in (0, 1)]
    assert scalars(tmp_path / "c" / boards[0])["bias"] == [
        (int(row["iteration"]), pytest.approx(float(row["bias"]), rel=1e-5)) for row in rows if is_first(row)
    ]
    said = [line for line in told(done.stderr) if line.startswith("dgt: ")]
    assert said == [
        "dgt: checkpoint: for dgt train only; dgt compare runs every cell from its start, so no effect",
        "dgt: placement=graph: dgt compare has all ranks on this host, where all places are alike",
    ]
    assert yaml.safe_load((tmp_path / "c" / "config.yaml").read_text())["cells"][0]["checkpoint"]["every"] == 0


def is_first(row: dict[str, str]) -> bool:
    return (row["strategy"], row["seed"]) == ("I", "0")


def scalars(board: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(board))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_metric_must_not_have_the_name_of_another_column(
    tmp_path: Path, dgt_here: Callable[..., Said], own_problem: None
) -> None:
    (tmp_path / "own_problem.py").write_text(OWN.replace('"bias"', '"seed"'))
    done = dgt_here("compare", *PROBLEM, "nodes=2", "seeds=1")
    assert done.code == 2, done.stderr
    assert (
        "dgt: error: problem=custom: a metric called seed; compare.csv has another column of this name" in done.stderr
    )


def test_a_sweep_shows_what_was_swept_in_its_table_and_in_its_directories(
    tmp_path: Path, dgt_here: Callable[..., Said], own_problem: None
) -> None:
    """Two runs of different lr were two lines and two directories that nobody could tell apart."""
    done = dgt_here("train", "-m", "lr=0.01,0.02", "strategy=I,II", *PROBLEM[:2], *PROBLEM[3:], "nodes=2")
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()[-6:]
    head = lines[0].split()
    assert head[:5] == ["weights", "topology", "strategy", "seed", "lr"]
    assert {"loss", "bias", "run"} <= set(head)
    cells = [line.split() for line in lines[2:]]
    assert [(row[2], row[4]) for row in cells] == [("I", "0.01"), ("II", "0.01"), ("I", "0.02"), ("II", "0.02")]
    for row in cells:
        config = yaml.safe_load((tmp_path / row[-1] / "config.yaml").read_text())
        assert row[-1].endswith(f"-custom-uniform-ring-{row[2]}-lr_{row[4]}"), row[-1]
        assert (config["strategy"]["name"], config["lr"]) == (row[2], float(row[4]))


def test_the_twin_names_its_sweeps_alike_and_says_what_it_does_not_heed(
    tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    words = ["nodes=3", "iterations=3", "timeout=9", "crc=true"]
    done = dgt_here("simulate", "-m", "topology=file", "topology.path=a b.txt,../c.txt", *words, "--json")
    assert (done.code, "a b.txt" in done.stderr) == (2, True), "not there"
    (tmp_path / "a b.txt").write_text("0 1\n1 2\n")
    done = dgt_here("simulate", "-m", "topology=file", "topology.path='a b.txt'", "lr=0.01,0.02", *words, "--json")
    assert done.code == 0, done.stderr
    assert [row["swept"] for row in json.loads(done.stdout)] == [{"lr": "0.01"}, {"lr": "0.02"}]
    assert "dgt: timeout, crc: for the ranks of dgt train; dgt simulate has none, so no effect" in told(done.stderr)


def test_a_comparison_that_was_interrupted_goes_on_with_what_it_has(
    tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    """Whole runs stay; of the one that was under way when it was killed, and of a torn line, nothing is kept."""
    words = ["compare", "weights=[1,2,3]", "iterations=6", "seeds=2", "run_dir=c"]
    assert dgt_here(*words, "topology=ring,star").code == 0
    table = tmp_path / "c" / "compare.csv"
    whole = table.read_text()
    rows = whole.splitlines(keepends=True)
    left = [row for row in rows if not row.startswith(("list,star,I,1", "list,star,II"))]
    table.write_text("".join(left) + rows[-1][:25])
    again = dgt_here(*words, "topology=ring,star", "resume=auto")
    assert again.code == 0, again.stderr
    assert _but_for_time(table.read_text()) == _but_for_time(whole)
    assert dgt_here(*words, "topology=ring,star", "resume=auto").code == 0, "nothing is left to do"
    for change, said in (
        (["topology=ring"], "c has list star I too; give all its cells, or another run_dir"),
        (["topology=ring,star", "lr=0.01"], "lr of c is 0.02, here 0.01; give the same, or another run_dir"),
        (["topology=ring,star", "seeds=1"], "c has seed 1 too; give all its seeds, or another run_dir"),
    ):
        refused = dgt_here(*words, *change, "resume=auto")
        assert refused.code == 2
        assert refused.stderr.strip().endswith(f"resume=auto: {said}")
    assert dgt_here(*words[:-1], "resume=auto").stderr.strip().endswith("say which run, run_dir=DIR")
    assert _but_for_time(table.read_text()) == _but_for_time(whole)


def _but_for_time(table: str) -> list[str]:
    """Its rows, without the last column."""
    assert table.splitlines()[0].endswith(",evaluation_share")
    return sorted(row.rpartition(",")[0] for row in table.splitlines())


def test_names_are_safe_short_and_tell_long_values_apart() -> None:
    swept = {"problem.path": "../../etc/pass wd", "strategy": "I", "lr": "1e-3"}
    assert label_of(Config(), swept) == "least_squares-A-ring-II-problem.path_.._.._etc_pass_wd-lr_1e-3"
    long = [file_name("x" * 300 + end) for end in "ab"]
    assert [len(name) for name in long] == [LONGEST] * 2
    assert long[0] != long[1]


def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    """iterations=7 in a run that had 12 wrote a checkpoint of iteration 7 with the state of 12, and another summary."""
    run = ["train", "nodes=2", "run_dir=r", "eval_every=3"]
    assert dgt_here(*run, "iterations=12", "checkpoint.every=10").code == 0

    def files() -> dict[str, bytes]:
        kept = ((path, path.read_bytes()) for path in sorted((tmp_path / "r").rglob("*")) if path.is_file())
        return {str(path): content for path, content in kept if "failures" not in path.parts}

    before = files()
    again = command([*DGT, *run, "iterations=12", "resume=auto", "--json"], tmp_path)
    assert (again.returncode, files()) == (0, before)
    (line,) = told(again.stderr)
    assert line == "dgt: run_dir=r: already finished at iteration 12, nothing to do; a larger iterations=N continues it"
    assert json.loads(again.stdout)["final"]["iteration"] == 12

    past = dgt_here(*run, "iterations=7", "resume=auto")
    assert (past.code, past.stdout) == (2, "")
    (line,) = told(past.stderr)
    assert line == (
        "dgt: error: iterations=7: resume=auto is at iteration 12 already, nothing was changed; "
        "iterations=N with N above 12 continues it"
    )
    assert files() == before

    # what did not come to its end is ended: at an iteration that was not evaluated, and without a summary
    (earlier,) = (tmp_path / "r" / "checkpoints").glob("*10-*")
    done = dgt_here("train", "nodes=2", "eval_every=3", "run_dir=s", f"resume={earlier}", "iterations=10")
    assert done.code == 0, done.stderr
    assert [row["iteration"] for row in metrics(tmp_path / "s")] == [0, 3, 6, 9, 10]
    (tmp_path / "r" / "summary.json").unlink()
    assert dgt_here(*run, "iterations=12", "resume=auto").code == 0
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["final"]["iteration"] == 12
