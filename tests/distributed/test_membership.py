"""Going on without a lost node: the same numbers as the twin with its rows taken out, at every iteration."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from dgt import reference
from dgt.errors import LaunchError, PeerError
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.network import graphs
from dgt.network.mixing import mixing_matrix, mixing_row, row_without, strategy
from dgt.network.weights import normalise
from dgt.problems.least_squares import LeastSquares
from dgt.processes import rendezvous
from dgt.processes.node import Node
from tests.distributed.runs import commits, configured, metrics, session_of, train

pytestmark = pytest.mark.timeout(120)

WEIGHTS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
STEPS = 30
PLAIN = ["weights=[1,2,3,4,5,6]", "topology=exponential", "iterations=120", "on_peer_loss=continue", "timeout=10"]


@dataclass
class Loses:
    """A session that loses nodes on the way; every survivor writes down where it went on from, and all states after."""

    folder: str
    overrides: list[str]
    victims: dict[int, int]

    def run(self, node: Node) -> None:
        config = configured(Path(self.folder), *PLAIN, *self.overrides)
        weights = normalise(WEIGHTS)
        session = session_of(config, node, weights, graphs.from_config(config.topology, weights))
        seen, members = [], []
        iteration = 0
        while iteration < STEPS:
            if self.victims.get(node.name) == iteration:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                session.step(iteration)
                session.optimizer.drain()
                iteration += 1
                lost = False
            except PeerError:
                lost = True
            if lost:
                session.regroup()
                iteration = session.optimizer.iteration
            if len(members) == 0 or members[-1] != node.members:
                members.append(list(node.members))
                seen.append([])
            seen[-1].append((iteration, session.problem.model["theta"].detach().flatten().tolist()))
        (Path(self.folder) / f"{node.name}.json").write_text(json.dumps([members, seen]))


@pytest.mark.parametrize("overrides", [["strategy=I"], ["strategy=II"], ["strategy=II", "transport=messages"]])
def test_survivors_follow_the_twin_without_the_lost(overrides: list[str], tmp_path: Path) -> None:
    options = JoinOptions(device="cpu", timeout=10, tolerates_loss=True)
    start_ranks(Loses(str(tmp_path), overrides, {3: 12}), 6, options)
    kept = [0, 1, 2, 4, 5]
    told = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in kept}
    assert all(members == [[0, 1, 2, 3, 4, 5], kept] for members, _ in told.values())
    after = {name: dict(seen[1]) for name, (_, seen) in told.items()}
    first = min(after[0])
    assert all(min(states) == first for states in after.values()), "one agreed step"
    assert first in (12, 13)

    weights, name = normalise(WEIGHTS), overrides[0].removeprefix("strategy=")
    W = reference.without(mixing_matrix(graphs.exponential(6), strategy(name, weights).mixing_weights, 0.3), kept)
    left = normalise(weights[kept])
    plan = strategy(name, left)
    assert np.allclose(plan.average_weights @ W.toarray(), plan.average_weights, atol=1e-15)
    problem = Survivors(LeastSquares(configured(tmp_path, *PLAIN).problem, [0], range(6)), kept, first)
    problem.start = np.array([after[node][first] for node in kept])
    states = reference.gradient_tracking(problem, W, plan, 0.02, STEPS - first)
    for state in states:
        here = np.array([after[node][first + state.iteration] for node in kept])
        assert np.allclose(here, state.theta, atol=1e-11), state.iteration


class Survivors:
    """The stacked problem of the nodes that are left, from the iteration they went on at."""

    def __init__(self, everybody: LeastSquares, kept: list[int], first: int) -> None:
        self._all, self._kept, self._first = everybody, kept, first
        self.start = np.zeros(0)

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        full = np.zeros((6, 1, theta.shape[-1]))
        full[self._kept, 0] = theta
        return self._all.gradient(full, self._first + iteration)[self._kept, 0]

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize("lost", [0, 4])
def test_a_run_reaches_the_optimum_of_those_who_are_left(lost: int, tmp_path: Path) -> None:
    train(
        tmp_path / "r",
        *PLAIN,
        "iterations=300",
        "problem.noise=0",
        "chaos=kill",
        f"chaos.rank={lost}",
        "chaos.iteration=40",
    )
    (event,) = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    assert event["event"] == "membership"
    assert event["members"] == [node for node in range(6) if node != lost]
    rows = metrics(tmp_path / "r")
    assert [row["iteration"] for row in rows] == sorted({row["iteration"] for row in rows})
    assert rows[-1]["iteration"] == 300
    assert rows[-1]["distance"] < 1e-12, "their own optimum"
    assert commits(tmp_path / "r")[-1].world == 5
    networks = json.loads((tmp_path / "r" / "network.json").read_text())
    assert [network["nodes"] for network in networks] == [list(range(6)), event["members"]]
    assert networks[1]["iteration"] == event["iteration"]
    assert sum(networks[1]["weights"]) == pytest.approx(5)
    assert [sum(row.values()) for row in networks[1]["mixing"]] == pytest.approx([1] * 5)


def test_several_losses_one_after_the_other(tmp_path: Path) -> None:
    options = JoinOptions(device="cpu", timeout=10, tolerates_loss=True)
    start_ranks(Loses(str(tmp_path), [], {3: 8, 1: 18}), 6, options)
    for name in (0, 2, 4, 5):
        members, _ = json.loads((tmp_path / f"{name}.json").read_text())
        assert members[0] == [0, 1, 2, 3, 4, 5]
        assert members[-1] == [0, 2, 4, 5]


@pytest.mark.parametrize("iteration", [0, 1, 2])
def test_a_loss_just_before_the_end_keeps_nobody_waiting(iteration: int, tmp_path: Path) -> None:
    """Some are through when others notice, and wait in a sum over everybody."""
    few = ["iterations=3", "eval_every=1", "timeout=1000", "topology=ring", f"chaos.iteration={iteration}"]
    train(tmp_path / "r", *PLAIN, "chaos=kill", "chaos.rank=5", *few)
    assert [row["iteration"] for row in metrics(tmp_path / "r")] == [0, 1, 2, 3]
    assert commits(tmp_path / "r")[-1].world == 5


def test_a_network_that_falls_apart_is_refused(tmp_path: Path) -> None:
    words = r"node 0 lost at iteration \d+, and the network falls apart: \[1\] and \[2\] and \[3\] and \[4\] and \[5\]"
    with pytest.raises(LaunchError, match=words) as caught:
        train(tmp_path / "r", *PLAIN, "topology=star", "chaos=kill", "chaos.rank=0", "chaos.iteration=40")
    assert caught.value.code == 1


class FallsApart(Loses):
    """Node 5 is still connecting to the others when these have found that the network falls apart, and exit."""

    def run(self, node: Node) -> None:
        connect = rendezvous.init_groups

        def slowly(*arguments: Any) -> NoReturn:
            rendezvous.init_groups = connect
            rendezvous.destroy_groups(connect(*arguments))
            time.sleep(1)
            raise RuntimeError("Connection closed by peer")

        if node.name == 5:
            rendezvous.init_groups = slowly
        super().run(node)


def test_none_goes_on_alone_where_the_network_falls_apart(tmp_path: Path) -> None:
    """The others had left, and the slow node took them for lost: it trained alone, and the run ended with 0."""
    options = JoinOptions(device="cpu", timeout=10, tolerates_loss=True)
    with pytest.raises(LaunchError, match="the network falls apart"):
        start_ranks(FallsApart(str(tmp_path), ["topology=star"], {0: 12}), 6, options)
    assert not list(tmp_path.glob("*.json"))


def test_the_lost_weight_goes_to_the_diagonal() -> None:
    graph, weights = graphs.exponential(6), normalise(WEIGHTS)
    for node in range(6):
        told = {j: (float(weights[j]), graph.degree[j]) for j in graph[node]}
        row = mixing_row(float(weights[node]), graph.degree[node], told, 0.3)
        lost = next(iter(graph[node]))
        left = row_without(row, {lost})
        assert left.own == pytest.approx(row.own + row.neighbours[lost], abs=1e-15)
        assert lost not in left.neighbours
    W = reference.without(mixing_matrix(graph, weights, 0.3), [0, 1, 2, 4, 5]).toarray()
    left_weights = weights[[0, 1, 2, 4, 5]]
    balance = left_weights[:, None] * W
    assert np.allclose(balance, balance.T, atol=1e-15)
    assert np.allclose(W.sum(1), 1, atol=1e-15)
