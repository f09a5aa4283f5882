"""lr=auto and lr=find on real ranks: what trials leave behind, and whether the step they suggest is a good one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dgt.config.compose import compose
from dgt.errors import LaunchError
from tests.distributed.conftest import Said
from tests.distributed.runs import NOISY, assert_identical, train
from tests.distributed.test_twin import twin

pytestmark = pytest.mark.timeout(240)

AUTO = [word for word in NOISY if not word.startswith("lr=")] + ["problem.pause=0"]


def lr_of(run: Path) -> float:
    return float(yaml.safe_load((run / "config.yaml").read_text())["lr"])


@pytest.mark.parametrize(
    "more", [[], ["algorithm.base=adamw", "schedule=cosine", "schedule.warmup=5", "wire=bfloat16"]]
)
def test_trials_leave_nothing_behind_but_the_lr(more: list[str], tmp_path: Path) -> None:
    """Data, dropout, statistics, trackers and the optimizer's state begin as if there had been none."""
    train(tmp_path / "auto", *AUTO, *more, "lr=auto")
    train(tmp_path / "said", *AUTO, *more, f"lr={lr_of(tmp_path / 'auto')!r}")
    assert_identical(tmp_path / "auto", tmp_path / "said")
    with pytest.raises(LaunchError, match="rank 1 was killed"):
        train(tmp_path / "parts", *AUTO, *more, "lr=auto", "chaos=kill", "chaos.rank=1", "chaos.iteration=37")
    train(tmp_path / "parts", *AUTO, *more, "lr=auto", "resume=auto")
    assert_identical(tmp_path / "auto", tmp_path / "parts")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_lr_of_least_squares_is_near_the_best_of_a_grid(momentum: float, tmp_path: Path) -> None:
    settings = [f"algorithm.momentum={momentum}", "topology=star", "weights=[3,1,1,2]", "iterations=200"]
    train(tmp_path / "run", *settings, "lr=auto")
    found = lr_of(tmp_path / "run")

    def late(lr: float) -> float:
        rows = twin(compose([*settings, f"lr={lr}"]), list(range(4)))
        return float(sum(values["grad_norm"].mean() for iteration, values, _ in rows if iteration >= 160))

    usual = 0.02 * (1 - momentum)
    grid = {usual * 2.0**power: late(usual * 2.0**power) for power in range(-4, 4)}
    best = min(grid, key=grid.__getitem__)
    assert 0.5 <= found / best <= 2.0, grid


@pytest.mark.parametrize("more", [[], ["algorithm.base=adamw", "local_steps=2"], ["algorithm=allreduce"]])
def test_a_trial_in_which_one_rank_overflows_ends_for_all(more: list[str], tmp_path: Path) -> None:
    """The whole run used to end: this rank refused to send what was not finite."""
    cliff = ["nodes=3", "problem._target_=tests.distributed.problems.Cliff", "iterations=30", *more]
    train(tmp_path / "run", *cliff, "lr=auto")
    assert 0 < lr_of(tmp_path / "run") < 20


def test_a_plan_finds_the_lr_and_says_the_command(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    settings = ["weights=[3,1,4,1]", "topology=ring,star", "problem=custom", "iterations=40"]
    settings += ["problem._target_=tests.distributed.problems.Noisy", "problem.pause=0"]
    said = dgt_here("plan", *settings, "lr=find")
    assert said.code == 0, said.stderr
    assert "lr      loss   after 40 iterations" in said.stdout
    assert "####" in said.stdout
    answer = json.loads(dgt_here("plan", *settings, "lr=find", "--json").stdout)
    (step,) = [word for word in answer["overrides"] if word.startswith("lr=")]
    finite = [trial for trial in answer["trials"] if trial["loss"] is not None]
    best = min(finite, key=lambda trial: float(trial["loss"]))
    assert 1.0 <= float(step[3:]) / best["lr"] <= 16.0
    assert f" {step}" in said.stdout
    best = answer["rows"][0]
    vectors = {"gradient_tracking": 2, "exact_diffusion": 1}[best["algorithm"]]
    assert best["bytes"] == vectors * 4 * 210 * best["degree"], "the model was made to be counted"
    plain = json.loads(dgt_here("plan", *settings, "--json").stdout)
    assert "lr=auto" in plain["overrides"], "nobody knows the step of this problem"
    trained = dgt_here("train", *plain["overrides"], "run_dir=mine")
    assert trained.code == 0, trained.stderr
    assert lr_of(tmp_path / "mine") > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "lr=auto"], "lr=auto: dgt compare makes no trials; take the lr that dgt plan lr=find suggests"),
        (["simulate", "lr=auto"], "lr=auto: dgt simulate makes no trials"),
        (["train", "lr=auto", "warm_start=true", "resume=before"], "lr=auto: looks for a step from the usual start"),
        (["plan", "lr=auto"], "lr=auto: dgt plan makes no trials; take the lr that dgt plan lr=find suggests"),
        (["train", "lr=find"], "lr=find: must be a number above 0, or auto"),
        (
            ["train", "lr=auto", "problem._target_=tests.distributed.problems.Silent", "nodes=2"],
            "lr=auto: problem=custom returns no loss to judge trials by; give a number",
        ),
    ],
)
def test_where_it_cannot_be_found_it_is_one_line(words: list[str], said: str, dgt_here: Callable[..., Said]) -> None:
    answer = dgt_here(*words)
    assert answer.code == 2, answer.stderr
    assert said in answer.stderr
