"""Losing a rank while a run saves and ends, and resuming a run that has lost some.

A few cases always run; `DGT_TRIALS=200 DGT_SEED=7 pytest -m trials` draws as many others.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import dgt
from dgt import reference
from dgt.errors import EXIT_STOPPED, LaunchError, PeerError
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.network import graphs
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import normalise
from dgt.problems.least_squares import LeastSquares
from dgt.processes import regroup, rendezvous
from dgt.processes.node import Node
from dgt.runs.layout import MODEL
from dgt.training.chaos import MARKER
from dgt.training.checkpoints import saving
from dgt.training.checkpoints.models import about_of
from dgt.training.jobs import TrainJob
from tests.distributed.ranks import DGT, TORCHRUN, command, run_ranks
from tests.distributed.runs import commits, configured, job_of, last_state, metrics, same, session_of, told, train

pytestmark = pytest.mark.timeout(240)

LAST = 12
SLOW = [
    "problem=custom", "problem._target_=tests.distributed.slow_disk.SlowDisk", "weights=[1,2,3,4]", "topology=complete",
    "lr=0.05", f"iterations={LAST}", "eval_every=4", "checkpoint.every=100", "timeout=8", "on_peer_loss=continue",
]  # fmt: skip
WEIGHTS, KEPT, STEPS = [1.0, 2.0, 3.0, 4.0], [0, 1, 3], 40
PLAIN = [
    "weights=[1,2,3,4]", "topology=complete", f"iterations={STEPS}", "eval_every=4", "checkpoint.every=20",
    "checkpoint.keep_last=9", "timeout=10",
]  # fmt: skip
ENDS = ("step", "drain", "barrier", "copy", "write", "rename", "written", "commit", "prune", "summary", "leave")
OF_RANK_0 = ("commit", "prune", "summary")
AFTER_ITS_PART = ("written", "leave")  # the checkpoint has the lost node too, unless it was the one that commits
AFTER_THE_COMMIT = ("prune", "summary", "leave")


def killed_in(phase: str, rank: int, stops: bool, run: Path, *overrides: str) -> list[int]:
    """Kill a rank in this phase of the end of a run, and check what is left; returns the nodes of the checkpoint."""
    at = LAST - 3 if stops else LAST - 1
    fault = ["chaos=kill", f"chaos.phase={phase}", f"chaos.rank={rank}", f"chaos.iteration={at}"]
    if stops:
        with pytest.raises(LaunchError, match=r"stopped by SIGTERM at iteration \d+; resume=auto run_dir=") as caught:
            train(run, *SLOW, *fault, f"problem.term={at}", *overrides)
        assert caught.value.code == EXIT_STOPPED
    else:
        train(run, *SLOW, *fault, *overrides)
    assert (run / MARKER).exists(), "the rank was killed"
    return seen_off(run, stops)


def seen_off(run: Path, stops: bool) -> list[int]:
    """The end that all survivors agree on, whoever was lost; returns the nodes of the last checkpoint."""
    assert not list(run.glob("failures/*/rank-*.json")), "no healthy rank was lost"
    path, last = run / "events.jsonl", commits(run)[-1]
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    members = ([[0, 1, 2, 3]] + [event["members"] for event in events if event["event"] == "membership"])[-1]
    assert last.world == len(members), (members, last)
    model = about_of(torch.load(run / MODEL, weights_only=True))
    assert (model["iteration"], model["nodes"]) == (last.step, last.world), "whoever was lost, and also rank 0"
    rows = [row["iteration"] for row in metrics(run)]
    assert rows == sorted(set(rows))
    if stops:
        stop = events[-1]
        assert (stop["event"], stop["iteration"]) == ("stopped", last.step)
        assert last.step < LAST
    else:
        assert last.step == rows[-1] == LAST
        assert json.loads((run / "summary.json").read_text())["final"]["iteration"] == LAST
        assert all("loss" in row for row in metrics(run)[1:])
    return list(members)


@pytest.mark.parametrize(
    ("phase", "rank", "stops"), [("written", 2, False), ("prune", 0, True), ("summary", 0, False), ("barrier", 1, True)]
)
def test_a_rank_lost_while_the_run_ends(phase: str, rank: int, stops: bool, tmp_path: Path) -> None:
    """Parts went on alone, a saved run exited with 1, and a lost rank 0 left no summary."""
    members = killed_in(phase, rank, stops, tmp_path / "r")
    assert (rank in members) == (phase in (*AFTER_ITS_PART, *AFTER_THE_COMMIT))


def test_two_ranks_lost_one_after_the_other_while_the_run_ends(tmp_path: Path) -> None:
    """The second dies while those who are left after the first loss save: they regroup again."""
    later = ["problem.dies=0", "problem.in_fsync=5", "transport=messages"]
    assert killed_in("write", 3, True, tmp_path / "r", *later) == [1, 2]


@dataclass
class Untold:
    """A run whose ranks have no launcher that tells them who has ended, and a store in rank 0, as under srun."""

    job: TrainJob
    port: int

    def run(self, node: Node) -> object:
        node.launcher_notes = None
        node.store = rendezvous.tcp_store("127.0.0.1", self.port, node.rank, node.size, timedelta(seconds=30))
        return self.job.run(node)


@pytest.mark.parametrize(("phase", "rank", "left"), [("write", 2, [0, 1, 3]), ("prune", 0, [0, 1, 2, 3])])
def test_without_a_launcher_that_tells(phase: str, rank: int, left: list[int], tmp_path: Path) -> None:
    """Rank 0 waited ten minutes for the file of a dead rank. Where rank 0 is lost, its COMMIT record says all."""
    fault = ["chaos=kill", f"chaos.phase={phase}", f"chaos.rank={rank}", f"chaos.iteration={LAST - 1}", "timeout=2"]
    config = configured(tmp_path / "r", *SLOW, *fault)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start_ranks(Untold(job_of(config), port), 4, JoinOptions.from_config(config))
    assert seen_off(tmp_path / "r", stops=False) == left


@dataclass
class DiesRegrouping:
    """Node 1 is lost in a step, and node 2 while those who are left meet again."""

    folder: str
    where: str

    def run(self, node: Node) -> None:
        config = configured(Path(self.folder), *PLAIN)
        weights = normalise(WEIGHTS)
        session = session_of(config, node, weights, graphs.from_config(config.topology, weights))
        if node.name == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if node.name == 2:
            module = rendezvous if self.where == "init_groups" else regroup
            setattr(module, self.where, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
        with contextlib.suppress(PeerError):
            session.step(0)
            session.step(1)
        words = session.regroup()
        (Path(self.folder) / f"{node.name}.json").write_text(
            json.dumps([words, node.members, session.weights.tolist()])
        )
        session.step(session.optimizer.iteration)
        session.optimizer.drain()


@pytest.mark.parametrize("where", ["wait_until_ready", "init_groups"])
def test_a_node_lost_while_the_others_meet_again_takes_nobody_with_it(where: str, tmp_path: Path) -> None:
    """Those who were waiting for it ended with it, or after five minutes."""
    start_ranks(DiesRegrouping(str(tmp_path), where), 4, JoinOptions(device="cpu", timeout=5, tolerates_loss=True))
    for name in (0, 3):
        words, members, weights = json.loads((tmp_path / f"{name}.json").read_text())
        assert words.startswith("nodes 1, 2 lost at iteration ")
        assert members == [0, 3]
        assert weights == pytest.approx([0.4, 1.6])


@pytest.mark.trials
@pytest.mark.timeout(7200)
def test_random_losses_while_runs_end(tmp_path: Path) -> None:
    """Phase, rank, disks, transport, graph and a second loss at random; a run that was stopped is then resumed."""
    for seed in range(int(os.environ.get("DGT_SEED", "0")), int(os.environ.get("DGT_SEED", "0")) + trials()):
        draw, run = random.Random(seed), tmp_path / str(seed)
        phase, stops = draw.choice(ENDS), draw.random() < 0.5
        rank = 0 if phase in OF_RANK_0 else draw.randrange(4)
        overrides = [
            f"transport={draw.choice(['auto', 'messages'])}", f"problem.fsync={draw.choice([0, 0.02, 0.2])}",
            f"problem.slow={draw.randrange(4)}", f"problem.more={draw.choice([0, 0.3, 1])}",
            f"topology={draw.choice(['complete', 'exponential'])}", f"overlap={draw.choice(['true', 'false'])}",
        ]  # fmt: skip
        if draw.random() < 0.4:
            other = draw.choice([node for node in range(4) if node != rank])
            overrides += [f"problem.dies={other}", f"problem.in_fsync={draw.randrange(1, 14)}"]
        print(f"seed {seed}: {phase} of rank {rank}, stops {stops}, {' '.join(overrides)}", flush=True)
        killed_in(phase, rank, stops, run, *overrides)
        if stops:
            train(run, *SLOW, f"problem.term={LAST - 3}", *overrides, "resume=auto")
            assert metrics(run)[-1]["iteration"] == commits(run)[-1].step == LAST
            assert commits(run)[-1].world == 4 or "problem.dies" in overrides[-2], "all of them again"
        shutil.rmtree(run)


def trials() -> int:
    return int(os.environ.get("DGT_TRIALS", "60"))


@pytest.fixture(scope="module")
def bereft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that lost node 2 and went on to its end, with checkpoints of the three that were left at 20 and 40."""
    path = tmp_path_factory.mktemp("bereft") / "run"
    lost = ["on_peer_loss=continue", "chaos=kill", "chaos.rank=2", "chaos.iteration=9", f"strategy={request.param}"]
    train(path, *PLAIN, *lost)
    assert [(commit.step, commit.world) for commit in commits(path)] == [(20, 3), (40, 3)]
    return path


