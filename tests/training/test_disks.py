"""Disks that fail, fill up, come late or lose a directory: nothing that was committed or measured is lost by it."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from dgt.config import Config, files
from dgt.errors import ConfigError
from dgt.processes.node import Node
from dgt.runs import folders, lines, lock
from dgt.runs.folders import DAMAGED, MARKER, UNSOUND, step_of
from dgt.runs.layout import SUPERSEDED
from dgt.runs.lines import ExactSum, Lines
from dgt.runs.lock import RunLock
from dgt.runs.logger import RunLogger
from dgt.runs.measures import SHOWN
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints import finding
from dgt.training.checkpoints.files import COMMIT, Commit, Writer, committed, read_rank
from dgt.training.checkpoints.finding import find, once_committed

ATTEMPT = "abcd1234"


def writer(folder: Path, said: list[str] | None = None, **options: Any) -> Writer:
    say = (said if said is not None else []).append
    return Writer(folder, 0, 1, ATTEMPT, 1.0, {}, patience=5, say=say, **options)


def saved(by: Writer, *steps: int) -> None:
    for step in steps:
        by.save(step, {"w": torch.full((3,), float(step))})
        assert by.wait_for_commit(step)
        by.finish()


def steps_in(folder: Path) -> list[int]:
    found, wrong = committed(folder)
    assert not wrong
    for commit in found:
        read_rank(commit, 0)
    return [commit.step for commit in found]


def test_foreign_files_and_links_do_not_cost_a_checkpoint(tmp_path: Path) -> None:
    """A stray `00000001.txt` made pruning fail, and that removed the checkpoint just committed, at every save."""
    folder, elsewhere, said = tmp_path / "c", tmp_path / "elsewhere", []
    saved(writer(elsewhere), 1)
    saved(writer(folder, said), 2)
    (folder / "00000001.txt").write_text("notes")
    (folder / "00000001").mkdir()
    (folder / "lost+found").mkdir()
    (folder / f"{1:012d}-{ATTEMPT}").symlink_to(next(elsewhere.iterdir()))
    by = writer(folder, said, keep_last=2)
    saved(by, 10, 20, 30)
    assert [step for step in steps_in(folder) if step > 1] == [20, 30]
    assert steps_in(elsewhere) == [1], "a link is not followed to remove what is behind it"
    assert {path.name for path in folder.iterdir() if step_of(path.name) is None} == {
        "00000001.txt", "00000001", "lost+found"
    }  # fmt: skip
    assert said == []


def test_old_checkpoints_that_cannot_be_removed_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    said: list[str] = []
    by = writer(tmp_path, said, keep_last=1)
    saved(by, 10)
    monkeypatch.setattr(folders, "remove", refuse)
    saved(by, 20, 30, 40)
    assert steps_in(tmp_path) == [10, 20, 30, 40]
    first = f"{10:012d}-{ATTEMPT} (Read-only file system)"
    assert said == [f"old checkpoints cannot be removed: {first}; they stay, and the run goes on"]


@pytest.mark.parametrize("when", ["COMMIT", "after"])
def test_what_fails_after_the_commit_does_not_undo_it(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is there under its name; only the disk does not confirm it, or the next thing fails."""
    real, said = checkpoint.sync, []

    def failing(folder: Path) -> None:
        if (folder / COMMIT).exists() if when == "COMMIT" else folder == tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        real(folder)

    monkeypatch.setattr(checkpoint, "sync", failing)
    saved(writer(tmp_path, said), 10)
    assert steps_in(tmp_path) == [10]
    assert len(said) == 1
    assert "Input/output error" in said[0]
    assert "skipped" not in said[0]


def test_a_half_removed_checkpoint_never_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by = writer(tmp_path, keep_last=1)
    saved(by, 10)

    def interrupted(path: Path) -> None:
        assert not (path / COMMIT).exists()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    saved(by, 20)
    assert steps_in(tmp_path) == [20]
    monkeypatch.undo()
    saved(by, 30)
    assert sorted(step_of(path.name) or 0 for path in tmp_path.iterdir()) == [30]


