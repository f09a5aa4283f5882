"""Boards in shared memory: published, waited for, and gone with their owner."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from dgt.exchange import shared

pytestmark = pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux on x86-64")

LIKE = torch.zeros(1000)


def pair() -> tuple[shared.OwnBoard, shared.OwnBoard]:
    """Two neighbours in one process."""
    boards = [shared.create(LIKE), shared.create(LIKE)]
    for own, theirs in zip(boards, reversed(boards), strict=True):
        know(own, theirs)
    for own in boards:
        own.unlink()
        assert not own.path.exists()
    return boards[0], boards[1]


def know(own: shared.OwnBoard, theirs: shared.OwnBoard) -> None:
    board = shared.look(theirs.path, theirs.token, LIKE)
    assert board is not None
    board.expect(0, 1)
    own.neighbours = {1: board}


def test_a_neighbour_sees_what_was_published() -> None:
    first, second = pair()
    for step in range(4):
        second.buffers[step % 2].fill_(step + 1.0)
        second.publish(step)
        assert first.wait(step, timeout=1) is None
        assert first.neighbours[1].buffers[step % 2].sum() == 1000 * (step + 1)
    assert first.wait(4, timeout=0.1) == (1, "timed out")


def test_the_last_of_several_neighbours_wakes() -> None:
    """Whoever comes last rings, in whatever order the others came; nobody rings before."""
    number = 5
    own = shared.create(LIKE)
    assert own is not None
    others = []
    for place in range(number):
        other = shared.create(LIKE)
        board = shared.look(own.path, own.token, LIKE)
        assert other is not None
        assert board is not None
        board.expect(place, number)
        other.neighbours = {0: board}
        other.unlink()
        others.append(other)
        seen = shared.look(own.path, own.token, LIKE)
        assert seen is not None
        own.neighbours[place] = seen
    own.unlink()
    for step in range(20):
        random.Random(step).shuffle(others)
        for other in others[:-1]:
            other.publish(step)
        assert int(own._words[shared.BELL // 4]) == step
        others[-1].publish(step)
        assert own.wait(step, timeout=1) is None


def test_waiting_sleeps_and_wakes_at_once() -> None:
    first, second = pair()
    threading.Timer(0.5, lambda: second.publish(0)).start()
    before, cpu = time.monotonic(), time.thread_time()
    assert first.wait(0, timeout=10) is None
    assert 0.4 < time.monotonic() - before < 5
    assert time.thread_time() - cpu < 0.2


def test_another_memory_is_not_taken_for_the_same() -> None:
    own = shared.create(LIKE)
    assert own is not None
    assert shared.look(own.path, b"x" * shared.TOKEN, LIKE) is None  # the name exists there too, by chance
    assert shared.look(own.path, own.token, torch.zeros(2000)) is None
    assert shared.look(Path("/dev/shm/dgt-nowhere"), own.token, LIKE) is None
    own.unlink()


def test_a_dead_owner_is_noticed_and_its_file_swept() -> None:
    program = """
import sys, torch
from dgt.exchange import shared
own = shared.create(torch.zeros(1000))
print(own.path, own.token.hex(), flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path, token = owner.stdout.readline().split()
    board = shared.look(Path(path), bytes.fromhex(token), LIKE)
    assert board is not None
    waiting = shared.create(LIKE)
    assert waiting is not None
    waiting.unlink()
    waiting.neighbours = {7: board}
    assert waiting.wait(0, timeout=0.5) == (7, "timed out")  # alive, only slow
    owner.kill()
    owner.wait(timeout=10)
    assert waiting.wait(0, timeout=1000) == (7, "is gone (its process ended)"), "not by waiting"
    assert Path(path).exists()  # killed before it could unlink
    os.utime(path, (0, 0))
    another = shared.create(LIKE)
    assert another is not None
    another.unlink()
    assert not Path(path).exists()


def test_no_room_is_no_board_and_no_bus_error() -> None:
    free = os.statvfs(shared.MEMORY)

    class Huge:  # nothing is allocated here: only the size counts
        dtype = torch.float32

        def numel(self) -> int:
            return free.f_bavail * free.f_frsize

        def element_size(self) -> int:
            return 4

    names = set(shared.MEMORY.glob(f"{shared.PREFIX}*"))
    assert shared.create(Huge()) is None  # type: ignore[arg-type]
    assert set(shared.MEMORY.glob(f"{shared.PREFIX}*")) <= names
