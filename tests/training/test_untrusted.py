"""Checkpoints of strangers: whatever their files claim, nothing is waited for, and no more is made than there is."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.errors import ConfigError, DamagedError
from dgt.training.checkpoints import untrusted
from dgt.training.checkpoints.files import COMMIT, read_commit, read_rank
from tests.training.test_checkpoint import load_all, recommit, state, written

pytestmark = pytest.mark.timeout(60)


def saved(value: object) -> bytes:
    memory = io.BytesIO()
    torch.save(value, memory)
    return memory.getvalue()


def rewritten(data: bytes, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The same archive with other members."""
    memory = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(memory, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return memory.getvalue()


def of_pickle(change: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
    return lambda name, content: change(content) if name.endswith("/data.pkl") else content


def more_numbers(pickled: bytes) -> bytes:
    """120 numbers are stored; the outline asks for 30,000, which fit its two bytes."""
    assert pickled.count(b"Kx") >= 1, "120 as one byte"
    return pickled.replace(b"Kx", b"M" + (30_000).to_bytes(2, "little"))


DEEP = b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"K\x01s."
ROOM = b"\x80\x02c__builtin__\nbytearray\n\x8a\x06" + (10**13).to_bytes(6, "little") + b"\x85R."

HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "compressed": (
        lambda: rewritten(saved({"model": {"w": torch.zeros(25_000_000)}}), lambda _, c: c, zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "longer than stored": (
        lambda: rewritten(saved(state()), of_pickle(more_numbers)),
        "a tensor of 120000 bytes, of which 480 are stored",
    ),
    "deep keys": (lambda: rewritten(saved(state()), of_pickle(lambda _: DEEP)), "levels of values within values"),
    "room": (lambda: rewritten(saved(state()), of_pickle(lambda _: ROOM)), "bytearray is not allowed"),
    "no archive": (lambda: b"\x80\x02}.", "not an archive"),
    "half of it": (lambda: saved(state())[:600], "not an archive"),
    "nonsense": (lambda: rewritten(saved(state()), of_pickle(lambda _: b"\x80\x02ttt.")), "no outline"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_claim_more_than_they_hold_are_refused_in_a_line(kind: str, tmp_path: Path) -> None:
    """A key of tuples in tuples ended the process with a segmentation fault; a few bytes asked for 10 TB."""
    make, words = HOSTILE[kind]
    path = next(written(tmp_path / "c", 10).iterdir())
    recommit(path, 1, make())
    with pytest.raises(ConfigError, match="refused, not a checkpoint of tensors and numbers") as refused:
        load_all(path)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        state(),
        {"optimizer": {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(3, dtype=torch.bfloat16)}}}},
        {"schedule": {"milestones": Counter([3, 3, 5]), "last": [0.1], "flag": True, "none": None, "name": "x" * 300}},
        {"model": OrderedDict(w=torch.ones(3, 4).t(), v=torch.arange(5)[2:], b=torch.ones(2, dtype=torch.bool))},
        {"set": {1, 2}, "size": torch.Size([3]), "kind": torch.float64, "big": 2**80, "bytes": b"abc", "long": 300.5},
        torch.nn.Linear(3, 2).state_dict(),
        {"parameter": torch.nn.Parameter(torch.ones(2))},
    ],
    ids=["plain", "optimizer", "schedule", "views", "kinds", "module", "parameter"],
)
def test_what_torch_saves_passes(value: Any) -> None:
    untrusted.check_archive(saved(value))


def commit_with(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = json.loads((path / COMMIT).read_bytes().split(b"\n")[0])
    change(record)
    text = json.dumps(record, sort_keys=True).encode()
    (path / COMMIT).write_bytes(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(step=10**30),
        lambda record: record.update(step=-1),
        lambda record: record.update(world=10**17),
        lambda record: record.update(time=float("nan")),
        lambda record: record.update(files="abc"),
        lambda record: record["files"][1].update(bytes=-5),
        lambda record: record["files"][1].update(share=float("inf")),
        lambda record: record.update(facts=[[]]),
    ],
)
def test_a_commit_whose_numbers_cannot_be_is_damaged(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    path = next(written(tmp_path / "c", 10).iterdir())
    commit_with(path, change)
    with pytest.raises(DamagedError):
        read_commit(path)


def test_pipes_and_endless_files_in_a_checkpoint_are_not_read(tmp_path: Path) -> None:
    path = next(written(tmp_path / "c", 10).iterdir())
    name = path / "rank-00001.pt"
    name.unlink()
    os.mkfifo(name)
    commit_with(path, lambda record: record["files"][1].update(bytes=0))
    with pytest.raises((DamagedError, ConfigError)):
        read_rank(read_commit(path), 1)
    name.unlink()
    with name.open("wb") as file:
        file.truncate(2**42)  # takes no room on the disk
    commit_with(path, lambda record: record["files"][1].update(bytes=2**42))
    with pytest.raises((DamagedError, ConfigError)):
        read_rank(read_commit(path), 1)
    (path / COMMIT).unlink()
    for make in (os.mkfifo, lambda place: place.symlink_to("/dev/zero")):
        make(path / COMMIT)
        with pytest.raises((DamagedError, ConfigError)):
            read_commit(path)
        (path / COMMIT).unlink()
