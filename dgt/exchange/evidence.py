"""What the host checks of what a GPU has done: heads of messages, and sums that must be finite, a step later.

    evidence.note(bytes_on_gpu, check)      # queued on the stream; nothing waits
    evidence.send()                         # once per step: all of it is on its way to pinned memory
    evidence.confirm()                      # at the next step: it is there, and every check is called with its bytes

To look at a number on a GPU the host waits until the GPU has computed it, and then the GPU waits for the host. A step
later it is there already. So what is wrong is noticed before the next step sends anything, and `settle` does it at once
where something is to be saved.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

import torch

from dgt.exchange.frames import HEAD, TAIL
from dgt.processes.patience import wait_for_gpu

ROW = HEAD + TAIL
_NUMBER = struct.Struct("<d")
Check = Callable[[bytes], None]


class Waiting(Protocol):
    """A `Transport`."""

    wait_seconds: float


class Evidence:
    """Of one transport's messages and its optimizer's numbers, on this device."""

    def __init__(self, device: torch.device, timeout: float) -> None:
        self._device, self._timeout = device, timeout
        self._rows = torch.empty(0, ROW, dtype=torch.uint8, device=device)
        self._pinned = self._rows
        self._noted: list[tuple[int, int, Check]] = []  # first row, rows, check
        self._sent: list[tuple[int, int, Check]] = []
        self._there = torch.cuda.Event()
        self._used = 0

    def note_rows(self, count: int, check: Check) -> torch.Tensor:
        """Room for so many rows [count, ROW], to be written by kernels that are queued now."""
        if self._used + count > len(self._rows):
            self._grow(self._used + count)
        first = self._used
        self._used += count
        self._noted.append((first, count, check))
        return self._rows[first : first + count]

    def note_sum(self, vector: torch.Tensor, check: Callable[[float], None]) -> None:
        """The sum over a vector, which is not finite if one of its numbers is not."""
        row = self.note_rows(1, lambda content: check(_NUMBER.unpack_from(content)[0]))
        number = row.view(-1)[: _NUMBER.size].view(torch.float64)[0]
        torch.sum(vector.reshape(-1), dim=0, dtype=torch.float64, out=number)

    def note_number(self, number: torch.Tensor, check: Callable[[float], None]) -> None:
        """One number."""
        row = self.note_rows(1, lambda content: check(_NUMBER.unpack_from(content)[0]))
        row.view(-1)[: _NUMBER.size].view(torch.float64)[0].copy_(number)

    def mark(self) -> torch.cuda.Event:
        """Where the stream is now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def note_wait(self, since: torch.cuda.Event, transport: Waiting) -> None:
        """How long the stream has stood still since then."""
        until = self.mark()

        def add(_: bytes) -> None:
            transport.wait_seconds += since.elapsed_time(until) / 1000

        self._noted.append((self._used, 0, add))

    def _grow(self, rows: int) -> None:
        """Room for a step with more to check than any before; what was noted moves along."""
        self.confirm()
        larger = torch.empty(max(rows, 2 * len(self._rows)), ROW, dtype=torch.uint8, device=self._device)
        larger[: self._used].copy_(self._rows[: self._used])
        self._rows = larger
        self._pinned = torch.empty(len(larger), ROW, dtype=torch.uint8, pin_memory=True)

    def send(self) -> None:
        """What was noted since is on its way; after this the stream may go on."""
        if not self._noted:
            return
        self.confirm()
        self._pinned[: self._used].copy_(self._rows[: self._used], non_blocking=True)
        self._there.record()
        self._sent, self._noted, self._used = self._noted, [], 0

    def confirm(self) -> None:
        """Check what was sent; raises what the checks raise."""
        if not self._sent:
            return
        wait_for_gpu(self._there.query, self._timeout, "what a step has computed")
        sent, self._sent = self._sent, []
        content = bytes(self._pinned.numpy())
        for first, count, check in sent:
            check(content[first * ROW : (first + count) * ROW])

    def settle(self) -> None:
        """Check everything now: the host waits for the GPU."""
        self.confirm()
        self.send()
        self.confirm()

    def drop(self) -> None:
        """Nothing of it is of interest any more."""
        self._sent, self._noted, self._used = [], [], 0
