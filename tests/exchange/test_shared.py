"""Boards in shared memory: published, waited for, and gone with their owner."""

from __future__ import annotations

import os
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


def test_a_neighbour_sees_what_was_published() -> None:
    own = shared.create(LIKE)
    assert own is not None
    theirs = shared.look(own.path, own.token, LIKE)
    assert theirs is not None
    own.unlink()
    assert not own.path.exists()
    own.buffers[0].fill_(1.0)
    own.publish(0)
    own.buffers[1].fill_(2.0)
    own.publish(1)
    assert theirs.wait(1, time.monotonic() + 1) == ""
    assert theirs.buffers[0].sum() == 1000
    assert theirs.buffers[1].sum() == 2000


def test_waiting_sleeps_and_wakes_at_once() -> None:
    own = shared.create(LIKE)
    assert own is not None
    theirs = shared.look(own.path, own.token, LIKE)
    assert theirs is not None
    own.unlink()
    threading.Timer(0.5, lambda: own.publish(0)).start()
    before, cpu = time.monotonic(), time.thread_time()
    assert theirs.wait(0, time.monotonic() + 10) == ""
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
    assert board.wait(0, time.monotonic() + 0.5) == "timed out"  # alive, only slow
    owner.kill()
    owner.wait(timeout=10)
    before = time.monotonic()
    assert board.wait(0, time.monotonic() + 30) == "is gone (its process ended)"
    assert time.monotonic() - before < 2
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

    names = set(os.listdir(shared.MEMORY))
    assert shared.create(Huge()) is None  # type: ignore[arg-type]
    assert set(os.listdir(shared.MEMORY)) <= names
