"""Nodes that leave a run on purpose, and come back: `dgt leave`, `dgt join`, SIGUSR2."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dgt.runs import requests
from tests.distributed.ranks import DGT, command
from tests.distributed.runs import commits, metrics, train
from tests.distributed.test_replacing import PLAIN, RECORDED, meanwhile, memberships, processes, recorded

pytestmark = pytest.mark.timeout(120)


def paced(folder: Path, iterations: int, *overrides: str) -> list[str]:
    at = [f"problem.folder={folder / 'at'}", "on_peer_loss=continue", f"iterations={iterations}", "eval_every=100"]
    return [*PLAIN, *RECORDED, *at, *overrides]


def wait_for(done: Callable[[], bool], over: threading.Event) -> None:
    while not done() and not over.is_set():
        time.sleep(0.02)


def test_a_node_leaves_and_joins_on_command(tmp_path: Path) -> None:
    run, said = tmp_path / "run", []

    def ask(over: threading.Event) -> None:
        wait_for(lambda: len(processes(tmp_path / "at")) == 5, over)
        for words in (["leave", "3"], ["leave", "3"], ["join"]):
            said.append(command([*DGT, *words, f"run_dir={run}"], tmp_path))

    with meanwhile(ask):
        train(run, *paced(tmp_path, 4000))
    assert [done.returncode for done in said] == [0, 2, 0], [done.stderr for done in said]
    gone, back = memberships(run)
    assert said[0].stdout == gone["words"] + "\n"
    assert gone["words"].startswith(f"node 3 left as asked at iteration {gone['iteration']}; 4 nodes go on")
    assert said[1].stderr == "dgt: error: node 3 is not there\n"
    assert said[2].stdout == back["words"] + "\n"
    assert (gone["members"], back["members"]) == ([0, 1, 2, 4], [0, 1, 2, 3, 4])
    at = recorded(tmp_path / "at")
    assert all(list(at[node]) == list(range(4000)) for node in (0, 1, 2, 4))
    assert list(at[3]) == [*range(gone["iteration"]), *range(back["iteration"], 4000)]
    assert metrics(run)[-1]["distance"] < 1e-10, "the optimum of all"
    assert commits(run)[-1].world == 5


@pytest.mark.parametrize("node", [0, 2])
def test_a_node_leaves_when_its_process_gets_sigusr2(node: int, tmp_path: Path) -> None:
    """Rank 0 too, whose files the next one goes on with; nobody fails."""
    run = tmp_path / "run"

    def send(over: threading.Event) -> None:
        wait_for(lambda: len(processes(tmp_path / "at")) == 5, over)
        os.kill(processes(tmp_path / "at")[node][0], signal.SIGUSR2)

    with meanwhile(send):
        train(run, *paced(tmp_path, 500))
    (gone,) = memberships(run)
    assert gone["members"] == [name for name in range(5) if name != node]
    rows = metrics(run)
    assert [row["iteration"] for row in rows] == sorted({row["iteration"] for row in rows})
    assert rows[-1]["iteration"] == 500


def test_a_node_without_which_the_network_falls_apart_stays(tmp_path: Path, capfd: Any) -> None:
    run, found = tmp_path / "run", []

    def ask(over: threading.Event) -> None:
        wait_for(lambda: len(processes(tmp_path / "at")) == 5, over)
        requests.ask(run, requests.LEAVE, 0)
        requests.ask(run, requests.JOIN, 7)
        for what, node in ((requests.LEAVE, 0), (requests.JOIN, 7)):
            while (words := requests.answer(run, what, node)) is None and not over.is_set():
                time.sleep(0.02)
            found.append(words)

    with meanwhile(ask):
        train(run, *paced(tmp_path, 500, "topology=star"))
    assert found == [
        "node 0 stays: without it the network would fall apart", "node 7: the network has the nodes 0 to 4",
    ]  # fmt: skip
    assert not (run / "events.jsonl").exists()


def test_where_all_nodes_are_asked_to_leave_the_run_is_saved_and_stops(tmp_path: Path) -> None:
    """As where Slurm sends SIGUSR2 to every process of a job; those who leave first end with 0, and hide no stop."""
    run = tmp_path / "run"

    def send(over: threading.Event) -> None:
        wait_for(lambda: len(processes(tmp_path / "at")) == 5, over)
        for pid, _ in processes(tmp_path / "at").values():
            os.kill(pid, signal.SIGUSR2)

    with meanwhile(send):
        code = command([*DGT, "train", *paced(tmp_path, 5000), f"run_dir={run}"], tmp_path).returncode
    assert code == 75
    assert 1 <= commits(run)[-1].world <= 5
