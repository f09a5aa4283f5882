"""Keys in the rendezvous store that say which ranks have left the network, and where a rank was when it timed out.

Written and read only when a rank leaves or fails, never while all goes well. Every access runs in a thread and is given
up after `ACCESS_SECONDS`: the store may be on the other side of a broken link, where a call would block for minutes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch.distributed as dist

Result = TypeVar("Result")

ACCESS_SECONDS = 1.5
MOST = 64  # ranks whose position is read


class Departure(NamedTuple):
    """A rank that has left `with dgt.join()` without an error."""

    name: int
    steps: int
    calls: int
    """Collective operations that it took part in."""


class Position(NamedTuple):
    """What a rank was waiting in when it gave up."""

    in_step: bool
    """Whether it waited for a neighbour's message in a step of the optimizer, and not in a collective operation."""
    text: str


def publish_departure(store: dist.Store, generation: int, departure: Departure) -> None:
    """Write that this rank has left, for ranks that wait for it."""
    text = " ".join(map(str, departure))

    def write() -> None:
        store.set(f"{_prefix(generation)}/left/{departure.name}", text)
        store.set(f"{_prefix(generation)}/left", text)

    _bounded(write)


def find_departure(store: dist.Store, generation: int, name: int | None = None) -> Departure | None:
    """The departure of node `name`, or without a name the last that was published; None if there is none."""
    key = f"{_prefix(generation)}/left" if name is None else f"{_prefix(generation)}/left/{name}"

    def read() -> Departure | None:
        return Departure(*map(int, store.get(key).split())) if store.check([key]) else None

    return _bounded(read)


def exchange_positions(
    store: dist.Store, generation: int, own: int, position: Position, others: Sequence[int], seconds: float
) -> dict[int, Position]:
    """Publish where node `own` gave up waiting; returns the positions that `others` publish within these seconds."""
    prefix = f"{_prefix(generation)}/position"
    names = [name for name in others if name != own][:MOST]

    def exchange() -> dict[int, Position]:
        store.set(f"{prefix}/{own}", json.dumps(position))
        deadline = time.monotonic() + seconds
        while True:
            there = [name for name in names if store.check([f"{prefix}/{name}"])]
            if there or time.monotonic() > deadline:
                return {name: Position(*json.loads(store.get(f"{prefix}/{name}"))) for name in there}
            time.sleep(0.05)

    return _bounded(exchange) or {}


def publish_waiting(store: dist.Store, generation: int, name: int, waits: bool) -> None:
    """Write that node `name` has been waiting for others for a while, or no longer does."""
    _bounded(lambda: store.set(f"{_prefix(generation)}/waiting/{name}", "1" if waits else "0"))


def find_waiting(store: dist.Store, generation: int, names: Sequence[int]) -> list[int]:
    """Those of these nodes that wait for others themselves."""

    def read() -> list[int]:
        keys = {name: f"{_prefix(generation)}/waiting/{name}" for name in names}
        return [name for name, key in keys.items() if store.check([key]) and store.get(key) == b"1"]

    return _bounded(read) or []


def _prefix(generation: int) -> str:
    """Keys of the network since its members last changed: those who go on must not read what was written before."""
    return f"dgt/network-{generation}"


def _bounded(access: Callable[[], Result]) -> Result | None:
    """The result of `access`, run in a daemon thread; None if it fails or takes longer than ACCESS_SECONDS."""
    results: list[Result] = []

    def run() -> None:
        try:
            results.append(access())
        except Exception:
            return  # the store has ended, with the rank or the launcher that served it

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ACCESS_SECONDS)
    return results[0] if results else None
