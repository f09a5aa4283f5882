"""Ranks that are lost, one or several, in any order and at any time: no healthy one goes with them, all in time."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import dgt
from dgt.errors import LaunchError, PeerError
from dgt.exchange import shared
from dgt.exchange.shared import Board
from dgt.launching import forkserver
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.processes.node import Node
from tests.distributed.processes import descendants
from tests.distributed.runs import train
from tests.distributed.schedules import Fault, Schedule, drawn, play, wrong

pytestmark = pytest.mark.timeout(240)


def assert_ends_well(schedule: Schedule, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = play(schedule, folder, lambda: capfd.readouterr().err)
    assert not wrong(schedule, outcome, folder), (str(schedule), outcome)


@pytest.mark.parametrize("on_peer_loss", ["continue", "stop"])
@pytest.mark.parametrize("width", [16, 4000])
def test_a_neighbour_lost_while_a_rank_is_stopped_takes_nobody_with_it(
    on_peer_loss: str, width: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """gloo raises where a send or receive is posted on a connection that is closed by then: after SIGSTOP of rank 1,
    SIGKILL of rank 2 and SIGCONT of rank 1, rank 1 died as well."""
    faults = (Fault(20, 1, "STOP", 0.5), Fault(20, 2, "KILL"))
    assert_ends_well(Schedule(0, 5, "messages", on_peer_loss, width, faults), tmp_path, capfd)


@dataclass
class Parent:
    """Rank 1 has children when it is killed: a DataLoader's worker, and two of its own that live on for a while."""

    folder: str
    transport: str

    def run(self, node: Node) -> None:
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport=self.transport)
        theta = torch.nn.Parameter(torch.zeros(10))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
        loader = iter(torch.utils.data.DataLoader(range(10_000), num_workers=1)) if node.rank == 1 else None
        try:
            for step in range(10_000):
                theta.grad = torch.ones(10)
                if loader is not None:
                    next(loader)
                    if step == 5:
                        self._leave_children()
                optimizer.step()
        except PeerError as error:
            (Path(self.folder) / f"noticed-{node.rank}").write_text(str(error))
            raise

    def _leave_children(self) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        program = os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)  # inherits what os.system's would
        (Path(self.folder) / "children").write_text(f"{child} {program}")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_children_of_a_killed_rank_do_not_keep_it_alive(transport: str, tmp_path: Path) -> None:
    """They inherit the lock that says that it lives, and its connections: its death was named five seconds later, when
    the workers had noticed it, or after the timeout, where it had started a program."""
    try:
        with pytest.raises(LaunchError, match="rank 1 was killed"):
            start_ranks(Parent(str(tmp_path), transport), 3, JoinOptions(device="cpu", timeout=12, tolerates_loss=True))
        for rank in (0, 2):
            assert "neighbour 1 is gone" in (tmp_path / f"noticed-{rank}").read_text()
    finally:
        for pid in (tmp_path / "children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@dataclass
class HalfPublished:
    """Rank 1 is killed in the middle of telling its neighbours of a message, which is complete."""

    call: str
    folder: str

    def run(self, node: Node) -> None:
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size)
        theta = torch.nn.Parameter(torch.zeros(10))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
        faulthandler.dump_traceback_later(20, exit=True)
        plainly = getattr(Board, self.call)

        def kill_at_five(board: Board, step: int) -> None:
            if step == 5 and node.rank == 1:
                time.sleep(0.5)  # the others have published theirs, and rely on this one
                os.kill(os.getpid(), signal.SIGKILL)
            plainly(board, step)

        setattr(Board, self.call, kill_at_five)
        try:
            for _ in range(20):
                theta.grad = torch.ones(10)
                optimizer.step()
        except PeerError as error:
            (Path(self.folder) / f"noticed-{node.rank}").write_text(str(error))
            raise


@pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux")
@pytest.mark.parametrize("call", ["sign", "ring_if_complete"])
def test_a_rank_killed_before_it_rings_its_neighbours_bells_stalls_nobody(call: str, tmp_path: Path) -> None:
    """All messages were there, so that nobody was missed, and no bell ever rang: its neighbours waited for ever."""
    with pytest.raises(LaunchError, match="rank 1 was killed"):
        start_ranks(HalfPublished(call, str(tmp_path)), 3, JoinOptions(device="cpu", timeout=4, tolerates_loss=True))
    for rank in (0, 2):
        assert "neighbour 1 is gone" in (tmp_path / f"noticed-{rank}").read_text()


