"""Run directories of strangers, and of runs that were stopped for long: read within bounds, and written by one only."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.config import Config
from dgt.errors import ConfigError
from dgt.processes import failures
from dgt.runs import folders, lock
from dgt.runs.claiming import claim
from dgt.runs.folders import MARKER
from dgt.runs.holding import held
from dgt.runs.layout import SUMMARY, SUPERSEDED
from dgt.runs.lines import Tail, records_in
from dgt.runs.lock import RunLock
from dgt.runs.logger import RunLogger
from dgt.training.checkpoints import finding
from dgt.training.checkpoints.files import Writer, committed
from dgt.training.checkpoints.finding import once_committed
from dgt.training.finished import _summary

pytestmark = pytest.mark.timeout(30)

OURS = {"host": "n7", "pid": 4711, "started": "99 another-boot", "user": "ada", "since": 1.7e9, "run": "theirs"}


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, endless, Path.mkdir, bound], ids=["pipe", "device", "folder", "socket"])
def test_what_is_no_file_is_no_lock(make: Callable[[Path], None], tmp_path: Path, monkeypatch: Any) -> None:
    """A pipe was waited for, /dev/zero read until the memory was full, and a folder held the directory for ever."""
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    make(Path(f"{lock.PREFIX}odd"))
    with held(tmp_path, print):
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == [f"{lock.PREFIX}odd"]


@pytest.mark.parametrize(
    "changes",
    [{"since": 1e30}, {"since": float("nan")}, {"pid": 10**30}, {"pid": -1}, {"host": "a\x1b[2Jb"}, "[" * 3000],
    ids=["never", "not a number", "huge", "everybody", "escape", "deep"],
)
def test_an_odd_lock_is_watched_and_told_as_any_other(changes: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """An absurd time or number was a traceback, and a terminal obeyed the name of the host."""
    record = {**OURS, "started": f"1 {lock._place()}" if "pid" in changes else "9 boot", "held": True}
    text = changes if isinstance(changes, str) else json.dumps(record | changes)
    (tmp_path / f"{lock.PREFIX}theirs").write_text(text)
    mine = RunLock(tmp_path, "mine")
    rival = mine.attempt()
    assert rival is not None
    assert str(rival.owner).isprintable()
    later = time.monotonic() + lock.SILENCE + 1
    monkeypatch.setattr(lock.time, "monotonic", lambda: later)
    assert mine.attempt() is None
    monkeypatch.undo()
    mine.release()


def test_a_lock_that_may_not_be_read_is_watched_too(tmp_path: Path, monkeypatch: Any) -> None:
    """Another user's, made with umask 077: whoever came next waited for ever."""
    (tmp_path / f"{lock.PREFIX}theirs").write_text(json.dumps({**OURS, "held": True}))

    def refused(path: Path, *more: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(lock, "opened", refused)
    monkeypatch.setattr(lock, "read_text", refused)
    mine, clock = RunLock(tmp_path, "mine"), [100.0]
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    rival = mine.attempt()
    assert rival is not None
    assert not rival.lives
    os.utime(tmp_path / f"{lock.PREFIX}theirs", (1, 1))
    rival = mine.attempt()
    assert rival is not None
    assert rival.lives, "it moved"
    other = RunLock(tmp_path, "other")
    assert other.attempt() is not None
    clock[0] += lock.SILENCE + 1
    assert other.attempt() is None
    other.release()


def test_an_owner_that_was_stopped_for_long_ends_though_its_successor_has_ended_too(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """It made its lock anew, as after a directory that was removed, and went on to write into the other's results."""
    mine = RunLock(tmp_path, "mine")
    assert mine.attempt() is None
    mine.path.unlink()
    mine._show_life()
    mine.check()
    assert mine.path.exists(), "removed by somebody while it beat"
    mine.path.unlink()  # by a run on another host, which has ended since
    asleep = time.time() + lock.SILENCE + 1
    monkeypatch.setattr(lock.time, "time", lambda: asleep)
    with pytest.raises(RuntimeError, match="taken over by an unknown process; this run ends, and saves nothing more"):
        mine.check()
    mine.release()
    assert not list(tmp_path.iterdir())


def test_of_many_claims_none_fails_for_another(tmp_path: Path) -> None:
    """All of them tried the same file: who came second found it gone, and said that nothing could be written."""
    wrong: list[Exception] = []

    def ask() -> None:
        try:
            for _ in range(100):
                claim(str(tmp_path / "r"), "train")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not list((tmp_path / "r").iterdir())


def writer(folder: Path, said: list[str]) -> Writer:
    return Writer(folder, 0, 1, "abcd1234", 1.0, {}, patience=5, say=said.append)


def test_one_old_checkpoint_that_cannot_be_read_does_not_keep_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    """Nothing was removed any more, and the disk filled up."""
    said: list[str] = []
    by, real = writer(tmp_path, said), folders.os.stat

    def stat(path: Any, *more: Any, **options: Any) -> Any:
        if "/000000000001-" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **options)

    for step in range(1, 7):
        if step == 2:
            monkeypatch.setattr(folders.os, "stat", stat)
        by.save(step, {"w": torch.ones(3)})
        assert by.wait_for_commit(step)
        by.finish()
    monkeypatch.undo()
    assert [commit.step for commit in committed(tmp_path)[0]] == [1, 5, 6]
    assert said == [
        "old checkpoints cannot be removed: 000000000001-abcd1234 (Permission denied); they stay, and the run goes on"
    ]


def test_a_link_to_a_mount_that_is_late_is_not_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(tmp_path / "not" / "mounted")
    with pytest.raises(FileNotFoundError):
        finding._candidates(tmp_path / "checkpoints", "auto")


@pytest.mark.parametrize("make", [os.mkfifo, endless, Path.touch, Path.mkdir])
def test_a_marker_counts_whatever_it_holds(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Left empty by a full disk it did not: the next start began at 0. A pipe in its place was waited for."""
    make(tmp_path / MARKER)
    assert "this run has had a checkpoint" in once_committed(tmp_path)


def test_lines_are_added_to_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through `events.jsonl -> ~/.bashrc` a resumed run wrote to somebody's file; a pipe was waited for."""
    own = tmp_path / "own"
    own.write_text("mine\n")
    run = tmp_path / "r"
    run.mkdir()
    (run / "events.jsonl").symlink_to(own)
    logger = RunLogger(Config(iterations=40, run_dir=str(run)), 2, speaks=True)
    logger.start(0)
    logger.stopped(3, "asked to")
    assert own.read_text() == "mine\n"
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")
    logger.stopped(3, "asked to")
    assert len([line for line in capsys.readouterr().err.splitlines() if "dgt: events.jsonl: " in line]) == 2
    (run / "metrics.jsonl").write_text('{"iteration": 30}\n')
    os.mkfifo(run / SUPERSEDED)
    with pytest.raises(RuntimeError, match="cannot write there"):
        logger.start(10)
    assert (run / "metrics.jsonl").read_text() == '{"iteration": 30}\n'


def test_measurements_that_are_none_are_passed_over(tmp_path: Path) -> None:
    """Words in place of numbers, and lists within lists, ended a resumed run with a traceback."""
    (tmp_path / "m").write_text('{"iteration": 4, "loss": "much"}\n{"iteration": 5, "loss": ' + "[" * 100_000 + "\n")
    assert [record["iteration"] for record, _ in records_in(tmp_path / "m")] == [4]
    tail = Tail(("loss",), 5)
    tail.read(tmp_path / "m", 9)
    assert tail.means() == {}
    for final in ({"iteration": 5, "loss": "much"}, {"iteration": 5, "loss": None}, [5], "iteration", None):
        (tmp_path / SUMMARY).write_text(json.dumps({"final": final}))
        assert _summary(Config(iterations=5, run_dir=str(tmp_path)), 5) == {}


def test_a_note_that_cannot_be_read_is_named_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    folder = tmp_path / "failures" / "2026\x1b]0;owned\x07"
    folder.mkdir(parents=True)
    (folder / "rank-00000.json").write_text("{")
    assert all(line.isprintable() for line in failures.lines(tmp_path))


def test_a_directory_is_held_while_one_process_writes_to_it(tmp_path: Path) -> None:
    with held(tmp_path, print):
        (mine,) = tmp_path.iterdir()
        other = {"pid": os.getppid(), "started": lock._started(os.getppid())}  # another process of this host
        mine.write_text(json.dumps(json.loads(mine.read_text()) | other))
        words = rf"run_dir={tmp_path}: held by another run, pid {os.getppid()} "
        with pytest.raises(ConfigError, match=words), held(tmp_path, print):
            pass
    assert not list(tmp_path.iterdir())
