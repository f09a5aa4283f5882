"""Checkpoints that are complete or not there: one directory per step, never written over, committed last.

    checkpoints/00000120-5f3a9c1e/rank-00000.pt, rank-00000.json, ..., COMMIT

Every rank copies its state, and a thread of its own writes it: into memory, to a new file, to the disk, and only then
under its name, with a note of its checksum beside it. When rank 0 sees the notes of all ranks it writes COMMIT, which
holds every checksum and what the run was. Nothing without a COMMIT is ever loaded, and nothing is lost with a
rank that dies at any point. The notes go through the file system, which all hosts must share.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dgt.checks import ConfigError
from dgt.training.state import Tree, copied, mismatch

COMMIT = "COMMIT"
FORMAT = 1
LOOK_SECONDS = 0.02


class DamagedError(Exception):
    """A checkpoint that cannot be used; says why."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One complete checkpoint: where it is, its iteration, what the run was, and every rank's checksum."""

    path: Path
    step: int
    world: int
    facts: dict[str, str]
    files: list[dict[str, Any]]
    time: float


class Writer:
    """Writes this rank's checkpoints in the background, one at a time; rank 0 commits them and removes old ones."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        world: int,
        attempt: str,
        share: float,
        facts: Mapping[str, str],
        keep_last: int = 2,
        keep_every: int = 0,
        patience: float = 600.0,
        say: Callable[[str], None] = print,
        phase: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.directory, self._rank, self._world, self._attempt = directory, rank, world, attempt
        self._share = share  # pi_i, for the average model
        self._facts, self._keep_last, self._keep_every = dict(facts), keep_last, keep_every
        self._patience, self._say, self._phase = patience, say, phase
        self._thread: threading.Thread | None = None
        self._snapshot: Tree | None = None

    def save(self, step: int, state: Tree) -> None:
        """Copy the state and return; the rest happens in the background. Skipped where the last one is still at it."""
        path = self.directory / f"{step:08d}-{self._attempt}"
        if self._thread is not None and self._thread.is_alive():
            self._fail(path, "the one before is still being written")
            return
        self._phase("copy")
        self._snapshot = copied(state, self._snapshot)
        self._thread = threading.Thread(target=self._write, args=(step, path), name="dgt-checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything is written, on rank 0 also until it is committed or given up."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_commit(self, step: int, look: Callable[[], None] = lambda: None) -> bool:
        """Wait, on any rank, until the checkpoint of this step is complete; False if it never will be.

        `look` may raise while it takes long: somebody who should be writing is lost.
        """
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)
            look()
        path = self.directory / f"{step:08d}-{self._attempt}"
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            if (path / COMMIT).exists():
                return True
            if not path.exists() or any(path.glob("*.failed")):
                return False
            look()
            time.sleep(LOOK_SECONDS)
        return False

    def _write(self, step: int, path: Path) -> None:
        assert self._snapshot is not None
        name = path / f"rank-{self._rank:05d}.pt"
        try:
            path.mkdir(parents=True, exist_ok=True)
            data = serialised(self._snapshot)
            checksum = hashlib.sha256(data).hexdigest()
            note = {"rank": self._rank, "share": self._share, "sha256": checksum, "bytes": len(data)}
            write_durably(name, data, self._phase)
            write_durably(name.with_suffix(".json"), json.dumps(note).encode())
            if self._rank == 0:
                self._commit(step, path)
        except Exception as error:  # the run goes on, whatever happens here
            with contextlib.suppress(OSError):
                name.with_name(name.name + ".part").unlink(missing_ok=True)
            self._fail(path, getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")

    def _fail(self, path: Path, why: str) -> None:
        """This checkpoint will not be complete; the run goes on, and the one before stays. Rank 0 says so."""
        mark = path / f"rank-{self._rank:05d}.failed"
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            mark.touch()  # an empty file fits on a full disk
            mark.write_text(why, encoding="utf-8")
        if self._rank == 0:
            self._give_up(path, f"rank 0: {why}")

    def _give_up(self, path: Path, why: str) -> None:
        """Make room again; the marks stay, for ranks that are still at it."""
        self._say(f"checkpoint of iteration {int(path.name[:8])} skipped: {why}")
        with contextlib.suppress(OSError):
            for file in path.iterdir():
                if file.suffix != ".failed":
                    file.unlink(missing_ok=True)

    def _commit(self, step: int, path: Path) -> None:
        notes = self._notes(path)
        if notes is None:
            return
        self._phase("commit")
        record = {
            "format": FORMAT, "step": step, "world": self._world, "time": time.time(), "facts": self._facts,
            "files": notes,
        }  # fmt: skip
        text = json.dumps(record, sort_keys=True).encode()
        write_durably(path / COMMIT, text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")
        _sync(self.directory)
        self._prune(step)

    def _notes(self, path: Path) -> list[dict[str, Any]] | None:
        """What every rank wrote, once all have; None if one could not."""
        names = [path / f"rank-{rank:05d}.json" for rank in range(self._world)]
        deadline = time.monotonic() + self._patience
        while missing := [rank for rank, name in enumerate(names) if not name.exists()]:
            failed = next(path.glob("*.failed"), None)
            if failed is not None:
                time.sleep(LOOK_SECONDS)  # the mark comes first, its words follow
                self._give_up(path, f"rank {int(failed.name[5:10])}: {failed.read_text() or 'no room'}")
                return None
            if time.monotonic() > deadline:
                where = "run_dir must be on a file system that all hosts share"
                self._give_up(path, f"rank 0 does not see the files of ranks {missing[:8]}; {where}")
                return None
            time.sleep(LOOK_SECONDS)
        return [json.loads(name.read_text(encoding="utf-8")) for name in names]

    def _prune(self, step: int) -> None:
        """Keep the last few and every so manyth; what never was committed goes as well."""
        self._phase("prune")
        complete = {commit.path for commit in committed(self.directory)[0]}
        kept = {path for path in complete if self._keep_every and int(path.name[:8]) % self._keep_every == 0}
        kept |= set(sorted(complete)[-self._keep_last :]) if self._keep_last else set()
        for path in self.directory.iterdir():
            if path in kept or not path.name[:8].isdecimal() or int(path.name[:8]) > step:
                continue
            (path / COMMIT).unlink(missing_ok=True)  # first: half a checkpoint must not look like one
            shutil.rmtree(path, ignore_errors=True)


def serialised(state: Tree) -> bytes | mmap.mmap:
    """The state as a file in memory. Into Python's own buffers torch would copy with the interpreter locked."""
    if not hasattr(os, "memfd_create"):
        memory = io.BytesIO()
        torch.save(state, memory)
        return memory.getvalue()
    file = os.memfd_create("dgt-checkpoint")
    try:
        torch.save(state, f"/proc/self/fd/{file}")
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)


