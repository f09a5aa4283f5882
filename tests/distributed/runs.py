"""Training runs with checkpoints, as the tests of faults start them, and how to compare two of them bit by bit."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import torch

from dgt.config import Config
from dgt.config.compose import compose
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.network.weights import Weights
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training import trainer
from dgt.training.checkpoints.files import Commit, committed, read_rank
from dgt.training.guard import Guard, Loop
from dgt.training.jobs import TrainJob
from dgt.training.session import Session
from dgt.training.setup import network_of
from tests.distributed.processes import until
from tests.distributed.ranks import DGT

NOISY = [
    "problem=custom", "problem._target_=tests.distributed.problems.Noisy", "weights=[1,2,3,4]", "lr=0.05",
    "iterations=60", "eval_every=7", "checkpoint.every=10", "topology=ring", "timeout=20",
]  # fmt: skip
# once, long enough for somebody else to interrupt the run in the middle
HELD = ["chaos=delay", "chaos.iteration=150", "chaos.seconds=8"]
CLOCKS = ("seconds", "evaluation_share")
ONLY_TIMES = ("seconds",)


def configured(run_dir: Path, *overrides: str) -> Config:
    return dataclasses.replace(compose([*overrides, f"run_dir={run_dir}"]))


def train(run_dir: Path, *overrides: str) -> None:
    """One run on real ranks; a fault is a `LaunchError`."""
    config = configured(run_dir, *overrides)
    nodes = len(config.weights.values or []) or config.nodes
    assert nodes is not None
    start_ranks(job_of(config), nodes * config.ranks_per_node, JoinOptions.from_config(config))


def job_of(config: Config) -> TrainJob:
    """What `dgt train` hands to its ranks, nothing printed at the end."""
    return TrainJob(config, *network_of(config, Placement("alone"), as_drawn=True), "nothing")


class Assembled(Guard):
    """In place of the loop: the session that `train` has put together."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)

    def run(self, session: Session, loop: Loop) -> Any:
        return session


def session_of(config: Config, node: Node, weights: Weights, graph: nx.Graph) -> Session:
    """A node that is ready for its first step; all ranks call it."""
    session: Any = trainer.train(config, node, weights, graph, Assembled())
    assert isinstance(session, Session)
    return session


def start_long_run(run: Path, *overrides: str, launcher: Sequence[str] = DGT) -> subprocess.Popen[str]:
    """A run that would take hours, in a process group of its own, once its ranks are training."""
    line = [*launcher, "train", "iterations=10000000", "eval_every=10", f"run_dir={run}", *overrides]
    process = subprocess.Popen(
        line, cwd=run.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: lines_of(run / "metrics.jsonl") >= 3 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
    except BaseException:
        process.kill()
        raise
    return process


def told(stderr: str) -> list[str]:
    """What was said besides progress."""
    return [line for line in stderr.splitlines() if not re.search(r"iteration \d+/\d+", line)]


def lines_of(file: Path) -> int:
    """Complete lines, so far."""
    return file.read_text().count("\n") if file.exists() else 0


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows]


def commits(run_dir: Path) -> list[Commit]:
    """All committed checkpoints; each must be whole on every rank."""
    found, wrong = committed(run_dir / "checkpoints")
    assert not wrong
    for commit in found:
        for rank in range(commit.world):
            read_rank(commit, rank)
    return found


def last_state(run_dir: Path) -> list[dict[str, Any]]:
    """Every rank's state in the last checkpoint, but for the clock."""
    last = commits(run_dir)[-1]
    states = [torch.load(last.path / f"rank-{rank:05d}.pt", weights_only=True) for rank in range(last.world)]
    return [{"step": last.step, **{k: v for k, v in state.items() if k not in ONLY_TIMES}} for state in states]


def same(a: Any, b: Any) -> bool:
    """Bitwise equality of two trees."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def assert_identical(one: Path, other: Path) -> None:
    """Same metrics and same last state, to the last bit."""
    assert metrics(one) == metrics(other)
    for rank, (a, b) in enumerate(zip(last_state(one), last_state(other), strict=True)):
        for key in a:
            assert same(a[key], b[key]), (rank, key)
