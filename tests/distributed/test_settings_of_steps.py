"""Schedules, clipping, precision, epochs and early stopping on real ranks: as the twin, bit by bit when resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dgt.config import Config, ProblemConfig, ScheduleConfig
from dgt.errors import LaunchError
from dgt.problems import iterations_of
from dgt.runs.reader import read
from dgt.runs.run import FINISHED
from tests.distributed.conftest import Said
from tests.distributed.ranks import DGT, command, run_ranks
from tests.distributed.runs import NOISY, assert_identical, commits, metrics, told, train
from tests.distributed.test_twin import TrainAll, assert_same, config_for, twin

pytestmark = pytest.mark.timeout(240)

FOUR = "weights=[1,2,3,4]"
WIDE = ProblemConfig(dimension=5000)  # in a stream per vector, not in one message
MADE_WITH = (
    {"schedule": ScheduleConfig(name="cosine", warmup=2)},
    {"schedule": ScheduleConfig(name="onecycle"), "algorithm": "dsgd"},
    {"schedule": ScheduleConfig(name="step", every=3), "algorithm": "allreduce"},
    {"schedule": ScheduleConfig(name="linear", floor=0.1), "problem": WIDE, "local_steps": 2},
    {"clip": 5.0},
    {"clip": 20.0, "schedule": ScheduleConfig(name="cosine"), "problem": WIDE, "overlap": False},
)


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_ranks_with_schedules_and_clipping_equal_the_twin(transport: str) -> None:
    configs = [config_for("ring", 4, "", transport=transport, **changes) for changes in MADE_WITH]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 4)[0], strict=True):
        assert_same(rows, twin(config), config)
        plain = config_for("ring", 4, "", algorithm=config.algorithm.name, problem=config.problem)
        assert rows[-1][1]["loss"] != pytest.approx(twin(plain)[-1][1]["loss"], rel=1e-6), "it does something"


def test_seeds_side_by_side_are_clipped_each_by_itself() -> None:
    config = config_for("ring", 3, "", clip=8.0)
    rows = run_ranks(TrainAll([config], seeds=[0, 4, 7]), 3)[0][0]
    assert_same(rows, twin(config, [0, 4, 7]), config)


@pytest.mark.parametrize(
    "overrides", [["schedule=cosine", "schedule.warmup=5", "clip=0.5"], ["schedule=onecycle", "algorithm.momentum=0.9"]]
)
def test_an_interrupted_run_goes_on_bit_by_bit(overrides: list[str], tmp_path: Path) -> None:
    train(tmp_path / "whole", *NOISY, *overrides)
    with pytest.raises(LaunchError, match="rank 1 was killed"):
        train(tmp_path / "parts", *NOISY, *overrides, "chaos=kill", "chaos.rank=1", "chaos.iteration=37")
    train(tmp_path / "parts", *NOISY, *overrides, "resume=auto")
    assert_identical(tmp_path / "whole", tmp_path / "parts")
    for changed, words in (
        (["iterations=90"], f"schedule is {overrides[0].partition('=')[2]} over 60 iterations"),
        (["schedule=linear"], "linear over 60 iterations"),
        (["clip=0.7"], "clip is "),
    ):
        with pytest.raises(LaunchError) as caught:
            train(tmp_path / "parts", *NOISY, *overrides, *changed, "resume=auto")
        assert words in str(caught.value)
        assert caught.value.code == 2


def test_a_run_stops_early_at_one_iteration_and_stays_so(tmp_path: Path) -> None:
    rule = ["stop.when=grad_norm<0.5", "stop.patience=2"]
    words = [FOUR, "problem.noise=0", "iterations=400"]
    train(tmp_path / "messages", *words, *rule, "transport=messages")
    done = command([*DGT, "train", *words, *rule, "run_dir=r"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "r") == metrics(tmp_path / "messages")
    summary, found = json.loads((tmp_path / "r" / "summary.json").read_text()), metrics(tmp_path / "r")
    at = summary["final"]["iteration"]
    assert summary["stopped_early"].startswith(f"stopped early at iteration {at} of 400, because grad_norm is 0.")
    assert told(done.stderr) == [f"dgt: {summary['stopped_early']}"]
    assert [row["grad_norm"] < 0.5 for row in found[-3:]] == [False, True, True]
    assert found[-1]["iteration"] == at == commits(tmp_path / "r")[-1].step
    late = [row["loss"] for row in found if row["iteration"] >= 0.8 * at]
    assert summary["last_fifth"]["loss"] == pytest.approx(sum(late) / len(late))
    assert read(tmp_path / "r").state == FINISHED

    again = command([*DGT, "train", *words, *rule, "run_dir=r", "resume=auto"], tmp_path)
    assert again.returncode == 0
    assert told(again.stderr) == [
        f"dgt: run_dir=r: already finished at iteration {at}, nothing to do; without stop.when, or with another, it "
        "goes on"
    ]
    train(tmp_path / "r", *words, "stop.when=grad_norm<0.01", "resume=auto")
    assert metrics(tmp_path / "r")[-1]["grad_norm"] < 0.01 <= metrics(tmp_path / "r")[-2]["grad_norm"]


def test_patience_is_counted_on_where_a_run_was_interrupted(tmp_path: Path) -> None:
    rule = ["stop.when=loss<9", "stop.patience=6"]  # fulfilled from the first evaluation on
    with pytest.raises(LaunchError, match="rank 1 was killed"):
        train(tmp_path / "r", *NOISY, *rule, "chaos=kill", "chaos.rank=1", "chaos.iteration=32")
    train(tmp_path / "r", *NOISY, *rule, "resume=auto")
    assert metrics(tmp_path / "r")[-1]["iteration"] == 6 * 7, "evaluated at 7, 14, ..., resumed at 30"


def test_the_simulated_run_stops_where_ranks_do(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    for name in ("train", "simulate"):
        said = dgt_here(name, FOUR, "schedule=cosine", "clip=30", "stop.when=distance<0.4", f"run_dir={name}")
        assert said.code == 0, said.stderr
    real, twin_ = metrics(tmp_path / "train"), metrics(tmp_path / "simulate")
    assert 0 < real[-1]["iteration"] == twin_[-1]["iteration"] < 300
    assert real[-1]["loss"] == pytest.approx(twin_[-1]["loss"], rel=1e-10)


def test_a_text_model_trains_in_bfloat16_for_whole_epochs(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    small = ["problem=text", "weights=[1,2]", "epochs=1", "problem.batch=128", "problem.width=16", "problem.layers=1"]
    losses = {}
    for precision in ("full", "bf16"):
        said = dgt_here("train", *small, f"precision={precision}", "schedule=linear", f"run_dir={precision}")
        assert said.code == 0, said.stderr
        written = yaml.safe_load((tmp_path / precision / "config.yaml").read_text())
        assert (written["epochs"], written["lr"]) == (1, 0.3)
        assert written["iterations"] == metrics(tmp_path / precision)[-1]["iteration"] == 3
        losses[precision] = metrics(tmp_path / precision)[-1]["test_loss"]
        model = commits(tmp_path / precision)[-1]
        assert "float32" in model.facts["model"], "parameters and messages stay as they are"
    assert losses["bf16"] == pytest.approx(losses["full"], rel=0.02)
    assert losses["bf16"] != losses["full"]


def test_epochs_count_the_samples_of_all_nodes() -> None:
    config = Config(problem=ProblemConfig(name="cifar10", batch=128), epochs=3)
    assert iterations_of(config, 16) == 74  # 3 * 50000 / (16 * 128), rounded up