def write_durably(path: Path, data: bytes | mmap.mmap, phase: Callable[[str], None] = lambda name: None) -> None:
    """To a new file, to the disk, then under its name: readers see all of it or nothing."""
    draft = path.with_name(path.name + ".part")
    with draft.open("wb", buffering=0) as file, memoryview(data) as content:
        first = file.write(content[: len(content) // 2])
        phase("write")
        while first < len(content):
            first += file.write(content[first:])
        os.fsync(file.fileno())
    phase("rename")
    draft.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Names reach the disk apart from what they name."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def committed(directory: Path) -> tuple[list[Commit], list[str]]:
    """Complete checkpoints below a run's `checkpoints/`, oldest first, and what is wrong with damaged ones."""
    found, wrong = [], []
    for path in sorted(directory.glob(f"*/{COMMIT}")):
        try:
            found.append(read_commit(path.parent))
        except DamagedError as error:
            wrong.append(f"{path.parent.name}: {error}")
    return sorted(found, key=lambda commit: (commit.step, commit.time)), wrong


def read_commit(path: Path) -> Commit:
    """The COMMIT record of one checkpoint; raises `DamagedError` unless every bit is as it was written."""
    try:
        text, checksum, rest = (path / COMMIT).read_bytes().split(b"\n")
        if rest or hashlib.sha256(text).hexdigest().encode() != checksum:
            raise DamagedError("its COMMIT record is damaged")
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise DamagedError(f"format {record['format']}, this version reads {FORMAT}")
        files = [
            {"sha256": str(f["sha256"]), "bytes": int(f["bytes"]), "share": float(f["share"])} for f in record["files"]
        ]
        facts = {str(name): str(text) for name, text in record["facts"].items()}
        commit = Commit(path, int(record["step"]), int(record["world"]), facts, files, float(record["time"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError("its COMMIT record is damaged or cannot be read") from None
    if len(files) != commit.world:
        raise DamagedError(f"it has {len(files)} files for {commit.world} ranks")
    return commit


def read_rank(commit: Commit, rank: int) -> bytes:
    """The file of one rank, every bit as it was written; else `DamagedError`."""
    note, name = commit.files[rank], commit.path / f"rank-{rank:05d}.pt"
    try:
        if name.stat().st_size != note["bytes"]:
            raise DamagedError(f"{name.name} has {name.stat().st_size} bytes in place of {note['bytes']}")
        data = name.read_bytes()
    except OSError as error:
        raise DamagedError(f"{name.name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != note["sha256"]:
        raise DamagedError(f"{name.name} is damaged (its checksum differs)")
    return data


def parse(data: bytes, template: Tree, where: str) -> Any:
    """The state in a rank's file, laid out as the template is; `ConfigError` before anything of another shape is made.

    Only tensors and plain values are read: torch's restricted loader refuses anything that could run.
    """
    try:
        outline = torch.load(io.BytesIO(data), weights_only=True, map_location="meta")
    except Exception as error:  # whatever a hostile file makes the parser do
        reason = str(error).splitlines()[0][:120]
        raise ConfigError(f"resume={where}: refused, not a checkpoint of tensors and numbers ({reason})") from None
    wanted = {key: outline[key] for key in template if key in outline} if isinstance(outline, dict) else outline
    wrong = mismatch(template, wanted)
    if wrong:
        raise ConfigError(f"resume={where}: {wrong}")
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def no_space() -> OSError:
    """What a full disk says."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
