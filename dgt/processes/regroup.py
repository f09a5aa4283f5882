"""What ranks decide through the store where they met: who goes on after a loss, and how a run has ended.

Every question has one key, written by compare-and-set: the first answer counts, and everybody else reads it. The store
is a file on one host, or held by one process: a part of the network that cannot reach it decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgt.errors import PeerError, StoreError, TrainingError

if TYPE_CHECKING:  # the `dgt` command asks where it is while torch is still on its way
    import torch.distributed as dist

ALARM = "dgt/alarm"
BROKEN = "broken: "
LOOK_SECONDS = 0.02
BEATS = 4  # life signs per `timeout`

Lost = Callable[[], set[int]]


@contextlib.contextmanager
def _reaching(name: int) -> Iterator[None]:
    try:
        yield
    except (TrainingError, PeerError):
        raise
    except RuntimeError as error:  # torch.distributed.DistError, or what the socket said
        what = str(error).splitlines()[0][:120]
        raise StoreError(
            f"node {name}: the store is gone, most likely with the host of rank 0 ({what}); nobody can go on without "
            "it: resume=auto continues from the last checkpoint"
        ) from None


@dataclass(frozen=True, slots=True)
class Reunion:
    """What those who are left agreed on."""

    members: list[int]
    iteration: int
    stop: bool
    """Whether one of them had heard that the run is to stop."""


def reunite(
    store: dist.Store,
    generation: int,
    members: Sequence[int],
    name: int,
    iteration: int,
    stop: bool,
    lost: Lost,
    patience: float,
) -> Reunion:
    """Agree on who is left, on the furthest iteration any of them has reached, and on whether to stop there.

    Everybody writes that it is there. Whoever sees that each member is there or known to be dead writes the decision.
    Without a launcher that knows who is dead, time decides, and only for a majority (`may_go_on`).
    """
    place = f"reunion-{generation}"
    with _reaching(name):
        store.set(f"{place}/there/{name}", json.dumps([iteration, stop]))
        deadline = time.monotonic() + patience
        while not store.check([f"{place}/decision"]):
            if store.check([ALARM]):
                raise TrainingError(store.get(ALARM).decode())
            dead = lost()
            living = [member for member in members if member not in dead]
            there = [member for member in living if store.check([f"{place}/there/{member}"])]
            if there == living or time.monotonic() > deadline:
                store.compare_set(f"{place}/decision", "", _decision(store, place, there, living))
            else:
                time.sleep(LOOK_SECONDS)
        decided = json.loads(store.get(f"{place}/decision"))
    if "refused" in decided:
        raise TrainingError(decided["refused"])
    if name not in decided["members"]:
        raise TrainingError(f"node {name} came too late: the others went on without it")
    return Reunion(**decided)


def may_go_on(there: Sequence[int], living: Sequence[int]) -> bool:
    """More than half of the nodes that may be alive, or the half with the lowest of them: never two parts at once."""
    return 2 * len(there) > len(living) or (2 * len(there) == len(living) and min(living) in there)


def _decision(store: dist.Store, place: str, there: list[int], living: list[int]) -> str:
    if not may_go_on(there, living):
        who = ", ".join(map(str, there))
        return json.dumps(
            {
                "refused": f"after a loss {len(there)} of {len(living)} nodes found each other ({who}): without the "
                "majority they do not go on, as the others may; resume=auto continues from the last checkpoint"
            }
        )
    said = [json.loads(store.get(f"{place}/there/{member}")) for member in there]
    stop = any(heard for _, heard in said)
    return json.dumps({"members": there, "iteration": max(reached for reached, _ in said), "stop": stop})


def muster(store: dist.Store, generation: int, members: Sequence[int], name: int, lost: Lost, patience: float) -> None:
    """Wait until all members are about to connect: connecting to one that has died meanwhile would take minutes."""
    place, deadline = f"muster-{generation}", time.monotonic() + patience
    with _reaching(name):
        store.set(f"{place}/{name}", "1")
        while not store.check([f"{place}/{member}" for member in members]):
            dead = lost().intersection(members)
            if dead:
                raise PeerError(f"node {name}: node {min(dead)} is gone")
            if time.monotonic() > deadline:
                raise PeerError(f"node {name}: the nodes that are left did not meet within {patience:g} s")
            time.sleep(LOOK_SECONDS)


class Question:
    """One answer for all members; while they wait for it, they watch each other.

    The launcher tells who has ended. Where there is none that does, every member counts up a life sign in the store,
    and one whose count stands still for `timeout` seconds is missing.
    """

    def __init__(
        self, store: dist.Store, key: str, members: Sequence[int], own: int, lost: Lost, timeout: float
    ) -> None:
        self._store, self._key, self._lost, self._timeout = store, key, lost, timeout
        self.members, self.own = list(members), own
        self._count, self._next = 0, time.monotonic() + timeout / BEATS
        self._seen = dict.fromkeys(self.members, (b"", time.monotonic()))

    def answer(self) -> str:
        """Empty while there is none."""
        with _reaching(self.own):
            return self._store.get(self._key).decode() if self._store.check([self._key]) else ""

    def settle(self, words: str) -> str:
        """Answer it; returns the answer that counts, which may be another's."""
        with _reaching(self.own):
            return self._store.compare_set(self._key, "", words).decode()

    def missing(self) -> set[int]:
        """Members that have ended, or gave no sign of life for too long."""
        now = time.monotonic()
        if now > self._next:
            self._next = now + self._timeout / BEATS
            self._count += 1
            with _reaching(self.own):
                self._store.set(f"{self._key}/alive/{self.own}", str(self._count))
                for member, (before, _) in self._seen.items():
                    name = f"{self._key}/alive/{member}"
                    count = self._store.get(name) if self._store.check([name]) else b""
                    if count != before:
                        self._seen[member] = (count, now)
        silent = {member for member, (_, since) in self._seen.items() if now > since + 1.5 * self._timeout}
        return (self._lost() | silent).intersection(self.members) - {self.own}

    def attend(self, done: Callable[[], bool], is_needed: Callable[[int], bool]) -> str:
        """Wait until it is done, or the question has been answered: a missing member that is needed breaks it off."""
        while not (answer := self.answer()) and not done():
            missed = sorted(member for member in self.missing() if is_needed(member))
            if missed:
                self.settle(f"{BROKEN}node {missed[0]} is gone")
            else:
                time.sleep(LOOK_SECONDS)
        return answer

    def conclude(self, find: Callable[[], str]) -> str:
        """The lowest member that is not missing finds the answer and gives it; all others wait for it."""
        while not (answer := self.answer()):
            if self.own == min(set(self.members) - self.missing()):
                return self.settle(find())
            time.sleep(LOOK_SECONDS)
        return answer

    def part(self) -> None:
        """Everybody has the answer and may leave. The first node leaves last: the store may be in its process."""
        with contextlib.suppress(StoreError), _reaching(self.own):
            self._store.set(f"{self._key}/knows/{self.own}", "1")
            deadline = time.monotonic() + self._timeout
            while self.own == self.members[0] and time.monotonic() < deadline:
                others = set(self.members) - self.missing()
                if self._store.check([f"{self._key}/knows/{member}" for member in others]):
                    break
                time.sleep(LOOK_SECONDS)
