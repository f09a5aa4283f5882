"""Lost nodes that come back: the same numbers as the twin, the optimum of all, and nobody waits for them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgt import reference
from dgt.errors import LaunchError
from dgt.network import graphs
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import normalise
from dgt.problems.least_squares import LeastSquares
from tests.distributed.runs import commits, configured, metrics, train

pytestmark = pytest.mark.timeout(120)

WEIGHTS = [1.0, 2.0, 3.0, 4.0, 5.0]
RECORDED = ["problem=custom", "problem._target_=tests.distributed.problems.Recorded", "dtype=float64"]
PLAIN = [
    "weights=[1,2,3,4,5]", "topology=exponential", "on_peer_loss=replace", "replace.pause=0", "timeout=10", "lr=0.02",
]  # fmt: skip


def recorded(folder: Path) -> dict[int, dict[int, np.ndarray]]:
    """Node -> iteration -> where its last gradient of that iteration was computed."""
    found: dict[int, dict[int, np.ndarray]] = {}
    for path in folder.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[int(path.name)] = {iteration: np.array(theta) for iteration, _, theta in lines}
    return found


def memberships(run: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "membership"]


class Part:
    """The stacked problem of some of the nodes, from an iteration on."""

    def __init__(self, everybody: LeastSquares, members: list[int], start: np.ndarray) -> None:
        self._all, self._members, self.start = everybody, members, start

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        full = np.zeros((len(WEIGHTS), 1, theta.shape[-1]))
        full[self._members, 0] = theta
        return self._all.exact_gradient(full)[self._members, 0]

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize(
    ("name", "transport", "lost"), [("I", "messages", 3), ("II", "auto", 0), ("II", "messages", 2)]
)
def test_who_comes_back_starts_from_its_neighbours_and_all_follow_the_twin(
    name: str, transport: str, lost: int, tmp_path: Path
) -> None:
    fault = ["chaos=kill", f"chaos.rank={lost}", "chaos.iteration=12"]
    run, settings = tmp_path / "run", [f"strategy={name}", f"transport={transport}", "iterations=700"]
    train(run, *PLAIN, *RECORDED, f"problem.folder={tmp_path / 'at'}", *settings, *fault, "eval_every=100")
    away, back = memberships(run)
    kept, everybody = [node for node in range(5) if node != lost], list(range(5))
    assert (away["members"], back["members"]) == (kept, everybody)
    assert back["weights"] == normalise(np.array(WEIGHTS)).tolist()
    words = f"node {lost} back with the parameters of its neighbours at iteration {back['iteration']}; 5 nodes go on "
    assert back["words"].startswith(words)

    at, weights = recorded(tmp_path / "at"), normalise(np.array(WEIGHTS))
    problem = LeastSquares(configured(run, "problem.noise=0").problem, [0], range(5))
    W = mixing_matrix(graphs.exponential(5), strategy(name, weights).mixing_weights, 0.3)
    here = lambda nodes, iteration: np.array([at[node][iteration] for node in nodes])  # noqa: E731
    first, last = away["iteration"], back["iteration"]
    states = reference.gradient_tracking(
        Part(problem, kept, here(kept, first)), reference.without(W, kept), strategy(name, normalise(weights[kept])),
        0.02, last - first,
    )  # fmt: skip
    for state in states:
        if first + state.iteration < last:
            assert np.allclose(here(kept, first + state.iteration), state.theta, atol=1e-11), state.iteration
    start = reference.taken_in(state.theta, kept, W)
    for state in reference.gradient_tracking(
        Part(problem, everybody, start), W, strategy(name, weights), 0.02, 699 - last
    ):
        assert np.allclose(here(everybody, last + state.iteration), state.theta, atol=1e-11), state.iteration


@pytest.mark.parametrize(
    ("lost", "settings"),
    [
        (0, ["topology=one_peer", "transport=auto", "weights=[1,2,3,4]"]),
        (2, ["topology=one_peer", "topology.schedule=matching", "transport=messages", "lr=0.01"]),
        (4, ["algorithm=exact_diffusion", "lr=0.05"]),
        (0, ["algorithm.momentum=0.5", "topology=ring", "lr=0.01"]),
    ],
)
def test_all_nodes_end_at_the_optimum_of_all(lost: int, settings: list[str], tmp_path: Path) -> None:
    """Whatever mixes them; a lost node 0 comes back as rank 0, and takes the files over again."""
    run, fault = tmp_path / "run", ["chaos=kill", f"chaos.rank={lost}", "chaos.iteration=30"]
    paced = [*RECORDED, f"problem.folder={tmp_path / 'at'}", "problem.pause=0.001"]
    train(run, *PLAIN, *paced, *settings, *fault, "iterations=1600", "eval_every=50")
    away, back = memberships(run)
    assert lost not in away["members"]
    assert lost in back["members"]
    rows = metrics(run)
    assert [row["iteration"] for row in rows] == sorted({row["iteration"] for row in rows})
    assert rows[-1]["iteration"] == 1600
    assert rows[-1]["distance"] < 1e-8, "the optimum of all"
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    networks = json.loads((run / "network.json").read_text())
    assert networks[0]["mixing"] == networks[2]["mixing"]
    assert commits(run)[-1].world == len(back["members"])


def test_a_ring_that_falls_apart_waits_for_those_who_are_started_again(tmp_path: Path) -> None:
    """Two nodes lost at once left two parts, and ended the run."""
    run, at = tmp_path / "run", tmp_path / "at"

    def kill_two(over: threading.Event) -> None:
        while len(processes(at)) < 5 and not over.is_set():
            time.sleep(0.02)
        found = processes(at)
        for node in (1, 3):
            os.kill(found[node][0], signal.SIGKILL)

    with meanwhile(kill_two):
        train(run, *PLAIN, *RECORDED, f"problem.folder={at}", "topology=ring", "iterations=1200", "eval_every=100")
    assert memberships(run)[-1]["members"] == [0, 1, 2, 3, 4]
    assert metrics(run)[-1]["distance"] < 1e-8


# ---------------------------------------------------------------------------------------------------- many of them


@contextlib.contextmanager
def meanwhile(do: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do this in a thread until the block ends."""
    over = threading.Event()
    thread = threading.Thread(target=do, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def processes(folder: Path) -> dict[int, tuple[int, int]]:
    """Of every node the process that wrote last, and its iteration."""
    found = {}
    for path in folder.glob("[0-9]*"):
        lines = path.read_text().splitlines()
        if lines and lines[-1].endswith("]"):
            iteration, pid, _ = json.loads(lines[-1])
            found[int(path.name)] = (pid, iteration)
    return found


def kill_in_turn(folder: Path, seed: int, count: int, killed: list[int], over: threading.Event) -> None:
    """So many kills of random nodes, one after the other, while the run goes on; their pids are added to `killed`."""
    draw = random.Random(seed)
    while len(processes(folder)) < 8 and not over.is_set():
        time.sleep(0.05)
    while len(killed) < count and not over.wait(draw.uniform(0.2, 0.8)):
        pid, _ = draw.choice(sorted(processes(folder).values()))
        with contextlib.suppress(ProcessLookupError):
            if pid not in killed:  # else the process in its place has not come so far yet
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)