def strategy_of(run: Path) -> str:
    return f"strategy={json.loads((run / 'summary.json').read_text())['strategy']}"


@pytest.mark.parametrize("bereft", ["II"], indirect=True)
def test_those_who_were_left_go_on_bit_by_bit(bereft: Path, tmp_path: Path) -> None:
    """As many ranks as the checkpoint has: the same numbers as the run that was not interrupted."""
    run = [*PLAIN, strategy_of(bereft), f"resume={commits(bereft)[0].path}", f"run_dir={tmp_path / 'r'}"]
    done = command([*TORCHRUN, "--nproc-per-node=3", "-m", "dgt", "train", *run], tmp_path)
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "r") == metrics(bereft)
    assert same(last_state(tmp_path / "r"), last_state(bereft))
    assert json.loads((tmp_path / "r" / "network.json").read_text())[-1]["nodes"] == KEPT


@dataclass
class Returns:
    """All four ranks resume, and write down every state from there on."""

    folder: str
    overrides: list[str]

    def run(self, node: Node) -> None:
        config = configured(Path(self.folder), *PLAIN, *self.overrides)
        weights = normalise(WEIGHTS)
        session = session_of(config, node, weights, graphs.from_config(config.topology, weights))
        first, _ = saving.resume(session, lambda words: None)
        seen = {first: session.problem.model["theta"].tolist()}
        for iteration in range(first, STEPS):
            session.step(iteration)
            session.optimizer.drain()
            seen[iteration + 1] = session.problem.model["theta"].tolist()
        (Path(self.folder) / f"{node.name}.json").write_text(json.dumps(seen))