def test_steps_are_numbers_not_text(tmp_path: Path) -> None:
    """From 10^8 on names had nine digits and sorted before those of eight: every new checkpoint was removed."""
    by = writer(tmp_path, keep_last=2, keep_every=10**8)
    saved(by, 99_999_998, 99_999_999)
    for path in list(tmp_path.iterdir()):  # as earlier versions called them
        path.rename(tmp_path / f"{step_of(path.name):08d}-{ATTEMPT}")
    saved(by, 10**8, 10**8 + 1)
    assert steps_in(tmp_path) == [10**8, 10**8 + 1]
    saved(by, 10**9 - 1, 10**9, 10**9 + 1, 10**12 + 1)
    assert steps_in(tmp_path) == [10**8, 10**9, 10**9 + 1, 10**12 + 1]
    assert [step for step, _ in folders.own(tmp_path)] == steps_in(tmp_path)


def test_a_run_that_went_back_keeps_its_new_checkpoints(tmp_path: Path) -> None:
    """Resumed by hand from an older one, it once lost each of its own: two later ones counted as the last few."""
    saved(writer(tmp_path), 40, 50)
    saved(Writer(tmp_path, 0, 1, "ffff0000", 1.0, {}), 20, 30)
    assert steps_in(tmp_path) == [20, 30, 40, 50]


def test_a_committed_step_is_not_written_over(tmp_path: Path) -> None:
    by = writer(tmp_path, keep_last=5)
    saved(by, 10)
    (first,) = tmp_path.iterdir()
    before = {path.name: path.stat().st_ino for path in first.iterdir()}
    saved(by, 10, 10, 20)
    assert {path.name: path.stat().st_ino for path in first.iterdir()} == before
    assert steps_in(tmp_path) == [10, 10, 10, 20]


class Alone:
    """A network of one, without a process group."""

    is_main, size, rank = True, 1, 0

    @property
    def world(self) -> Alone:
        return self

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return values[None]

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def during(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


def resumed(run: Path, said: list[str]) -> Commit | None:
    def use(commit: Commit) -> str:
        read = finding.read_by_all(cast(Node, Alone()), lambda: read_rank(commit, 0), "there", said.append)
        return read[1]

    source = run / finding.FOLDER
    return find(cast(Node, Alone()), source, "auto", said.append, use, lambda: once_committed(run))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PATIENCE", 0.2)
    monkeypatch.setattr(finding, "PAUSE", 0.05)
    monkeypatch.setattr(checkpoint, "SECOND_LOOK", 0.0)


def run_with(tmp_path: Path, *steps: int) -> Path:
    saved(writer(tmp_path / finding.FOLDER, marker=tmp_path / MARKER), *steps)
    return tmp_path


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def failing_reads(monkeypatch: pytest.MonkeyPatch, code: int, name: str, times: int) -> None:
    real, left = files.read, [times]

    def read(path: Path, most: int) -> bytes:
        if path.name == name and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code), str(path))
        return real(path, most)

    monkeypatch.setattr(checkpoint, "read_file", read)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("name", [COMMIT, "rank-00000.pt"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT, errno.EACCES, errno.ETIMEDOUT])
