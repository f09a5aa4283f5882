"""Start, a few steps with random delays, stop; again and again: no hang, no process and no file left behind.

DGT_SOAK_RUNS=1000 python -m pytest tests/distributed/test_soak.py runs it a thousand times.
DGT_SOAK_MINUTES=60 python -m pytest tests/distributed/test_soak.py -m trials: one long run whose memory stays flat.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import dgt
from dgt.exchange import shared
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks
from tests.distributed.runs import start_long_run

RUNS = int(os.environ.get("DGT_SOAK_RUNS", "12"))
MINUTES = float(os.environ.get("DGT_SOAK_MINUTES", "2"))
RANKS, STEPS = 8, 20


@dataclass
class Hesitant:
    """Twenty steps of a small or a large model; before each, some ranks hesitate."""

    seed: int

    def run(self, node: Node) -> tuple[float, float]:
        common, own = random.Random(self.seed), random.Random(f"{self.seed} {node.rank}")
        graph = getattr(dgt.graphs, common.choice(["ring", "exponential", "complete", "star"]))(node.size)
        options = common.choice([{}, {"overlap": False}, {"wire": "bfloat16"}, {"wire": "int4"}, {"local_steps": 2}])
        transport = common.choice(["auto", "auto", "auto", "messages"])
        theta = torch.nn.Parameter(torch.full((common.choice([10, 20_000]),), float(node.rank), dtype=torch.float64))
        network = dgt.Network(node, graph, [1.0 + k for k in range(node.size)], transport=transport)
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network, **options)
        for _ in range(STEPS):
            theta.grad = theta.detach() - node.rank
            if own.random() < 0.3:
                time.sleep(own.random() * 0.01)
            optimizer.step()
        # sum_i pi_i B_i = 0: what a torn or stale message would break for good
        return float(optimizer.tracking_error()[0]), float(theta.detach().abs().max())


@pytest.mark.timeout(60 + 30 * RUNS)
def test_starts_and_stops_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children: set[int] = set()
    before, orphans = len(_children()), _orphans()
    for seed in range(RUNS):
        results = run_ranks(Hesitant(seed), RANKS, timeout=20).values()
        assert abs(sum(error for error, _ in results)) < 1e-9, seed
        assert max(size for _, size in results) < 10, seed
        assert _orphans() <= orphans, seed
        assert not list(tmp_path.glob("[!p]*")), seed  # pymp-*: of the process that stays
        children = children or _children()
        assert _children() <= children, seed
        assert len(children) <= before + 2  # the process that forks ranks stays, and multiprocessing's tracker


@pytest.mark.trials
@pytest.mark.timeout(120 + 60 * MINUTES)
def test_memory_of_rank_0_stays_flat_however_often_it_evaluates(tmp_path: Path) -> None:
    """It kept every evaluation for the summary: a megabyte per thousand of them, for ever."""
    weighed, run = tmp_path / "memory.txt", tmp_path / "run"
    target = ["problem=custom", "problem._target_=tests.distributed.problems.Weighed", f"problem.path={weighed}"]
    process = start_long_run(run, *target, "weights=[1,2,3,4]", "eval_every=1", "checkpoint.every=5000", "lr=0.01")
    try:
        time.sleep(60 * MINUTES)
        assert process.poll() is None, process.communicate()
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 75
    rows = [line.split() for line in weighed.read_text().splitlines()]
    first, last = (float(rows[place][1]) for place in (len(rows) // 4, -1))
    print(f"\n{rows[-1][0]} evaluations in {MINUTES:g} minutes: {first} MB after a quarter, {last} MB at the end")
    assert last < first + 4, rows


def _orphans() -> set[str]:
    """Shared memory whose owner is gone; what other programs use at this moment is locked by them."""
    found = set()
    for path in shared.MEMORY.glob(f"{shared.PREFIX}*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.add(path.name)
    return found


def _children() -> set[int]:
    """All descendants of this process that still run."""
    found, queue = set(), [os.getpid()]
    while queue:
        for path in Path(f"/proc/{queue.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                queue += map(int, path.read_text().split())
        found.update(queue)
    return found