@pytest.mark.heavy
@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_ten_kills_in_a_row_end_with_all_nodes_at_the_optimum_of_all(transport: str, tmp_path: Path) -> None:
    run, at, killed = tmp_path / "run", tmp_path / "at", list[int]()
    settings = [*PLAIN, *RECORDED, f"problem.folder={at}", f"transport={transport}", "weights=[4,1,2,1,1,3,2,2]"]
    with meanwhile(lambda over: kill_in_turn(at, 5, 10, killed, over)):
        train(run, *settings, "iterations=4000", "eval_every=200", "problem.pause=0.002")
    assert len(killed) == 10
    assert len(memberships(run)) >= 2  # losses and returns that come together are one change
    assert memberships(run)[-1]["members"] == list(range(8))
    assert commits(run)[-1].world == 8
    assert metrics(run)[-1]["distance"] < 1e-8
    assert metrics(run)[-1]["iteration"] == 4000


@pytest.mark.heavy
def test_a_minute_of_churn_loses_no_iteration_and_ends_at_the_optimum_of_all(tmp_path: Path) -> None:
    """Every node is lost more than once on the way, as in hours on preemptible machines."""
    run = tmp_path / "run"
    settings = [
        *PLAIN,
        *RECORDED,
        f"problem.folder={tmp_path / 'at'}",
        "weights=[1,2,3,4,5,6,7,8]",
        "replace.most=1000",
    ]
    churn = ["chaos=churn", "chaos.rate=0.002", "chaos.iteration=0"]
    train(run, *settings, *churn, "iterations=4000", "eval_every=100", "problem.pause=0.002", "lr=0.01")
    changes = memberships(run)
    assert len(changes) >= 10
    assert changes[-1]["members"] == list(range(8))
    assert metrics(run)[-1]["distance"] < 1e-8
    assert [row["iteration"] for row in metrics(run)] == list(range(0, 4001, 100))


# ------------------------------------------------------------------------------------------------------ when it ends


def test_a_rank_that_always_fails_is_started_again_so_often_only(tmp_path: Path, capfd: Any) -> None:
    """A gradient that is not a number ends that node at the same iteration again; the others go on without it."""
    run = tmp_path / "run"
    bad = ["problem=custom", "problem._target_=tests.distributed.problems.FailsAlways", "problem.node=1"]
    train(run, *PLAIN, *bad, "iterations=1500", "eval_every=100", "replace.most=2")
    said = capfd.readouterr().err
    assert "rank 1 is not started again: replace.most=2" in said
    assert memberships(run)[-1]["members"] == [0, 2, 3, 4]
    assert metrics(run)[-1]["iteration"] == 1500


def test_a_stop_while_a_node_is_away_is_saved_by_those_who_are_there(tmp_path: Path) -> None:
    run, at = tmp_path / "run", tmp_path / "at"

    def stop(over: threading.Event) -> None:
        while not (run / "events.jsonl").exists() and not over.is_set():
            time.sleep(0.01)
        os.kill(processes(at)[0][0], signal.SIGTERM)

    fault = ["chaos=kill", "chaos.rank=3", "chaos.iteration=30", "replace.pause=60"]
    with (
        meanwhile(stop),
        pytest.raises(LaunchError, match=r"stopped by SIGTERM at iteration \d+; resume=auto .* with all 5 nodes"),
    ):
        train(run, *PLAIN, *RECORDED, f"problem.folder={at}", *fault, "iterations=100000", "eval_every=1000")
    assert commits(run)[-1].world == 4
