"""A run and its directory: held by one, found again when it comes late, written again when it goes; output may fail."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dgt
from dgt.errors import LaunchError
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.processes import output
from dgt.processes.node import Node
from dgt.runs import lock
from dgt.runs.folders import COMMIT, DAMAGED
from dgt.runs.layout import SUPERSEDED
from dgt.runs.lock import RunLock
from dgt.training.checkpoints import finding
from dgt.training.jobs import TrainJob
from tests.distributed.processes import until
from tests.distributed.ranks import DGT, command, run_ranks
from tests.distributed.runs import (
    assert_identical,
    commits,
    configured,
    job_of,
    lines_of,
    metrics,
    start_long_run,
    told,
    train,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)

TWO = ["weights=[1,2]", "topology=ring", "iterations=60", "eval_every=3", "checkpoint.every=20"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    train(path, *TWO)
    return path


def locks(run: Path) -> list[Path]:
    return list(run.glob(f"{lock.PREFIX}*"))


def test_a_second_run_is_refused_and_a_killed_owner_is_no_obstacle(tmp_path: Path) -> None:
    """Both once exited with 0, and the metrics of one were lost."""
    run = tmp_path / "r"
    process = start_long_run(run, "weights=[1,2]", "checkpoint.minutes=0")
    try:
        refused = command([*DGT, "train", *TWO, f"run_dir={run}", "resume=auto"], tmp_path)
        (held,) = locks(run)
        owner = json.loads(held.read_text())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
    assert refused.returncode == 2, refused.stderr
    who = (
        rf"pid {owner['pid']} on {re.escape(socket.gethostname())} \(user \S+\), since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    )
    words = rf"dgt: error: run_dir={run}: held by another run, {who}; wait for its end, or choose another directory"
    assert re.fullmatch(words, refused.stderr.strip()), refused.stderr
    assert not (run / "failures").exists(), "the refusal is not the first run's failure"
    before = [row["iteration"] for row in metrics(run)]
    train(run, *TWO, "resume=auto")  # nothing was committed: it begins anew, and keeps what was measured
    assert metrics(run)[-1]["iteration"] == 60
    assert lines_of(run / SUPERSEDED) == len(before)
    assert locks(run) == []
    with pytest.raises(LaunchError, match="already holds a run"):
        train(run, *TWO)


def test_a_new_rank_0_takes_the_lock_over(tmp_path: Path) -> None:
    few = ["weights=[1,2,3]", "topology=complete", "on_peer_loss=continue", "timeout=10", "iterations=60"]
    train(tmp_path / "r", *few, "chaos=kill", "chaos.rank=0", "chaos.iteration=20")
    assert commits(tmp_path / "r")[-1].world == 2
    assert locks(tmp_path / "r") == []


@dataclass
class Race:
    """All ranks want the directory of a dead owner at once, again and again."""

    folder: str
    rounds: int

    def run(self, node: Node) -> list[int]:
        winners = []
        for number in range(self.rounds):
            directory = Path(self.folder) / str(number)
            if node.is_main:
                directory.mkdir()
                dead = {"host": "here", "pid": 2**22 - 1, "started": f"1 {lock._place()}", "user": "u", "since": 0.0}
                (directory / f"{lock.PREFIX}dead").write_text(json.dumps({**dead, "run": "dead", "held": True}))
            mine = RunLock(directory, f"{node.rank}")
            node.barrier()
            rival = mine.attempt()
            while rival is not None and not (rival.owner.held and rival.lives):
                rival = mine.attempt()
            winners.append(int(node.all_reduce(torch.tensor(int(rival is None)))))
            mine.release()
        return winners


def test_of_many_that_want_a_stale_lock_exactly_one_gets_it(tmp_path: Path) -> None:
    assert set(map(tuple, run_ranks(Race(str(tmp_path), 20), 4).values())) == {(1,) * 20}
    assert not list(tmp_path.glob("*/.*"))


@dataclass
class OwnLoop:
    folder: str

    def run(self, node: Node) -> int:
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0, 2.0])
        theta = torch.nn.Parameter(torch.zeros(3))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
        checkpoints = dgt.Checkpoints(self.folder, network, optimizer=optimizer)
        done = checkpoints.resume() + 1
        theta.grad = torch.ones(3)
        optimizer.step()
        checkpoints.save(done)
        return done


def test_a_loop_of_ones_own_has_its_directory_for_itself(tmp_path: Path) -> None:
    mine = RunLock(tmp_path, "mine")
    assert mine.attempt() is None
    with pytest.raises(
        LaunchError, match=rf"Checkpoints\({tmp_path}\): held by another run, pid {os.getpid()} "
    ) as caught:
        run_ranks(OwnLoop(str(tmp_path)), 2)
    assert caught.value.code == 2
    mine.release()
    assert set(run_ranks(OwnLoop(str(tmp_path)), 2).values()) == {1}
    assert set(run_ranks(OwnLoop(str(tmp_path)), 2).values()) == {2}
    assert locks(tmp_path) == []


def test_checkpoints_that_come_late_are_waited_for(finished: Path, tmp_path: Path) -> None:
    """A mount that was not there yet: the run began at 0, removed the good checkpoints and rewrote its metrics."""
    run, away = tmp_path / "r", tmp_path / "away"
    shutil.copytree(finished, run)
    (run / finding.FOLDER).rename(away)
    line = [*DGT, "train", *TWO, "iterations=70", f"run_dir={run}", "resume=auto"]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert f"dgt: resume=auto: The first checkpoint of this run was committed at iteration 20, and {run}" in first
    assert "trying again for 60 s" in first
    away.rename(run / finding.FOLDER)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    train(tmp_path / "whole", *TWO, "iterations=70")
    assert metrics(run)[-1] == metrics(tmp_path / "whole")[-1]
    assert commits(run)[-1].step == 70
    assert not (run / SUPERSEDED).exists()


@dataclass
class Impatient:
    """A job that waits for files for a moment only."""

    job: TrainJob | OwnLoop

    def run(self, node: Node) -> Any:
        finding.PATIENCE, finding.PAUSE = 0.5, 0.1
        return self.job.run(node)


def test_a_loop_of_ones_own_that_had_checkpoints_does_not_begin_at_zero(tmp_path: Path) -> None:
    """Nothing but its checkpoints told that there had been any."""
    assert set(run_ranks(OwnLoop(str(tmp_path)), 2).values()) == {1}
    (committed,) = tmp_path.glob(f"*/{COMMIT}")
    shutil.rmtree(committed.parent)
    with pytest.raises(LaunchError, match=r"committed at iteration 1, and .* holds none now"):
        run_ranks(Impatient(OwnLoop(str(tmp_path))), 2)


@pytest.mark.parametrize("happens", ["never comes", "damaged"])
def test_a_run_without_its_checkpoints_is_refused_and_left_as_it_is(
    happens: str, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    shutil.copytree(finished, run)
    if happens == "never comes":
        shutil.rmtree(run / finding.FOLDER)
    for path in run.glob(f"*/*/{COMMIT}"):
        path.rename(path.with_name(DAMAGED))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "failures" not in path.parts}
    config = configured(run, *TWO, "resume=auto")
    for _ in range(2):
        with pytest.raises(LaunchError, match="to begin at iteration 0 choose another directory") as caught:
            start_ranks(Impatient(job_of(config)), 2, JoinOptions.from_config(config))
        assert caught.value.code == 2
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "failures" not in path.parts}
    assert after == before


def test_a_run_directory_that_is_removed_is_written_again(tmp_path: Path) -> None:
    run = tmp_path / "r"
    process = start_long_run(run, "weights=[1,2]", "checkpoint.minutes=0.01")
    try:
        shutil.rmtree(run, ignore_errors=True)
        while run.exists():  # a file may be made just as it goes
            shutil.rmtree(run, ignore_errors=True)
        until(lambda: lines_of(run / "metrics.jsonl") >= 10)
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    rows = [row["iteration"] for row in metrics(run)]
    assert rows == list(range(0, 10 * len(rows), 10)), "also those before it was removed"
    assert {"config.yaml", "network.json", "environment.json", "nodes.jsonl"} <= {path.name for path in run.iterdir()}
    removed = [line for line in told(stderr) if "removed while the run goes on" in line]
    assert removed == [f"dgt: run_dir={run}: removed while the run goes on; its files are written again"]
    train(run, "weights=[1,2]", f"iterations={commits(run)[-1].step + 10}", "eval_every=10", "resume=auto")
    assert locks(run) == []


def test_output_that_cannot_be_written_does_not_stop_training(finished: Path, tmp_path: Path) -> None:
    """Rank 0 prints its progress to a closed descriptor, and its summary to a full disk."""
    line = " ".join([*DGT, "train", *TWO, f"run_dir={tmp_path / 'r'}"]).replace("[", "'[").replace("]", "]'")
    done = command(["sh", "-c", f"exec {line} >/dev/full 2>&- <&-"], tmp_path)
    assert done.returncode == 0
    assert_identical(tmp_path / "r", finished)
    assert (tmp_path / "r" / "summary.json").exists()


def test_a_stream_that_fails_drops_what_it_cannot_write() -> None:
    """Whole or in part; the first failure is told, and when there is room again it is written to."""
    said: list[str] = []
    with open("/dev/full", "wb", buffering=0) as full, open(os.devnull, "wb", buffering=0) as room:
        raw = output.Stream(os.dup(full.fileno()), True, lambda error: said.append(str(error.strerror)))
        stream = io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True)
        for _ in range(3):
            print("x" * 100_000, file=stream, flush=True)
        assert said == ["No space left on device"]
        assert raw.error is not None
        os.dup2(room.fileno(), raw.fileno())
        assert raw.write(b"again") == 5
        os.close(raw.fileno())


def test_a_command_that_only_prints_fails_when_it_cannot(tmp_path: Path) -> None:
    dgt = " ".join(DGT)
    full = command(["sh", "-c", f"exec {dgt} gaps --json >/dev/full"], tmp_path)
    assert (full.returncode, full.stderr) == (
        1, "dgt: error: standard output cannot be written (No space left on device)\n"
    )  # fmt: skip
    closed = command(["sh", "-c", f"exec {dgt} gaps --json >&-"], tmp_path)
    assert (closed.returncode, closed.stderr) == (
        1, "dgt: error: standard output is closed, and this command only prints\n"
    )  # fmt: skip