@pytest.mark.parametrize("bereft", ["I", "II"], indirect=True)
def test_who_returns_starts_from_the_average_and_all_follow_the_twin(bereft: Path, tmp_path: Path) -> None:
    commit, name = commits(bereft)[0], strategy_of(bereft)
    start_ranks(Returns(str(tmp_path), [name, f"resume={commit.path}"]), 4, JoinOptions(device="cpu", timeout=10))
    told = [json.loads((tmp_path / f"{node}.json").read_text()) for node in range(4)]
    weights = normalise(WEIGHTS)
    plan = strategy(name[-2:].lstrip("="), weights)
    problem = Later(LeastSquares(configured(tmp_path, *PLAIN).problem, [0], range(4)), first=20)
    left = np.array([told[node]["20"] for node in KEPT])
    problem.start = reference.with_returned(left, KEPT, np.array([file["share"] for file in commit.files]), 4)
    W = mixing_matrix(graphs.complete(4), plan.mixing_weights, 0.3)
    for state in reference.gradient_tracking(problem, W, plan, 0.02, STEPS - 20):
        here = np.array([told[node][str(20 + state.iteration)] for node in range(4)])
        assert np.allclose(here, state.theta, atol=1e-11), state.iteration


class Later:
    """The stacked problem from this iteration on."""

    def __init__(self, problem: LeastSquares, first: int) -> None:
        self._problem, self._first, self.start = problem, first, np.zeros(0)

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        return self._problem.gradient(theta, self._first + iteration)

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize("bereft", ["II"], indirect=True)
def test_the_same_command_brings_everybody_back_and_says_so(bereft: Path, tmp_path: Path) -> None:
    shutil.copytree(bereft, tmp_path / "r")
    longer = [*PLAIN, strategy_of(bereft), "iterations=60", "problem.noise=1", f"run_dir={tmp_path / 'r'}"]
    done = command([*DGT, "train", *longer, "resume=auto"], tmp_path)
    assert done.returncode == 0, done.stderr
    words = (
        "node 2 returns at iteration 40 from the average of the 3 that were left; 4 nodes go on, trackers start anew"
    )
    assert told(done.stderr) == [f"dgt: {words}"]
    event = json.loads((tmp_path / "r" / "events.jsonl").read_text().splitlines()[-1])
    assert (event["iteration"], event["members"], event["words"]) == (40, [0, 1, 2, 3], words)
    networks = json.loads((tmp_path / "r" / "network.json").read_text())
    assert [network["nodes"] for network in networks] == [[0, 1, 2, 3], KEPT, [0, 1, 2, 3]]
    assert networks[0]["mixing"] == networks[2]["mixing"]
    assert commits(tmp_path / "r")[-1].world == 4
    assert metrics(tmp_path / "r")[-1]["iteration"] == 60


