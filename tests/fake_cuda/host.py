"""What the host sees of a GPU that works by itself: copies from and to pinned memory, and events.

A copy to pinned memory that does not wait fills it with rubbish first; the numbers come once the host has seen that the
GPU is through, by an event, by a message that was posted later, or by waiting for everything. A copy from pinned memory
reads it at some time until then, so it must not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tests.fake_cuda.ledger import ledger, where

RUBBISH = 0xA5
LATENCY = 0.0003  # seconds until an event has come to pass
_to_be_seen: list[Callable[[], None]] = []
_pinned: set[int] = set()
"""Where pinned memory begins."""


def note_pinned(tensor: torch.Tensor) -> None:
    _pinned.add(tensor.untyped_storage().data_ptr())


def is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def later(do: Callable[[], None]) -> None:
    """What happens when the host sees that the GPU is through with what was queued so far."""
    _to_be_seen.append(do)


def queued() -> list[Callable[[], None]]:
    return list(_to_be_seen)


def seen(things: list[Callable[[], None]] | None = None) -> None:
    """The host has seen that these are done, or everything."""
    for do in list(_to_be_seen) if things is None else things:
        if do in _to_be_seen:
            _to_be_seen.remove(do)
            do()


def copy_down(target: torch.Tensor, source: torch.Tensor) -> None:
    """To pinned memory, without waiting."""
    found = source.detach().clone()
    target.view(-1).view(torch.uint8).fill_(RUBBISH) if target.is_contiguous() else target.zero_()
    later(lambda: target.copy_(found))


def copy_up(target: torch.Tensor, source: torch.Tensor) -> None:
    """From pinned memory, without waiting."""
    before, line = source.detach().clone(), where()
    target.copy_(source)

    def check() -> None:
        same = torch.equal(
            source.contiguous().view(-1).view(torch.uint8), before.contiguous().view(-1).view(torch.uint8)
        )
        if not same:
            ledger.fault(f"pinned memory was changed while it was copied to the GPU by {line}")

    later(check)


class Event:
    """`torch.cuda.Event` on the one stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.timed, self.since, self.before, self.waited = enable_timing, 0.0, [], False
        self.works: list[Any] = []

    def record(self, stream: Any = None) -> None:
        from tests.fake_cuda import nccl

        self.since, self.before, self.waited = time.monotonic(), queued(), False
        self.works = nccl.awaited()

    def query(self) -> bool:
        over = all(work.done.is_set() for work in self.works) and time.monotonic() > self.since + LATENCY
        if over:
            if self.waited:
                ledger.syncs[f"{where()} event"] += 1
            self.waited = False
            seen(self.before)
        else:
            self.waited = True
        return over

    def synchronize(self) -> None:
        ledger.syncs[f"{where()} event"] += 1
        for work in self.works:
            work.done.wait()
        seen(self.before)

    def wait(self, stream: Any = None) -> None:
        """There is one stream."""

    def elapsed_time(self, end: Event) -> float:
        if not (self.timed and end.timed):
            raise RuntimeError("both events need enable_timing=True")
        if not (self.query() and end.query()):
            raise RuntimeError("an event has not come to pass yet")
        return 1000 * (end.came - self.came)

    @property
    def came(self) -> float:
        """When it came to pass."""
        return max([self.since, *(work.ended for work in self.works)])