def test_what_cannot_be_read_is_tried_again_and_never_called_damaged(
    code: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed read once had COMMIT renamed, and the start after that begin at 0."""
    run, said = run_with(tmp_path, 10, 20), []
    before = contents(run)
    failing_reads(monkeypatch, code, name, times=2)
    found = resumed(run, said)
    assert found is not None
    assert found.step == 20
    failing_reads(monkeypatch, code, name, times=10**9)
    with pytest.raises(ConfigError, match=f"{os.strerror(code)}.*nothing was changed"):
        resumed(run, said)
    monkeypatch.undo()
    assert contents(run) == before
    assert len(said) == 2, "one line for each wait"


@pytest.mark.usefixtures("_quick")
def test_damage_is_marked_when_it_was_read_twice_and_never_leads_to_a_new_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = run_with(tmp_path, 10, 20), []
    real, read = files.read, []

    def once_wrong(path: Path, most: int) -> bytes:
        data = real(path, most)
        if path.suffix == ".pt":
            read.append(path)
        return data[:-1] + b"!" if len(read) == 1 and path.suffix == ".pt" else data

    before = contents(run)
    monkeypatch.setattr(checkpoint, "read_file", once_wrong)
    found = resumed(run, said)
    assert found is not None
    assert (found.step, said, contents(run)) == (20, [], before), "the second look was right"
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "SECOND_LOOK", 0.0)
    for commit in committed(run / finding.FOLDER)[0]:
        (commit.path / "rank-00000.pt").write_bytes(b"x" * commit.files[0]["bytes"])
    with pytest.raises(ConfigError, match="no checkpoint there is whole"):
        resumed(run, said)
    assert len(list(run.glob(f"*/*/{DAMAGED}"))) == 2
    for _ in range(2):
        with pytest.raises(ConfigError, match="no checkpoint that can be used, 2 marked as damaged; to begin at"):
            resumed(run, said)
    assert set(contents(run)) == {name.replace(COMMIT, DAMAGED) for name in before}


def emptied(run: Path) -> None:
    shutil.rmtree(run / finding.FOLDER)
    (run / finding.FOLDER).mkdir()


def gone(run: Path) -> None:
    shutil.rmtree(run / finding.FOLDER)


def before_the_marker(run: Path) -> None:
    emptied(run)
    (run / MARKER).unlink()
    (run / "summary.json").write_text("{}")


def unsound(run: Path) -> None:
    for path in run.glob(f"*/*/{COMMIT}"):
        path.rename(path.with_name(UNSOUND))


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (emptied, "first checkpoint of this run was committed at iteration 10, and .* holds none now"),
        (gone, "first checkpoint of this run was committed at iteration 10, and .* holds none now"),
        (before_the_marker, "has finished, and kept checkpoints, and .* holds none now"),
        (unsound, "no checkpoint that can be used, 2 marked as unsound"),
    ],
)
def test_a_run_that_had_checkpoints_does_not_begin_at_zero(
    happens: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    run = run_with(tmp_path, 10, 20)
    happens(run)
    with pytest.raises(ConfigError, match=words):
        resumed(run, [])


@pytest.mark.usefixtures("_quick")
def test_a_run_that_had_none_begins_at_zero(tmp_path: Path) -> None:
    assert resumed(tmp_path, []) is None
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 30}\n')
    (tmp_path / finding.FOLDER / f"{20:012d}-{ATTEMPT}").mkdir(parents=True)
    assert resumed(tmp_path, []) is None, "killed before its first checkpoint was committed"


@pytest.mark.usefixtures("_quick")
def test_the_checkpoint_of_a_later_version_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    run = run_with(tmp_path, 10)
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    before, said = contents(run), []
    with pytest.raises(ConfigError, match="no checkpoint there is whole"):
        resumed(run, said)
    assert "format 2, this version of dgt reads 1" in said[0]
    assert contents(run) == before


def measured(logger: RunLogger, iteration: int, loss: float = 1.0) -> None:
    logger.record(iteration, {"loss": np.array([loss]), "evaluation_share": np.zeros(1), "bytes_sent": np.zeros(1)})


def iterations_in(file: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in file.read_text().splitlines()]


def test_a_removed_run_directory_is_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "r"
    logger = RunLogger(Config(iterations=40, run_dir=str(run)), 2, speaks=True)
    logger.start(0)
    logger.environment({"ranks": 2})
    for iteration in range(0, 20, 5):
        measured(logger, iteration)
    before = contents(run)
    shutil.rmtree(run)
    for iteration in range(20, 41, 5):
        measured(logger, iteration)
    logger.finish("nothing")
    assert iterations_in(run / "metrics.jsonl") == list(range(0, 41, 5))
    assert {name: data for name, data in contents(run).items() if name in before} == before | {
        "metrics.jsonl": (run / "metrics.jsonl").read_bytes()
    }
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dgt: ")]
    assert said == [f"dgt: run_dir={run}: removed while the run goes on; its files are written again"]


def test_lines_that_wait_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_WAITING", 1000)
    said: list[str] = []
    (tmp_path / "r").write_text("not a directory, so that nothing can be made in it")
    waiting = Lines(tmp_path / "r" / "metrics.jsonl", said.append)
    for iteration in range(1000):
        waiting.write({"iteration": iteration})
    (tmp_path / "r").unlink()
    waiting.close()
    written = iterations_in(tmp_path / "r" / "metrics.jsonl")
    assert len((tmp_path / "r" / "metrics.jsonl").read_bytes()) <= 1000 + 50
    assert written[-1] == 999
    assert len(said) == 2, said


def test_measurements_that_are_made_again_are_not_lost(tmp_path: Path) -> None:
    config = Config(iterations=40, run_dir=str(tmp_path))
    logger = RunLogger(config, 2, speaks=True)
    logger.start(0)
    for iteration in range(0, 30, 5):
        measured(logger, iteration)
    logger.close()
    again = RunLogger(config, 2, speaks=True)
    again.start(10)
    again.close()
    assert iterations_in(tmp_path / "metrics.jsonl") == [0, 5, 10]
    assert iterations_in(tmp_path / SUPERSEDED) == [15, 20, 25]


def test_the_memory_of_a_long_run_does_not_grow(tmp_path: Path) -> None:
    """Rank 0 kept every evaluation until the end."""
    logger = RunLogger(Config(iterations=10**6, run_dir=str(tmp_path)), 2, speaks=True)
    logger.start(0)
    draw, held = random.Random(1), []
    tracemalloc.start()
    try:
        for iteration in range(12_000):
            measured(logger, iteration if iteration < 6000 else 900_000 + iteration, draw.random())
            if iteration in (2000, 11_999):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    logger.close()
    assert held[1] - held[0] < 20_000, held


@pytest.mark.parametrize("stop", [None, 57, 83])
def test_the_summary_is_that_of_all_records_to_the_last_bit(stop: int | None, tmp_path: Path) -> None:
    draw = random.Random(3)
    values = {k: draw.choice([1e-17, 1.0, 1e17, -1.0]) * draw.random() for k in range(0, 101)}
    config = Config(iterations=100, run_dir=str(tmp_path))
    logger = RunLogger(config, 2, speaks=True)
    logger.start(0)
    for iteration, value in values.items():
        measured(logger, iteration, value)
        if iteration == stop:
            logger.close()
            logger = RunLogger(config, 2, speaks=True)
            logger.start(stop - 3)
            for k in range(stop - 2, stop + 1):
                measured(logger, k, values[k])
    summary = logger.finish("nothing")
    late = [values[k] for k in range(80, 101)]
    assert summary["last_fifth"] == {"loss": math.fsum(late) / len(late)}
    assert summary["final"] == {"iteration": 100, "loss": values[100], "evaluation_share": 0.0, "bytes_sent": 0}
    assert "loss" in SHOWN


def test_a_running_sum_is_exact() -> None:
    draw = random.Random(5)
    for _ in range(200):
        values = [draw.uniform(-1, 1) * 10.0 ** draw.randrange(-200, 200) for _ in range(draw.randrange(1, 60))]
        total = ExactSum()
        for value in values:
            total.add(value)
        assert total.value() == math.fsum(values)


def elsewhere(folder: Path, **changes: Any) -> Path:
    """The lock of a run on another host."""
    record = {"host": "n7", "pid": 4711, "started": "99 another-boot", "user": "ada", "since": 1.7e9, "run": "theirs"}
    path = folder / f"{lock.PREFIX}theirs"
    path.write_text(json.dumps({**record, "held": True, **changes}))
    return path


def test_an_owner_on_another_host_is_dead_when_it_does_not_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clocks are compared: its file may be from the past or the future."""
    clock = [100.0]
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    theirs = elsewhere(tmp_path)
    os.utime(theirs, (5e9, 5e9))
    mine = RunLock(tmp_path, "mine")
    rival = mine.attempt()
    assert rival is not None
    assert not rival.lives
    assert str(rival.owner).startswith("pid 4711 on n7 (user ada), since 20")
    clock[0] += lock.SILENCE - 1
    assert mine.attempt() is not None
    os.utime(theirs, (1e9, 1e9))
    rival = mine.attempt()
    assert rival is not None
    assert rival.lives, "it moved"
    other = RunLock(tmp_path, "another")
    assert other.attempt() is not None
    clock[0] += lock.SILENCE + 1
    assert other.attempt() is None, "silent for so long since that one looked first"
    assert not theirs.exists()
    other.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("started", ["7", "ended"])
def test_an_owner_whose_process_is_gone_is_dead_at_once(started: str, tmp_path: Path) -> None:
    """Also where another process has got its number."""
    theirs = elsewhere(tmp_path, pid=1 if started == "7" else 2**22 - 1, started=f"{started} {lock._place()}")
    mine = RunLock(tmp_path, "mine")
    assert mine.attempt() is None
    assert not theirs.exists()
    mine.release()


def test_a_lock_comes_back_with_its_directory_and_notices_who_took_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = RunLock(tmp_path / "r", "mine")
    (tmp_path / "r").mkdir()
    assert mine.attempt() is None
    shutil.rmtree(tmp_path / "r")
    mine._come_back()
    assert mine.path.exists()
    mine.check()
    mine.path.unlink()
    elsewhere(tmp_path / "r")
    mine._come_back()
    assert not mine.path.exists()
    with pytest.raises(RuntimeError, match="taken over by pid 4711 on n7"):
        mine.check()
    mine.release()
