"""What is counted, and what was done wrong: synchronisations, kernels and bytes, by the line that causes them."""

from __future__ import annotations

import collections
import sys
import threading
import weakref
from dataclasses import dataclass, field

import torch

PACKAGE = "/dgt/"
OWN = "/fake_cuda/"


@dataclass
class Ledger:
    syncs: collections.Counter[str] = field(default_factory=collections.Counter)
    """Where the host waits for the GPU: blocking copies, numbers read, events and messages not yet there."""
    launches: collections.Counter[str] = field(default_factory=collections.Counter)
    """Kernels and copies."""
    faults: list[str] = field(default_factory=list)
    living: int = 0
    """Bytes of all CUDA memory that something still refers to."""
    peak: int = 0

    def start(self) -> None:
        """Count from here."""
        self.syncs.clear()
        self.launches.clear()
        self.peak = self.living

    def fault(self, words: str) -> None:
        self.faults.append(words)
        if len(self.faults) < 10:
            print(f"fake GPU: {words} at {where()}", file=sys.stderr, flush=True)


ledger = Ledger()


def where() -> str:
    """The innermost line of dgt that is running, else of the program."""
    frame, program = sys._getframe(1), "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if OWN not in name and PACKAGE in name and "/site-packages/" not in name:
            return f"{name.rpartition(PACKAGE)[2]}:{frame.f_lineno}"
        if program == "?" and OWN not in name and "/torch/" not in name:
            program = f"{name.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return program


class Block:
    """The memory of one storage; it lives as long as a tensor that looks at it."""

    def __init__(self, size: int) -> None:
        ledger.living += size
        ledger.peak = max(ledger.peak, ledger.living)
        weakref.finalize(self, _free, size)


def _free(size: int) -> None:
    ledger.living -= size


_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def block_of(inner: torch.Tensor) -> Block | None:
    """The block that this memory is in, counted if it is new."""
    storage = inner.untyped_storage()
    if not storage.nbytes():
        return None
    with _lock:
        block = _blocks.get(storage.data_ptr())
        if block is None:
            block = _blocks[storage.data_ptr()] = Block(storage.nbytes())
        return block