@pytest.mark.parametrize("bereft", ["II"], indirect=True)
def test_another_number_of_ranks_is_refused_with_the_numbers_that_work(bereft: Path, tmp_path: Path) -> None:
    config = configured(tmp_path / "r", *PLAIN, strategy_of(bereft), f"resume={bereft}")
    words = "world size 2: this network has 4 nodes; start 4 ranks, one per node, or 3 to go on with the nodes of the"
    with pytest.raises(LaunchError, match=words) as caught:
        start_ranks(job_of(config), 2, JoinOptions.from_config(config))
    assert caught.value.code == 2


@dataclass
class OwnLoop:
    """A loop of one's own that saves once, or resumes."""

    folder: str

    def run(self, node: Node) -> int:
        network = dgt.Network(node, graphs.complete(node.size), [1.0] * node.size)
        model = torch.nn.Linear(2, 1)
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network)
        checkpoints = dgt.Checkpoints(self.folder, network, model=model, optimizer=optimizer)
        return checkpoints.resume() or int(checkpoints.save(5))


def test_a_loop_of_ones_own_says_how_many_ranks_it_needs(tmp_path: Path) -> None:
    assert run_ranks(OwnLoop(str(tmp_path / "c")), 2) == {0: True, 1: True}
    words = "world is 2 nodes there, 3 nodes here; .*; a run goes on with as many ranks as it was saved by: 2"
    with pytest.raises(LaunchError, match=words):
        run_ranks(OwnLoop(str(tmp_path / "c")), 3)
