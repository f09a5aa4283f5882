"""Slow nodes that leave out local steps: the optimum stays that of all nodes, ranks follow the twin."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dgt import reference
from dgt.config.compose import compose
from dgt.errors import ConfigError
from dgt.network import graphs
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import normalise
from dgt.problems.least_squares import LeastSquares
from dgt.processes.node import Node
from dgt.training.pace import Pace
from tests.distributed.ranks import run_ranks
from tests.distributed.runs import configured, metrics, session_of, train

pytestmark = pytest.mark.timeout(120)

WEIGHTS, SHARES, LOCAL = [1.0, 2.0, 3.0, 4.0], [1.0, 0.1, 0.5, 1.0], 5
PLAIN = ["weights=[1,2,3,4]", "topology=ring", f"local_steps={LOCAL}", "adapt=true", "lr=0.01", "problem.noise=0"]


@functools.cache
def table() -> np.ndarray:
    """Who makes each of the local steps between two exchanges [steps, nodes]."""
    pace, columns = Pace(compose(PLAIN)), []
    for share in SHARES:
        pace.share = share
        columns.append([not pace.leaves_out(iteration) for iteration in range(LOCAL)])
    return np.array(columns).T


def makes(iteration: int) -> np.ndarray:
    return table()[iteration % LOCAL]


def test_a_node_makes_its_share_of_the_steps_and_every_exchange() -> None:
    made = np.array([makes(iteration) for iteration in range(4 * LOCAL)])
    assert made.sum(0).tolist() == [20, 4, 8, 20]
    assert made[LOCAL - 1 :: LOCAL].all()


def twin(name: str, iterations: int) -> np.ndarray:
    weights = normalise(np.array(WEIGHTS))
    W = mixing_matrix(graphs.ring(4), strategy(name, weights).mixing_weights, 0.3)
    problem = LeastSquares(compose(["problem.noise=0"]).problem, [0], range(4))
    states = reference.gradient_tracking(
        problem, W, strategy(name, weights), 0.01, iterations, local_steps=LOCAL, makes=makes
    )
    return np.array([state.theta for state in states])


@pytest.mark.parametrize("name", ["I", "II"])
def test_the_twin_reaches_the_optimum_of_all_whatever_steps_are_left_out(name: str) -> None:
    weights = normalise(np.array(WEIGHTS))
    optimum = LeastSquares(compose([]).problem, [0], range(4)).optimum(weights)
    assert np.abs(twin(name, 3000)[-1] - optimum).max() < 1e-10


@dataclass
class Leaves:
    """Every node makes its own share of the steps, and writes down where it is."""

    folder: str
    overrides: list[str]

    def run(self, node: Node) -> None:
        config = configured(Path(self.folder), *PLAIN, *self.overrides)
        weights = normalise(np.array(WEIGHTS))
        session = session_of(config, node, weights, graphs.from_config(config.topology, weights))
        session.pace.share = SHARES[node.name]
        seen = []
        for iteration in range(40):
            seen.append(session.problem.model["theta"].tolist())
            session.step(iteration)
            if iteration % 7 == 0:
                session.optimizer.drain()
        (Path(self.folder) / f"{node.name}.json").write_text(json.dumps(seen))


@pytest.mark.parametrize("overrides", [["strategy=I"], ["strategy=II", "transport=messages", "problem.dimension=10"]])
def test_ranks_follow_the_twin_at_every_iteration(overrides: list[str], tmp_path: Path) -> None:
    run_ranks(Leaves(str(tmp_path), overrides), 4)
    states = twin(overrides[0].removeprefix("strategy="), 40)
    for node in range(4):
        here = np.array(json.loads((tmp_path / f"{node}.json").read_text()))
        assert np.allclose(here, states[:40, node], atol=1e-11), node


def test_a_slow_node_leaves_out_steps_and_all_reach_the_optimum_of_all(tmp_path: Path) -> None:
    slow = ["chaos=slow", "chaos.rank=2", "chaos.iteration=0", "chaos.seconds=0.01", "eval_every=100"]
    began = time.monotonic()
    train(tmp_path / "r", *PLAIN, *slow, "iterations=1500")
    assert metrics(tmp_path / "r")[-1]["distance"] < 1e-8
    assert time.monotonic() - began < 15, "of 15 s that its steps would take one after the other"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["adapt=true"], r"^adapt=true: slow nodes leave out local steps; give local_steps above 1 \(1 here\)"),
        (["adapt=true", "local_steps=4", "algorithm=dsgd"], "^adapt=true: not with algorithm=dsgd"),
        (["adapt=true", "local_steps=4", "algorithm.base=adamw"], "^adapt=true: not with algorithm.base=adamw"),
    ],
)
def test_what_it_does_not_go_with_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose(overrides)
