"""What ranks decide through the rendezvous store: which of them go on, who joins them, and how a run has ended.

Every question has one key, written by compare-and-set: the first value is the answer, which all others read. The store
is one file or is served by one process, so a part of the network that is cut off from it can decide nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dgt.errors import PeerError, StoreError, TrainingError

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch.distributed as dist

ALARM = "dgt/alarm"
BROKEN = "broken: "  # begins an answer that means: a member is lost, there is no common end
POLL_SECONDS = 0.02
HEARTBEATS = 4  # per `timeout`

Lost = Callable[[], set[int]]


@contextlib.contextmanager
def _store_errors(name: int) -> Iterator[None]:
    """Errors of the store inside become `StoreError` of node `name`."""
    try:
        yield
    except (TrainingError, PeerError):
        raise
    except RuntimeError as error:  # torch.distributed.DistError, or an error of its socket
        what = str(error).splitlines()[0][:120]
        raise StoreError(
            f"node {name}: the store is gone, most likely with the host of rank 0 ({what}); nobody can go on without "
            "it: resume=auto continues from the last checkpoint"
        ) from None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a member tells the others when all meet."""

    iteration: int
    stop: bool = False
    """It has received that the run is to stop."""
    is_new: bool = False
    """It has come back, and has no parameters of the network yet."""
    leaving: tuple[int, ...] = ()
    """Nodes that it knows to leave on purpose."""


@dataclass(frozen=True, slots=True)
class Members:
    """Who makes up the network from here on, as all have agreed."""

    members: list[int]
    iteration: int
    stop: bool
    """Whether one of them had received that the run is to stop."""
    attempts: list[int] = field(default_factory=list)
    """How often the process of each member was started again."""
    new: list[int] = field(default_factory=list)
    """Members that have no parameters of the network yet."""
    leaving: list[int] = field(default_factory=list)
    """Nodes that have left on purpose."""
    before: list[tuple[int, int]] = field(default_factory=list)
    """The members until now, those who are lost included, each with its attempts."""


def agree_on_members(
    store: dist.Store,
    generation: int,
    members: Mapping[int, int],
    name: int,
    standing: Standing,
    lost: Lost,
    patience: float,
    waiting: Callable[[], dict[int, int]] = dict,
) -> Members:
    """Agree on who is left and who joins, on the largest iteration among them, and on whether to stop there.

    Every rank writes a key `there`. A rank that finds each member either there or in `lost()`, the members whose
    process the launcher has seen end, writes the decision. Under launchers that do not tell, `patience` seconds decide,
    and only for a majority (`may_go_on`).

    members   until now: name -> how often its process was started again
    waiting   returns the nodes that ask to be taken in, likewise
    """
    place = _place(generation)
    with _store_errors(name):
        store.set(f"{place}/there/{name}", json.dumps(asdict(standing)))
        deadline = time.monotonic() + patience
        while not store.check([f"{place}/decision"]):
            if store.check([ALARM]):
                raise TrainingError(store.get(ALARM).decode())
            dead = lost()
            living = [member for member in members if member not in dead]
            there = [member for member in living if store.check([f"{place}/there/{member}"])]
            if there == living or time.monotonic() > deadline:
                decision = _decision(store, place, members, there, living, waiting)
                store.compare_set(f"{place}/decision", "", json.dumps(decision))
            else:
                time.sleep(POLL_SECONDS)
        decided = json.loads(store.get(f"{place}/decision"))
    if "refused" in decided:
        raise TrainingError(decided["refused"])
    if name not in decided["members"] and name not in decided["leaving"]:
        raise TrainingError(f"node {name} came too late: the others went on without it")
    return Members(**decided)


def has_begun(store: dist.Store, generation: int, members: Iterable[int], name: int) -> bool:
    """Whether one of the members has come to the meeting that ends this generation."""
    with _store_errors(name):
        return any(store.check([f"{_place(generation)}/there/{member}"]) for member in members)


def may_go_on(there: Sequence[int], living: Sequence[int]) -> bool:
    """Whether `there` is more than half of `living`, or the half with its lowest node: true for one part at most."""
    return 2 * len(there) > len(living) or (2 * len(there) == len(living) and min(living) in there)


def _place(generation: int) -> str:
    return f"reunion-{generation}"


def _decision(
    store: dist.Store,
    place: str,
    members: Mapping[int, int],
    there: list[int],
    living: list[int],
    waiting: Callable[[], dict[int, int]],
) -> dict[str, Any]:
    if not may_go_on(there, living):
        who = ", ".join(map(str, there))
        return {
            "refused": f"after a loss {len(there)} of {len(living)} nodes found each other ({who}): without the "
            "majority they do not go on, as the others may; resume=auto continues from the last checkpoint"
        }
    standings = {member: Standing(**json.loads(store.get(f"{place}/there/{member}"))) for member in there}
    new = [member for member in there if standings[member].is_new]
    if new == there:
        return {
            "refused": "all nodes that knew the parameters are lost, those that came back do not have them yet; "
            "resume=auto continues from the last checkpoint"
        }
    leaving = {name for standing in standings.values() for name in standing.leaving}.intersection(there)
    # who leaves on purpose does not leave anybody without parameters; and a stop ends the run for all of them alike
    stop = any(standing.stop for standing in standings.values()) or set(there) - set(new) <= leaving
    leaving = set() if stop else leaving
    coming = {} if stop else waiting()
    attempts = {member: members[member] for member in there if member not in leaving} | coming
    agreed = Members(
        sorted(attempts),
        max(standing.iteration for standing in standings.values()),
        stop,
        [attempts[member] for member in sorted(attempts)],
        sorted({*new, *coming} - leaving),
        sorted(leaving),
        list(members.items()),
    )
    return asdict(agreed)