class Stops:
    """Rank 1 is stopped, and nobody wakes it."""

    def run(self, node: Node) -> None:
        if node.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


def test_a_rank_that_stays_stopped_does_not_keep_the_launcher(capfd: pytest.CaptureFixture[str]) -> None:
    """With on_peer_loss=continue the others went on without it and ended; the command did not."""
    with pytest.raises(LaunchError):
        start_ranks(Stops(), 3, JoinOptions(device="cpu", timeout=2, tolerates_loss=True))
    assert "dgt: the others have ended, and rank 1 is stopped (SIGSTOP): killed\n" in capfd.readouterr().err


def kill_early(when: str, seconds: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kill a rank so long after it was forked, or has begun; returns what the launcher says, empty if it went on."""
    forkserver.start()  # before the temporary directory is another one
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    forks, over, hung = forkserver._pid(), threading.Event(), threading.Event()
    assert forks is not None

    def begun() -> list[int]:
        if when == "forked":
            return sorted(descendants(forks))[-1:]
        return [int(path.read_text().split()[0]) for path in folder.glob("dgt-*/pid-1")]

    def strike() -> None:
        while not (found := begun()) and not over.is_set():
            time.sleep(0.001)
        time.sleep(seconds)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        if not over.wait(30):
            hung.set()
            for pid in descendants(forks):
                os.kill(pid, signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    words = ""
    try:
        train(folder / "run", "weights=[1,1,1,1]", "topology=complete", "iterations=2000", "on_peer_loss=continue")
    except LaunchError as error:
        words = f"{error.code}: {error}"
    finally:
        over.set()
        striking.join()
    assert not hung.is_set(), (when, seconds)
    return words


@pytest.mark.parametrize(("when", "seconds"), [("forked", 0.0), ("begun", 0.0), ("begun", 0.05)])
def test_a_rank_lost_before_all_have_met_ends_the_others_at_once(
    when: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With on_peer_loss=continue they waited for it for 311 seconds, though the launcher knew."""
    words = kill_early(when, seconds, tmp_path, monkeypatch)
    assert re.match(r"1: rank \d was killed \(SIGKILL\)", words) or (seconds and not words)


@pytest.mark.trials
@pytest.mark.timeout(3000)
def test_ranks_killed_at_forty_moments_of_their_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Counter[str]()
    for trial in range(40):
        folder = tmp_path / str(trial)
        folder.mkdir()
        words = kill_early("forked" if trial % 4 == 0 else "begun", trial * 0.01, folder, monkeypatch)
        assert re.match(r"1: rank \d was killed \(SIGKILL\)|$", words), words
        ends["went on without it" if not words else "ended"] += 1
    print(dict(ends))
    assert ends["ended"] >= 5


@pytest.mark.trials
@pytest.mark.timeout(36000)
def test_random_schedules_of_faults(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One to four of STOP, KILL, CONT and TERM at random; a line for each schedule that ends in another way than it
    has to, with the seed that repeats it."""
    first, number = int(os.environ.get("DGT_SEED", "0")), int(os.environ.get("DGT_SCHEDULES", "40"))
    done, failed = Counter[str](), []
    for seed in range(first, first + number):
        schedule, folder = drawn(seed), tmp_path / str(seed)
        outcome = play(schedule, folder, lambda: capfd.readouterr().err)
        found = wrong(schedule, outcome, folder)
        if found:
            failed.append(f"{schedule}: {', '.join(found)}")
            with capfd.disabled():
                print(f"\n{failed[-1]}\n    code {outcome.code}: {outcome.words}\n{outcome.said}", flush=True)
        else:
            shutil.rmtree(folder)
        done[f"{schedule.on_peer_loss}, {schedule.transport}"] += 1
    with capfd.disabled():
        print(f"\n{number} schedules from seed {first}: {dict(done)}, {len(failed)} failed")
    assert not failed
