"""This process as a member of the network: its number, its device, and how it reaches all others at once."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dgt.errors import PeerError, TrainingError
from dgt.processes import collectives, regroup, whereabouts
from dgt.processes import rendezvous as meeting
from dgt.processes.notices import NEVER, Notices, absence, goodbye, has_left
from dgt.processes.placement import Placement
from dgt.processes.whereabouts import Left

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch
    import torch.distributed as dist

MEETING_SECONDS = 300.0
REJOIN_SECONDS = (5.0, 30.0)  # least and most time for ranks that are all there to connect again
MET, LISTENS = "met", "listens"  # what a rank tells dgt's launcher: it has met all others; it saves when asked to stop
SAME_SECONDS = 1.0  # one Ctrl-C may come twice, from the terminal and from a launcher
LOOK_SECONDS = 1.0  # how often a rank that waits in a call of all ranks looks whether others have left
ONLY_MAIN = "`if node.is_main:`"
ALL_MUST = f"all ranks must make this call, outside of {ONLY_MAIN}"


class Exchange(Protocol):
    """Messages under way. A node holds on to them, whatever becomes of the optimizer that sent them: a receive that is
    dropped leaves its message in the connection, and everything sent behind it is stuck."""

    def receive_rest(self) -> None: ...

    def finish(self) -> None: ...


class LifeSign(Protocol):
    """What neighbours look at to see whether a rank lives."""

    def release(self) -> None: ...

    def leave(self, steps: int) -> None: ...


@dataclass(slots=True)
class Node:
    """This process as a member of the network. `control` carries small CPU tensors, `data` the exchange."""

    placement: Placement
    device: torch.device
    backend: str
    timeout: float
    groups: dict[str, dist.ProcessGroup]
    store: dist.Store
    """Where ranks found each other; those that are left find each other there again."""
    members: list[int]
    """The nodes that this network's ranks are: 0, 1, 2, ... until some are lost."""
    launcher_notes: Path | None = None
    """Where dgt's own launcher says which ranks have ended."""
    generation: int = 0
    """How often those who were left have met again; every network of theirs decides under keys of its own."""
    parted: bool = False
    """All members have agreed that the run is over: nobody is needed any more."""
    channels: int = 0
    steps: int = 0
    """Steps that this node's optimizer has made."""
    calls: int = 0
    """Calls of all ranks that this one has begun."""
    doing: str = ""
    """What a call of all ranks is part of."""
    expected_next: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """By channel: the tag of this node's next message, and the ranks that may wait for it outside shared memory."""
    handlers: dict[int, Any] = field(default_factory=dict)
    """What handled the signals before `stop_on_signals`."""
    notices: Notices = field(default_factory=Notices)
    tamper: Callable[[str, Any, int], torch.Tensor] | None = None
    """Called with every message before it leaves, returns what is sent: `training/chaos.py` rehearses damage."""
    life_signs: weakref.WeakSet[LifeSign] = field(default_factory=weakref.WeakSet)
    """Released when this node closes its connections, so that neighbours notice at once."""
    before_leaving: list[Callable[[], None]] = field(default_factory=list)
    """What is to be finished before this node leaves in good order."""
    under_way: set[Exchange] = field(default_factory=set)
    sender: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "dgt-sender"))
    """One thread, started when it is first needed: messages leave in the order they were posted."""

    @property
    def control(self) -> dist.ProcessGroup:
        return self._group("control")

    @property
    def data(self) -> dist.ProcessGroup:
        return self._group("data")

    def _group(self, name: str) -> dist.ProcessGroup:
        if not self.groups:
            raise RuntimeError("this node has left the network: keep what exchanges messages inside `with dgt.join()`")
        return self.groups[name]

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def size(self) -> int:
        return self.placement.size

    @property
    def name(self) -> int:
        """Which node this is, whoever was lost: the name in everything that is said."""
        return self.members[self.rank]

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def open_channel(self) -> int:
        """A number for a new stream of messages; all ranks open theirs in the same order."""
        self.channels += 1
        return self.channels - 1

    def stop_on_signals(self) -> None:
        """From here on SIGTERM, SIGUSR1 and Ctrl-C ask all ranks to stop at one step, `optimizer.stop_now`.

        A second Ctrl-C ends the process at once.
        """
        interrupted = 0.0

        def ask(number: int, frame: object) -> None:
            nonlocal interrupted
            if number == signal.SIGINT:
                if interrupted and time.monotonic() > interrupted + SAME_SECONDS:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                    signal.raise_signal(signal.SIGINT)
                interrupted = interrupted or time.monotonic()
            self.notices.stop_asked = self.notices.stop_asked or number

        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            before = signal.signal(number, ask)
            self.handlers.setdefault(number, before)
        self.tell_launcher(LISTENS)

    def restore_signals(self) -> None:
        """Undo `stop_on_signals`: nobody looks at `optimizer.stop_now` any more."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers.clear()

    def tell_launcher(self, what: str, so: bool = True) -> None:
        """Leave a note for dgt's own launcher, or take it back."""
        if self.launcher_notes is not None:
            note = self.launcher_notes / f"{what}-{os.getpid()}"
            with contextlib.suppress(OSError):
                note.touch() if so else note.unlink(missing_ok=True)

    def gather(self, values: Any) -> torch.Tensor:
        """Every rank's number, list, array or tensor, stacked: [size, ...]. Start-up and evaluations only."""
        own = collectives.as_tensor("gather", values)
        call, raw = self._call("gather", own), _bytes(own)
        messages = self._compared(call, raw)
        if raw.numel() <= collectives.ROOM:
            rows = collectives.values_in(messages, raw.numel())
        else:
            with self.patience(call):
                rows = self.all_gather(raw)
        return rows.view(own.dtype).view(self.size, *own.shape).to(own.device)

    def collect(self, values: torch.Tensor) -> torch.Tensor | None:
        """Every rank's CPU tensor, stacked, on rank 0; None elsewhere. Does not wait for the others."""
        own = collectives.as_tensor("collect", values)
        call, raw = self._call("collect", own), _bytes(own)
        with self.patience(call):
            rows = self._to_main(collectives.first_message(call, values=raw))
            if rows is not None:
                collectives.compare(rows)
            if raw.numel() <= collectives.ROOM:
                rows = None if rows is None else collectives.values_in(rows, raw.numel())
            else:
                rows = self._to_main(raw)
        return None if rows is None else rows.view(own.dtype).view(self.size, *own.shape)

    def sum(self, values: torch.Tensor, compared: bool = True) -> torch.Tensor:
        """Sum over all ranks, in place. Start-up, evaluations and the allreduce baseline only.

        `compared=False` saves the message that says what it is: for sums at every step, the first of them compared.
        """
        import torch
        import torch.distributed as dist

        values = values if isinstance(values, torch.Tensor) else collectives.as_tensor("sum", values)
        call = self._call("sum", values)
        if compared:
            self._compared(call)
        nccl = values.is_cuda and self.backend == "nccl"
        with self.patience(call):
            work = dist.all_reduce(values, group=self.data if nccl else self.control, async_op=True)
            if nccl:
                work.wait()
            else:
                self._wait(work)
        return values

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._compared(self._call("barrier"))

    def all_gather(self, raw: torch.Tensor) -> torch.Tensor:
        """Every rank's bytes, stacked, as they are: nothing says what they are, or how many."""
        import torch
        import torch.distributed as dist

        rows = torch.empty(self.size, raw.numel(), dtype=torch.uint8)
        self._wait(dist.all_gather(list(rows.unbind()), raw, group=self.control, async_op=True))
        return rows

    def _to_main(self, raw: torch.Tensor) -> torch.Tensor | None:
        import torch
        import torch.distributed as dist

        rows = torch.empty(self.size, raw.numel(), dtype=torch.uint8) if self.is_main else None
        dist.gather(raw, None if rows is None else list(rows.unbind()), dst=0, group=self.control)
        return rows

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """What the calls inside are part of: the words for it if ranks are in different ones."""
        before, self.doing = self.doing, f"{self.doing}: {what}" if self.doing else what
        try:
            yield
        finally:
            self.doing = before

    def _call(self, name: str, values: torch.Tensor | None = None) -> str:
        self.calls += 1
        call = name if values is None else f"{name} of {collectives.described(values)}"
        return f"{self.doing}: {call}" if self.doing else call

    def _compared(self, call: str, raw: torch.Tensor | None = None) -> torch.Tensor:
        """Every rank's first message, once all are known to make the same call."""
        with self.patience(call):
            messages = self.all_gather(collectives.first_message(call, values=raw))
        collectives.compare(messages)
        return messages

    def _wait(self, work: dist.Work) -> None:
        """Until it is complete; a rank that has left will not take part in it any more."""
        while not _is_complete(work):
            left = whereabouts.who_left(self.store, self.members)
            if left is not None and left.calls < self.calls:
                where = f"in a call of all ranks after {self.steps} steps"
                raise TrainingError(has_left(self.name, f"node {left.name}", left.steps, where))

    @contextlib.contextmanager
    def patience(self, call: str) -> Iterator[None]:
        """In words what gloo says of ranks that do not take part in a call."""
        try:
            yield
        except TrainingError:
            raise
        except RuntimeError as error:
            what = absence(error, self.timeout)
            elsewhere = self.whereabouts(call, self.members, what)
            time.sleep(0.3)  # its neighbours know which one it is: let them speak first
            hint = elsewhere or (f"; {ALL_MUST}" if "did not answer" in what else "")
            raise PeerError(f"node {self.name}: {call}: another rank {what}{hint}") from error

    def whereabouts(self, where: str, others: list[int], what: str) -> str:
        """This node gives up waiting there, because of that; in words where the others did, if they have said so."""
        seconds = 1.0 if "did not answer" in what else 0.0  # others may be about to give up too
        found = whereabouts.elsewhere(self.store, self.members, self.name, where, others, seconds)
        # ranks in steps wait for the one that is missing, whichever steps they are
        there = {name: text for name, text in found.items() if not text.startswith(where[:5])}
        if not there:
            return ""
        words = ", ".join(f"node {name} waited in {text}" for name, text in sorted(there.items())[:3])
        return f"; {words}, node {self.name} in {where}: all ranks must make the same calls, outside of {ONLY_MAIN}"

    def steps_at_leaving(self, name: int) -> int | None:
        """How many steps a node made that has left in good order."""
        left = whereabouts.who_left(self.store, self.members, name)
        return left.steps if left is not None else None

    def leave(self) -> None:
        """Wait until all ranks leave; those who still wait for this one's messages are told that none will follow."""
        import torch.distributed as dist

        if self.size == 1:
            return
        whereabouts.say_left(self.store, self.members, Left(self.name, self.steps, self.calls))
        for sign in self.life_signs:
            sign.leave(self.steps)
        message = collectives.first_message("leaving `with dgt.join()`", f" after {self.steps} steps")
        messages, goodbyes = message.new_empty(self.size, message.numel()), None
        try:
            work = dist.all_gather(list(messages.unbind()), message, group=self.control, async_op=True)
            while not _is_complete(work):
                # they may be computing still; whoever is waiting takes it for the message that it waits for
                goodbyes = goodbyes or self._send_goodbyes()
        except RuntimeError as error:
            what = absence(error, self.timeout)
            done = f"this rank made {self.steps} steps and was leaving"
            raise PeerError(f"node {self.name}: another rank {what}; {done}") from error
        collectives.compare(messages)

    def _send_goodbyes(self) -> list[object]:
        """To whoever may wait for a message; what is returned must be kept until the connections are closed."""
        import torch

        message = torch.frombuffer(bytearray(goodbye(self.steps)), dtype=torch.uint8)
        sent: list[object] = [message]
        for tag, peers in self.expected_next.values():
            for peer in peers:
                with contextlib.suppress(RuntimeError):  # it is gone
                    sent.append(self.control.send([message], peer, tag))
        return sent

    def close_connections(self) -> None:
        """Leave the group without a word: the neighbours notice at once, and do the same."""
        for sign in self.life_signs:
            sign.release()
        self.life_signs.clear()
        self.under_way.clear()
        self.expected_next.clear()
        self.channels, self.calls = 0, 0
        self.sender.shutdown(wait=False, cancel_futures=True)
        self.sender = ThreadPoolExecutor(1, "dgt-sender")
        meeting.leave_groups(self.groups)
        gc.collect()  # the last reference closes the connections

    def ask(self, what: str) -> regroup.Question:
        """Something that the members of this network decide once, all alike."""
        key = f"network-{self.generation}/{what}"
        return regroup.Question(self.store, key, self.members, self.name, self._told_lost, self.timeout)

    def _told_lost(self) -> set[int]:
        """Nodes whose process the launcher has seen end; known at once on one host, and nowhere else."""
        if self.launcher_notes is None:
            return set()
        return {int(note.name[5:]) for note in self.launcher_notes.glob("lost-*")}.intersection(self.members)

    def raise_alarm(self, words: str) -> None:
        """Those who would go on without this node find out why they must not."""
        if self.size > 1:
            self.store.set(regroup.ALARM, words)

    def reunite(self, iteration: int) -> int:
        """Agree with the ranks that are left on who they are; returns the iteration to go on from.

        All of them have closed the connections of the old group. The furthest of their iterations counts; where one of
        them has heard of a stop, all stop there.
        """
        notices = self.notices
        stop = bool(notices.stop_asked) or notices.stop_at != NEVER
        agreed = regroup.reunite(
            self.store, self.generation, self.members, self.name, iteration, stop, self._told_lost, 2 * self.timeout
        )
        rank = agreed.members.index(self.name)
        self.placement = dataclasses.replace(self.placement, rank=rank, size=len(agreed.members))
        self.members, self.generation, self.channels = agreed.members, self.generation + 1, 0
        notices.stop_at, notices.save_at = agreed.iteration if agreed.stop else NEVER, NEVER
        return agreed.iteration

    def meet_again(self) -> None:
        """Connect to the members that `reunite` has agreed on; `PeerError` if one of them is lost meanwhile."""
        regroup.muster(self.store, self.generation, self.members, self.name, self._told_lost, 2 * self.timeout)
        least, most = REJOIN_SECONDS
        try:
            self._meet_again(f"left-{self.generation}", max(least, min(self.timeout, most)))
        except RuntimeError as error:
            what = str(error).splitlines()[0][:120]
            raise PeerError(f"node {self.name}: could not connect to the nodes that are left ({what})") from None

    def renumber(self, rank: int) -> None:
        """Be another rank from here on. All ranks call it, before anything is exchanged; `join.settle` is next."""
        self.tell_launcher(MET, False)
        self.close_connections()
        self.placement = dataclasses.replace(self.placement, rank=rank)
        self._meet_again("renumbered", max(self.timeout, MEETING_SECONDS))
        self.tell_launcher(MET)

    def _meet_again(self, room: str, seconds: float) -> None:
        patience = timedelta(seconds=seconds)
        self.groups = meeting.join_group(meeting.prefixed(self.store, room), self.rank, self.size, patience)
        meeting.set_timeout(self.control, self.timeout)


def _is_complete(work: dist.Work) -> bool:
    """Whether it is within a moment; raises if it failed."""
    try:
        work.wait(timedelta(seconds=LOOK_SECONDS))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises what is wrong, unless it was completed a moment too late
    return True


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """The same memory, or a copy of a GPU's, as bytes."""
    import torch

    return values.cpu().reshape(-1).view(torch.uint8) if values.numel() else torch.empty(0, dtype=torch.uint8)
