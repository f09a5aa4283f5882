"""Checkpoints that are complete or not there: one directory per step, never written over, committed last.

    checkpoints/000000000120-5f3a9c1e/rank-00000.pt, rank-00000.json, ..., model.pt, COMMIT

Every rank copies its state, and a thread of its own writes it: into memory, to a new file, to the disk, and only then
under its name, with a note of its checksum beside it. When rank 0 sees the notes of all ranks it writes COMMIT, which
holds every checksum and what the run was. Nothing without a COMMIT is ever loaded, and nothing is lost with a
rank that dies at any point. The notes go through the file system, which all hosts must share.

Once COMMIT is there nothing that happens later takes it away again: an error after it is told, and that is all. Reading
tells apart what is damaged (`DamagedError`: the bits are there, and wrong) from what cannot be read now (`OSError`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from dgt.config.files import parsed_json, write
from dgt.config.files import read as read_file
from dgt.errors import ConfigError, DamagedError
from dgt.runs import folders
from dgt.runs.folders import COMMIT, Once, has, name_of, step_of, sync
from dgt.runs.layout import MODEL
from dgt.training.checkpoints import untrusted
from dgt.training.checkpoints.state import Tree, copied, mismatch, on_this_device

FORMAT = 1
RANKS_PER_NODE = "ranks_per_node"  # a fact
LOOK_SECONDS = 0.02
SECOND_LOOK = 1.0  # seconds until what looks damaged is read again

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Commit:
    """One complete checkpoint: where it is, its iteration, what the run was, and every rank's checksum."""

    path: Path
    step: int
    world: int
    facts: dict[str, str]
    files: list[dict[str, Any]]
    time: float
    model: dict[str, Any] | None = None
    """Checksum and size of the average model; checkpoints of earlier versions have none."""

    @property
    def nodes(self) -> int:
        """How many nodes are in it: a file per rank, of which a node may have several."""
        ranks = self.facts.get(RANKS_PER_NODE, "1")
        return self.world // int(ranks) if ranks.isdecimal() and 0 < int(ranks[:9]) <= self.world else self.world


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
        marker: Path | None = None,
    ) -> None:
        self.directory, self._rank, self._world, self.attempt = directory, rank, world, attempt
        self._share = share  # pi_i, for the average model
        self._facts, self._keep_last, self._keep_every = dict(facts), keep_last, keep_every
        self._patience, self._say, self._phase = patience, say, phase
        self._marker = marker  # left beside the checkpoints at the first one that is committed
        self._warn, self._warn_model = Once(say), Once(say)
        self._last, self._again = Path(), 0
        self._thread: threading.Thread | None = None
        self._snapshot: Tree | None = None
        self._before: threading.Thread | None = None
        self._gone: frozenset[int] = frozenset()

    def follow(self, other: Writer, gone: frozenset[int]) -> None:
        """Take over from the writer of a network that has lost these of its ranks.

        What all of them had written is still committed; for the files of the lost nobody waits.
        """
        other._gone, self._before = gone, other._thread or other._before

    @property
    def busy(self) -> bool:
        """Whether the last checkpoint is still being written here, or on rank 0 committed."""
        return self._thread is not None and self._thread.is_alive()

    def has_part_of(self, rank: int, step: int) -> bool:
        """Whether that rank's part of this step's checkpoint is complete."""
        return (self.path_of(step) / f"rank-{rank:05d}.json").exists()

    def outcome(self, step: int) -> bool | None:
        """Whether the checkpoint of this step is complete, on any rank; None while nobody can tell."""
        if self.busy:
            return None
        path = self.path_of(step)
        try:
            if has(path / COMMIT):
                return True
            return False if not has(path) or any(path.glob("*.failed")) else None
        except OSError:  # a file system that fails now may answer later
            return None

    def path_of(self, step: int) -> Path:
        """Where the last checkpoint of this step is, or would be."""
        return self._last if step_of(self._last.name) == step else self.directory / name_of(step, self.attempt)

    def save(self, step: int, state: Tree, model: Tree | None = None) -> None:
        """Copy the state and return; the rest happens in the background. Skipped where the last one is still at it.

        `model` is the network average, on rank 0, which writes it beside the ranks' files; nobody changes it any more.
        """
        self._again = self._again + 1 if step_of(self._last.name) == step else 0
        path = self._last = self.directory / name_of(step, self.attempt, self._again)
        if self.busy:
            self._fail(path, "the one before is still being written")
            return
        self._phase("copy")
        self._snapshot = copied(state, self._snapshot, again=True)
        self._thread = threading.Thread(
            target=self._write, args=(step, path, model), name="dgt-checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything is written, on rank 0 also until it is committed or given up."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_commit(self, step: int) -> bool:
        """Wait, on any rank, until the checkpoint of this step is complete; False if it never will be."""
        self.finish()
        deadline = time.monotonic() + self._patience
        while (known := self.outcome(step)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return bool(known)

    def _write(self, step: int, path: Path, model: Tree | None) -> None:
        assert self._snapshot is not None
        name = path / f"rank-{self._rank:05d}.pt"
        if self._before is not None:
            self._before.join()
        try:
            path.mkdir(parents=True, exist_ok=True)
            data = serialised(self._snapshot)
            checksum = hashlib.sha256(data).hexdigest()
            note = {"rank": self._rank, "share": self._share, "sha256": checksum, "bytes": len(data)}
            write_durably(name, data, self._phase)
            write_durably(name.with_suffix(".json"), json.dumps(note).encode())
            self._phase("written")
            done = self._rank == 0 and self._commit(step, path, model)
        except Exception as error:  # the run goes on, whatever happens here
            with contextlib.suppress(OSError):
                name.with_name(name.name + ".part").unlink(missing_ok=True)
            self._fail(path, in_words(error))
            return
        if done:
            self._after_commit(step, path)

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
        with contextlib.suppress(OSError):
            if has(path / COMMIT):  # only its name may not have reached the disk
                self._say(f"checkpoint of iteration {step_of(path.name)} is complete, but: {why}")
                return
        self._say(f"checkpoint of iteration {step_of(path.name)} skipped: {why}")
        with contextlib.suppress(OSError):
            for file in path.iterdir() if not has(path / COMMIT) else ():
                if file.suffix != ".failed":
                    file.unlink(missing_ok=True)

    def _commit(self, step: int, path: Path, model: Tree | None) -> bool:
        notes = self._notes(path)
        if notes is None:
            return False
        self._phase("commit")
        record = {
            "format": FORMAT, "step": step, "world": self._world, "time": time.time(), "facts": self._facts,
            "files": notes, **self._write_model(step, path, model),
        }  # fmt: skip
        text = json.dumps(record, sort_keys=True).encode()
        write_durably(path / COMMIT, text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")
        return True

    def _write_model(self, step: int, path: Path, model: Tree | None) -> dict[str, Any]:
        """What the record says about the average model; nothing where it finds no room: the ranks' files count more."""
        if model is None:
            return {}
        try:
            data = serialised(model)
            write_durably(path / MODEL, data, synced=False)  # its name reaches the disk with that of COMMIT
        except Exception as error:
            with contextlib.suppress(OSError):
                (path / f"{MODEL}.part").unlink(missing_ok=True)
            self._warn_model(f"checkpoint of iteration {step}: {MODEL} cannot be written ({in_words(error)})")
            return {}
        return {"model": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}}

    def _after_commit(self, step: int, path: Path) -> None:
        """What is no part of this checkpoint, and cannot make it fail: the marker, and the removal of old ones."""
        try:
            sync(self.directory)
            if self._marker is not None and not has(self._marker):
                write(self._marker, f"The first checkpoint of this run was committed at iteration {step}.\n")
            self._phase("prune")
            whole = [(commit.step, commit.path) for commit in committed(self.directory, unreadable=True)[0]]
            failed = folders.prune(self.directory, whole, path, step, self._keep_last, self._keep_every)
        except Exception as error:
            failed = [in_words(error)]
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            self._warn(f"old checkpoints cannot be removed: {failed[0]}{more}; they stay, and the run goes on")

    def _notes(self, path: Path) -> list[dict[str, Any]] | None:
        """What every rank wrote, once all have; None if one could not."""
        names = [path / f"rank-{rank:05d}.json" for rank in range(self._world)]
        deadline = time.monotonic() + self._patience
        while missing := [rank for rank, name in enumerate(names) if not name.exists()]:
            if self._gone.intersection(missing):
                return None
            failed = next(path.glob("*.failed"), None)
            if failed is not None:
                time.sleep(LOOK_SECONDS)  # the mark comes first, its words follow
                self._give_up(path, f"rank {int(failed.name[5:10])}: {failed.read_text() or 'no room'}")
                return None
            if not has(names[0]):  # this rank's own: written before
                self._give_up(path, "its directory was removed")
                return None
            if time.monotonic() > deadline:
                where = "run_dir must be on a file system that all hosts share"
                self._give_up(path, f"rank 0 does not see the files of ranks {missing[:8]}; {where}")
                return None
            time.sleep(LOOK_SECONDS)
        return [json.loads(name.read_text(encoding="utf-8")) for name in names]


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


def write_durably(
    path: Path, data: bytes | mmap.mmap, phase: Callable[[str], None] = lambda name: None, synced: bool = True
) -> None:
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
    if synced:
        sync(path.parent)


def in_words(error: Exception) -> str:
    """Why something failed, as short as may be."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def committed(directory: Path, unreadable: bool = False) -> tuple[list[Commit], list[str]]:
    """Complete checkpoints below a run's `checkpoints/`, oldest first, and what is wrong with damaged ones.

    `OSError` where it cannot be seen what is there, unless single ones may be `unreadable`, and are left out; a
    directory that is missing holds none.
    """
    found, wrong = [], []
    for path in _with_commit(directory, unreadable):
        try:
            found.append(twice(partial(read_commit, path)))
        except (DamagedError, ConfigError) as error:
            wrong.append(f"{path.name}: {error}")
        except OSError:
            if not unreadable:
                raise
    return sorted(found, key=lambda commit: (commit.step, commit.time)), wrong


def _with_commit(directory: Path, unreadable: bool) -> list[Path]:
    """Directories that hold a record; those of other names, like `lost+found`, may be closed to us."""
    try:
        paths = [directory / name for name in sorted(os.listdir(directory))]
    except FileNotFoundError:
        if directory.is_symlink():  # what it leads to is not there yet: a mount that is late
            raise
        return []
    found = []
    for path in paths:
        try:
            found += [path] if has(path / COMMIT) else []
        except OSError:
            if step_of(path.name) is not None and not unreadable:
                raise
    return found


def twice(read: Callable[[], Read]) -> Read:
    """What looks damaged is read a second time, a little later, before anybody calls it damaged."""
    try:
        return read()
    except DamagedError:
        time.sleep(SECOND_LOOK)
        return read()


def read_commit(path: Path) -> Commit:
    """The COMMIT record of one checkpoint; raises `DamagedError` unless every bit is as it was written."""
    try:
        text, checksum, rest = _content(path / COMMIT, untrusted.MOST_COMMIT).split(b"\n")
        if rest or hashlib.sha256(text).hexdigest().encode() != checksum:
            raise DamagedError("its COMMIT record is damaged")
        record = parsed_json(text.decode())
        if record["format"] != FORMAT:
            raise ConfigError(f"format {record['format']}, this version of dgt reads {FORMAT}")
        untrusted.check_commit(record)
        files = [
            {"sha256": str(f["sha256"]), "bytes": int(f["bytes"]), "share": float(f["share"])} for f in record["files"]
        ]
        facts = {str(name): str(text) for name, text in record["facts"].items()}
        model = record.get("model")
        model = model and {"sha256": str(model["sha256"]), "bytes": int(model["bytes"])}
        commit = Commit(path, int(record["step"]), int(record["world"]), facts, files, float(record["time"]), model)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError("its COMMIT record is damaged") from None
    if len(files) != commit.world:
        raise DamagedError(f"it has {len(files)} files for {commit.world} ranks")
    return commit


def read_rank(commit: Commit, rank: int) -> bytes:
    """The file of one rank, every bit as it was written; else `DamagedError`."""
    return _as_noted(commit.path / f"rank-{rank:05d}.pt", commit.files[rank])


def read_model(commit: Commit) -> bytes | None:
    """The file of the average model, likewise; None where the checkpoint has none."""
    return None if commit.model is None else _as_noted(commit.path / MODEL, commit.model)


def _as_noted(name: Path, note: Mapping[str, Any]) -> bytes:
    size = name.stat().st_size
    if size != note["bytes"]:
        raise DamagedError(f"{name.name} has {size} bytes in place of {note['bytes']}")
    data = _content(name, min(note["bytes"], untrusted.most_bytes()))
    if hashlib.sha256(data).hexdigest() != note["sha256"]:
        raise DamagedError(f"{name.name} is damaged (its checksum differs)")
    return data


def _content(path: Path, most: int) -> bytes:
    """All of a regular file; anything else in its place is refused at once, as it will not get better."""
    try:
        return read_file(path, most)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG):
            raise ConfigError(f"{path}: {error.strerror}") from None
        raise


def parse(data: bytes, template: Tree, where: str) -> Any:
    """The state in a rank's file, laid out as the template is; `ConfigError` before another shape is made."""
    outline = untrusted.outline(data, f"resume={where}")
    wanted = {key: outline[key] for key in template if key in outline} if isinstance(outline, dict) else outline
    wrong = mismatch(template, on_this_device(template, wanted) if isinstance(wanted, dict) else wanted)
    if wrong:
        raise ConfigError(f"resume={where}: {wrong}")
    return on_this_device(template, torch.load(io.BytesIO(data), weights_only=True, map_location="cpu"))


def no_space() -> OSError:
    """What a full disk says."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
