"""What `did you mean` answers: what is near, and nothing where nothing is."""

from __future__ import annotations

import re

import pytest

from dgt.cli import parser
from dgt.commands.plan.settings import split
from dgt.commands.report.pages import parse
from dgt.config.checks import close_to
from dgt.config.compose import compose
from dgt.errors import ConfigError

NEAR = {
    "lrr": "lr", "LR": "lr", "node": "nodes", "num_nodes": "nodes", "iteration": "iterations", "iter": "iterations",
    "max_iterations": "iterations", "eval_evry": "eval_every", "topolgy": "topology", "weight": "weights",
    "startegy": "strategy", "algorihtm": "algorithm", "lazyness": "laziness", "time_out": "timeout",
    "local_step": "local_steps", "buckt_mb": "bucket_mb", "rundir": "run_dir", "on_peer_los": "on_peer_loss",
    "loger": "logger", "warmstart": "warm_start", "checkpoints": "checkpoint", "sede": "seed",
    "dimension": "problem.dimension", "checkpoint_every": "checkpoint", "every": "checkpoint.every",
    "epoch": "epochs", "shedule": "schedule", "stop_when": "stop", "clip_norm": "clip",
}  # fmt: skip
FAR = (
    "gpus", "verbose", "x", "world_size", "optimizer", "dropout", "foo", "noise_std",
    "hidden", "amp", "workers",
)  # fmt: skip


def answer(overrides: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    found = re.search(r"did you mean (.*?)\?", str(caught.value))
    return found[1].split(" or ") if found else []


@pytest.mark.parametrize(("typed", "meant"), NEAR.items())
def test_a_slip_of_the_fingers_is_answered(typed: str, meant: str) -> None:
    assert answer([f"{typed}=1"])[0] == meant


@pytest.mark.parametrize("typed", FAR)
def test_what_is_far_from_everything_is_not(typed: str) -> None:
    """`optimizer` was answered with `timeout`, `workers` with `wire or nodes`."""
    assert answer([f"{typed}=1"]) == []


@pytest.mark.parametrize(
    ("overrides", "meant"),
    [
        (["topology=expo"], ["exponential"]),
        (["topology=gird"], ["grid"]),
        (["topology=hypercube"], []),
        (["topology=line"], []),
        (["weights=E"], []),
        (["strategy=3"], []),
        (["strategy=ii"], ["II"]),
        (["problem=cifar"], ["cifar10"]),
        (["problem=mnist"], []),
        (["algorithm=adam"], []),
        (["checkpoint.evry=1"], ["checkpoint.every"]),
        (["checkpoint.folder=x"], []),  # its first word is right, and was counted as likeness
        (["problem.batch=8"], []),
        (["chaos=pause", "chaos.damage=flip"], []),
    ],
)
def test_values_and_nested_keys_are_compared_by_what_differs(overrides: list[str], meant: list[str]) -> None:
    assert answer(overrides) == meant


def test_at_most_three_the_nearest_first() -> None:
    choices = ["keep_every", "keep_last", "keep_least", "keep_lost", "keep_list"]
    assert close_to("keep_las", choices)[0] == "keep_last"
    assert len(close_to("keep_las", choices)) == 3


def test_other_commands_answer_alike() -> None:
    with pytest.raises(ConfigError, match=r"bandwith: no such key; did you mean bandwidth\?"):
        split(["bandwith=3"])
    assert split(["patience=3"])[1] == ["patience=3"], "no key of the plan is near"
    with pytest.raises(ConfigError, match=r"verbose=x: no such setting; allowed: out=FILE"):
        parse(["verbose=x"])
    options = parser().parse_args(["data", "cifar10", "rot=x"])
    with pytest.raises(ConfigError, match=r"rot=x: no such setting; did you mean root=\.\.\.\? allowed: root=\.\.\., "):
        options.command.run(options)
