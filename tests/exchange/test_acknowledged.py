"""Boards whose readers change: a buffer is written again once those who were sent it have read it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from dgt.exchange import shared
from dgt.exchange.acknowledged import Acknowledged

pytestmark = pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux on x86-64")

LIKE = torch.zeros(100)


def trio() -> list[Acknowledged]:
    """Three ranks in one process, each with the boards of the others."""
    owners = [shared.create(LIKE) for _ in range(3)]
    found = []
    for rank, own in enumerate(owners):
        assert own is not None
        boards = {}
        for peer, theirs in enumerate(owners):
            if peer != rank and theirs is not None:
                board = shared.look(theirs.path, theirs.token, LIKE)
                assert board is not None
                boards[peer] = board
        found.append(Acknowledged(own, boards))
    for own in owners:
        assert own is not None
        own.unlink()
    return found


def test_the_writer_waits_for_the_reader_of_the_last_but_one() -> None:
    first, second, third = trio()
    first.publish(0, [1])  # for the second, which is late
    second.publish(0, [0])
    assert first.wait(0, [1], timeout=1) is None
    first.have_read(0)
    assert first.claim(1, timeout=1) is None, "the other buffer is free"
    first.publish(1, [2])
    third.publish(0, [])
    third.publish(1, [0])
    assert first.wait(1, [2], timeout=1) is None
    first.have_read(1)
    assert first.claim(2, timeout=0.1) == (1, "timed out")
    assert first._own.frames[0].payload is not None


def test_an_acknowledgement_wakes_the_writer_at_once() -> None:
    first, second, _ = trio()
    first.publish(0, [1])
    first.publish(1, [])
    threading.Timer(0.3, lambda: second.have_read(0)).start()
    before, cpu = time.monotonic(), time.thread_time()
    assert first.claim(2, timeout=10) is None
    assert 0.2 < time.monotonic() - before < 5
    assert time.thread_time() - cpu < 0.2


def test_one_word_acknowledges_to_all_who_wrote() -> None:
    first, second, third = trio()
    for writer in (first, second):
        writer.publish(0, [2])
    third.have_read(0)
    assert first.claim(2, timeout=1) is None
    assert second.claim(2, timeout=1) is None


def test_a_reader_that_has_left_is_named() -> None:
    first, second, _ = trio()
    first.publish(0, [1])
    first.publish(1, [])
    second._own.leave(1)
    assert first.claim(2, timeout=10) == (1, "is gone (it has left)")
