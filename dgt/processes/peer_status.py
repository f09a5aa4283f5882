"""Where ranks are, said in the store in which they met: who has left, and what a rank that gives up was waiting in.

Nothing is written or read while all goes well. Whoever looks does so in a thread of its own and for a short time
only: the store may be on the other side of a broken link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

if TYPE_CHECKING:  # the `dgt` command asks where it is while torch is still on its way
    import torch.distributed as dist

Found = TypeVar("Found")

LOOK_SECONDS = 1.5
MOST = 64  # ranks whose whereabouts are read


class Left(NamedTuple):
    """A rank that has left in good order."""

    name: int
    steps: int
    calls: int
    """Calls of all ranks that it took part in."""


def say_left(store: dist.Store, members: Sequence[int], left: Left) -> None:
    """So that others need not wait for this one."""
    text = " ".join(map(str, left))

    def write() -> None:
        store.set(f"{_room(members)}/left/{left.name}", text)
        store.set(f"{_room(members)}/left", text)

    _briefly(write)


def who_left(store: dist.Store, members: Sequence[int], name: int | None = None) -> Left | None:
    """This node, or without a name whichever was the last to say so; None if it has not left."""
    key = f"{_room(members)}/left" if name is None else f"{_room(members)}/left/{name}"

    def read() -> Left | None:
        return Left(*map(int, store.get(key).split())) if store.check([key]) else None

    return _briefly(read)


def elsewhere(
    store: dist.Store, members: Sequence[int], own: int, where: str, others: Sequence[int], seconds: float
) -> dict[int, str]:
    """Say where this node gives up waiting, and find out where the others did, if they do so within these seconds."""
    room = f"{_room(members)}/where"
    names = [name for name in others if name != own][:MOST]

    def ask() -> dict[int, str]:
        store.set(f"{room}/{own}", where)
        deadline = time.monotonic() + seconds
        while True:
            there = [name for name in names if store.check([f"{room}/{name}"])]
            if there or time.monotonic() > deadline:
                return {name: store.get(f"{room}/{name}").decode(errors="replace") for name in there}
            time.sleep(0.05)

    return _briefly(ask) or {}


def _room(members: Sequence[int]) -> str:
    """Those who are left after a loss start anew."""
    return f"dgt/{crc32(repr(list(members)).encode()):08x}"


def _briefly(do: Callable[[], Found]) -> Found | None:
    """Its result, or None if it fails or takes too long."""
    found: list[Found] = []

    def run() -> None:
        try:
            found.append(do())
        except Exception:
            return  # the store is gone, with the rank or the launcher that kept it

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LOOK_SECONDS)
    return found[0] if found else None