# ------------------------------------------------------------------------------------------------- nodes that come back


def ask_to_join(store: dist.Store, name: int, attempt: int) -> None:
    """Node `name`, a process that was started for the `attempt`-th time again, is ready to be taken in."""
    with _store_errors(name):
        store.set(f"joining/{name}", str(attempt))


def who_asks_to_join(store: dist.Store, own: int, absent: Iterable[int]) -> dict[int, int]:
    """Of these nodes those that have asked to be taken in, and the attempt that has asked last."""
    with _store_errors(own):
        asking = [name for name in absent if store.check([f"joining/{name}"])]
        return {name: int(store.get(f"joining/{name}")) for name in asking}


def wait_to_be_taken_in(store: dist.Store, name: int, attempt: int) -> tuple[int, Members]:
    """Wait for the decision that has this attempt of node `name` among its members; which generation it ends, and it.

    A launcher ends who waits for a network that has ended.
    """
    generation = 0
    with _store_errors(name):
        while True:
            key = f"{_place(generation)}/decision"
            if not store.check([key]):
                time.sleep(POLL_SECONDS)
                continue
            decided = json.loads(store.get(key))
            if "refused" in decided:
                raise TrainingError(decided["refused"])
            if (name, attempt) in zip(decided["members"], decided["attempts"], strict=True):
                return generation, Members(**decided)
            generation += 1


def wait_until_ready(
    store: dist.Store, generation: int, members: Sequence[int], name: int, lost: Lost, patience: float
) -> None:
    """Wait until all members are about to connect: gloo would try for minutes to connect to one that died meanwhile."""
    place, deadline = f"ready-{generation}", time.monotonic() + patience
    with _store_errors(name):
        store.set(f"{place}/{name}", "1")
        while not store.check([f"{place}/{member}" for member in members]):
            dead = lost().intersection(members)
            if dead:
                raise PeerError(f"node {name}: node {min(dead)} is gone", peers=[min(dead)])
            if time.monotonic() > deadline:
                raise PeerError(f"node {name}: the nodes that are left did not meet within {patience:g} s")
            time.sleep(POLL_SECONDS)


class Question:
    """One answer for all members, who detect lost members while they wait for it.

    `lost()` returns the members whose process dgt's launcher has seen end. Under other launchers every member
    increments a counter in the store, and one whose counter does not change for 1.5 `timeout` is missing.
    """

    def __init__(
        self, store: dist.Store, key: str, members: Sequence[int], own: int, lost: Lost, timeout: float
    ) -> None:
        self._store, self._key, self._lost, self._timeout = store, key, lost, timeout
        self.members, self.own = list(members), own
        self._count, self._next = 0, time.monotonic() + timeout / HEARTBEATS
        self._seen = dict.fromkeys(self.members, (b"", time.monotonic()))

    def answer(self) -> str:
        """The answer; empty while there is none."""
        with _store_errors(self.own):
            return self._store.get(self._key).decode() if self._store.check([self._key]) else ""

    def propose(self, words: str) -> str:
        """Answer unless it is answered already; returns the answer."""
        with _store_errors(self.own):
            return self._store.compare_set(self._key, "", words).decode()

    def missing(self) -> set[int]:
        """Members whose process has ended, or whose counter has not changed for 1.5 `timeout`."""
        now = time.monotonic()
        if now > self._next:
            self._next = now + self._timeout / HEARTBEATS
            self._count += 1
            with _store_errors(self.own):
                self._store.set(f"{self._key}/alive/{self.own}", str(self._count))
                for member, (before, _) in self._seen.items():
                    name = f"{self._key}/alive/{member}"
                    count = self._store.get(name) if self._store.check([name]) else b""
                    if count != before:
                        self._seen[member] = (count, now)
        silent = {member for member, (_, since) in self._seen.items() if now > since + 1.5 * self._timeout}
        return (self._lost() | silent).intersection(self.members) - {self.own}

    def wait(self, done: Callable[[], bool], is_needed: Callable[[int], bool]) -> str:
        """Wait until `done()` or until there is an answer, which is returned; a missing member that `is_needed` makes
        the answer BROKEN."""
        while not (answer := self.answer()) and not done():
            missed = sorted(member for member in self.missing() if is_needed(member))
            if missed:
                self.propose(f"{BROKEN}node {missed[0]} is gone")
            else:
                time.sleep(POLL_SECONDS)
        return answer

    def answer_by_lowest(self, find: Callable[[], str]) -> str:
        """The lowest member that is not missing answers with `find()`; all others wait for the answer."""
        while not (answer := self.answer()):
            if self.own == min(set(self.members) - self.missing()):
                return self.propose(find())
            time.sleep(POLL_SECONDS)
        return answer

    def acknowledge(self) -> None:
        """This member has read the answer. The first member waits for all others: the store may be in its process."""
        with contextlib.suppress(StoreError), _store_errors(self.own):
            self._store.set(f"{self._key}/knows/{self.own}", "1")
            deadline = time.monotonic() + self._timeout
            while self.own == self.members[0] and time.monotonic() < deadline:
                others = set(self.members) - self.missing()
                if self._store.check([f"{self._key}/knows/{member}" for member in others]):
                    break
                time.sleep(POLL_SECONDS)
