"""A checkpoint is whole or not there: damage of any kind is never loaded, and nothing in a file is ever run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.errors import ConfigError, DamagedError
from dgt.runs import folders
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints.files import COMMIT, Writer, committed, parse, read_commit, read_rank
from dgt.training.checkpoints.state import copied, mismatch

FACTS = {"world": "3 nodes", "graph": "ring"}


def state(value: float = 1.0) -> dict[str, Any]:
    return {"model": {"w": torch.full((40, 3), value)}, "losses": [1.0, 2.0], "count": 3}


def written(folder: Path, *steps: int, **options: Any) -> Path:
    """Checkpoints of three ranks, as three processes would write them."""
    writers = [Writer(folder, rank, 3, "abcd1234", 1 / 3, FACTS, patience=5, **options) for rank in range(3)]
    for step in steps:
        for writer in writers:
            writer.save(step, state(float(step)))
        for writer in writers:
            assert writer.wait_for_commit(step)
    return folder


def test_the_last_few_and_every_so_manyth_are_kept(tmp_path: Path) -> None:
    written(tmp_path, 10, 20, 30, 40, 50, keep_last=2, keep_every=20)
    found, wrong = committed(tmp_path)
    assert [commit.step for commit in found] == [20, 40, 50]
    assert not wrong
    assert sorted(path.name[:12] for path in tmp_path.iterdir()) == ["000000000020", "000000000040", "000000000050"]
    assert found[-1].facts == FACTS
    loaded = parse(read_rank(found[-1], 2), state(), "there")
    assert torch.equal(loaded["model"]["w"], torch.full((40, 3), 50.0))


def load_all(path: Path) -> list[Any]:
    commit = read_commit(path)
    return [parse(read_rank(commit, rank), state(), str(path)) for rank in range(commit.world)]


def test_no_flipped_bit_and_no_missing_end_is_loaded(tmp_path: Path) -> None:
    whole = next(written(tmp_path / "whole", 10).iterdir())
    assert len(load_all(whole)) == 3
    draw = random.Random(1)
    names = [COMMIT, *(f"rank-{rank:05d}.pt" for rank in range(3))]
    refused = 0
    for trial in range(340):
        damaged = tmp_path / "damaged"
        shutil.copytree(whole, damaged)
        file = damaged / draw.choice(names)
        data = bytearray(file.read_bytes())
        if trial < 300:
            bit = draw.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        else:
            del data[draw.randrange(len(data)) :]
        file.write_bytes(data)
        with pytest.raises(DamagedError):
            load_all(damaged)
        refused += 1
        shutil.rmtree(damaged)
    assert refused == 340


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    written(tmp_path, 10)
    Writer(tmp_path, 1, 3, "abcd1234", 1 / 3, FACTS).save(20, state())
    (tmp_path / "00000030-abcd1234").mkdir()
    assert [commit.step for commit in committed(tmp_path)[0]] == [10]


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def recommit(path: Path, rank: int, data: bytes) -> None:
    """What somebody with write access can do: another file, and a COMMIT that vouches for it."""
    import hashlib

    (path / f"rank-{rank:05d}.pt").write_bytes(data)
    record = json.loads((path / COMMIT).read_bytes().split(b"\n")[0])
    record["files"][rank] |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    text = json.dumps(record, sort_keys=True).encode()
    (path / COMMIT).write_bytes(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_nothing_in_a_checkpoint_is_run(how: str, tmp_path: Path) -> None:
    path = next(written(tmp_path / "c", 10).iterdir())
    proof, memory = tmp_path / "proof", io.BytesIO()
    if how == "torch":
        torch.save({**state(), "model": Hostile(proof)}, memory)
    else:
        pickle.dump(Hostile(proof), memory)
    recommit(path, 1, memory.getvalue())
    with pytest.raises(ConfigError, match="refused, not a checkpoint of tensors and numbers"):
        load_all(path)
    assert not proof.exists()


def test_shapes_are_compared_before_anything_is_made(tmp_path: Path) -> None:
    path = next(written(tmp_path / "c", 10).iterdir())
    memory = io.BytesIO()
    torch.save({**state(), "model": {"w": torch.ones(1).expand(10**11)}}, memory)
    assert len(memory.getvalue()) < 4000
    recommit(path, 1, memory.getvalue())
    with pytest.raises(ConfigError, match=r"model\.w is 100000000000 of float32, here 40x3 of float32"):
        load_all(path)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, 10)
    said: list[str] = []

    def full(phase: str) -> None:
        if phase == "write":
            raise checkpoint.no_space()

    writers = [
        Writer(
            tmp_path, rank, 3, "abcd1234", 1 / 3, FACTS, say=said.append, phase=full if rank == 1 else lambda _: None
        )
        for rank in range(3)
    ]
    for writer in writers:
        writer.save(20, state())
    assert [writer.wait_for_commit(20) for writer in writers] == [False] * 3
    assert said == ["checkpoint of iteration 20 skipped: rank 1: No space left on device"]
    assert [commit.step for commit in committed(tmp_path)[0]] == [10]


def test_saving_returns_while_the_disk_is_slow(tmp_path: Path) -> None:
    """And the state may change at once: what is written is the copy."""
    changed = threading.Event()
    waited = []

    def slow(phase: str) -> None:
        if phase == "write":
            waited.append(changed.wait(20))

    writer, tree = Writer(tmp_path, 0, 1, "abcd1234", 1.0, {}, phase=slow), state(7.0)
    writer.save(10, tree)
    tree["model"]["w"].zero_()
    changed.set()
    assert writer.wait_for_commit(10)
    assert waited == [True]
    found = parse(read_rank(committed(tmp_path)[0][0], 0), state(), "there")
    assert torch.equal(found["model"]["w"], state(7.0)["model"]["w"])


def test_the_copy_uses_its_memory_again() -> None:
    first = copied(state(1.0))
    second = copied(state(2.0), first)
    assert second["model"]["w"].data_ptr() == first["model"]["w"].data_ptr()
    assert second["model"]["w"][0, 0] == 2


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({**state(), "extra": 1}, "the state has other entries: extra"),
        ({**state(), "model": {"w": torch.ones(3)}}, "model.w is 3 of float32, here 40x3 of float32"),
        ({**state(), "model": {"w": torch.ones(40, 3, dtype=torch.int32)}}, "model.w is 40x3 of int32"),
        ({**state(), "model": [1]}, "model should be a group, found list"),
        ({**state(), "count": torch.ones(1)}, "count should be a plain value, found Tensor"),
        ({**state(), "losses": 3}, "losses should be a list, found int"),
    ],
)
def test_another_layout_is_described(found: Any, words: str) -> None:
    assert mismatch(state(), found).startswith(words)
    assert mismatch(state(), state()) == ""


def test_no_part_file_counts(tmp_path: Path) -> None:
    checkpoint.write_durably(tmp_path / "a", b"whole")
    assert os.listdir(tmp_path) == ["a"]


def test_a_second_save_of_a_step_is_not_removed_when_the_first_is_committed(tmp_path: Path) -> None:
    """Other ranks may have written their part of it while rank 0 still removed old ones: it waited for them in vain."""
    written(tmp_path, 4)
    begun = tmp_path / folders.name_of(8, "abcd1234", 1)

    def other_rank_is_ahead(phase: str) -> None:
        if phase == "prune":
            begun.mkdir()
            (begun / "rank-00001.json").write_text("{}")

    written(tmp_path, 8, phase=other_rank_is_ahead)
    assert (begun / "rank-00001.json").exists()
    written(tmp_path, 12)
    assert not begun.exists(), "nobody writes to it any more"
