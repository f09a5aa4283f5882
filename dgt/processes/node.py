"""This process as a member of the network: its number, its device, and how it reaches all others at once."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dgt import meeting
from dgt.notices import NEVER, Notices, PeerError, absence
from dgt.placement import Placement

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch
    import torch.distributed as dist

MEETING_SECONDS = 300.0


class Exchange(Protocol):
    """Messages under way. A node holds on to them, whatever becomes of the optimizer that sent them: a receive that is
    dropped leaves its message in the connection, and everything sent behind it is stuck."""

    def receive_rest(self) -> None: ...

    def finish(self) -> None: ...


class LifeSign(Protocol):
    """What neighbours look at to see whether a rank lives."""

    def release(self) -> None: ...


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
    channels: int = 0
    notices: Notices = field(default_factory=Notices)
    tamper: Callable[[str, Any, int], torch.Tensor] | None = None
    """Called with every message before it leaves, returns what is sent: `training/chaos.py` rehearses damage."""
    life_signs: weakref.WeakSet[LifeSign] = field(default_factory=weakref.WeakSet)
    """Taken down when this node turns away from the network, so that neighbours notice at once."""
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
        """From here on SIGTERM and SIGUSR1 ask all ranks to stop at one step, `optimizer.stop_now`."""

        def ask(number: int, frame: object) -> None:
            self.notices.stop_asked = number

        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, ask)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor, stacked: [size, ...]. Start-up and evaluations only."""
        import torch
        import torch.distributed as dist

        values = values.contiguous()
        rows = [torch.empty_like(values) for _ in range(self.size)]
        with self._patience():
            dist.all_gather(rows, values, group=self.control)
        return torch.stack(rows)

    def collect(self, values: torch.Tensor) -> torch.Tensor | None:
        """Every rank's CPU tensor, stacked, on rank 0; None elsewhere. Does not wait for the others."""
        import torch
        import torch.distributed as dist

        rows = [torch.empty_like(values) for _ in range(self.size)] if self.is_main else None
        with self._patience():
            dist.gather(values.contiguous(), rows, dst=0, group=self.control)
        return None if rows is None else torch.stack(rows)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place. Start-up, evaluations and the allreduce baseline only."""
        import torch.distributed as dist

        group = self.data if values.is_cuda and self.backend == "nccl" else self.control
        with self._patience():
            dist.all_reduce(values, group=group)
        return values

    def barrier(self) -> None:
        import torch

        self.sum(torch.zeros(1))

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            what = absence(error, self.timeout)
            time.sleep(0.3)  # its neighbours know which one it is: let them speak first
            raise PeerError(f"node {self.name}: another rank {what}") from error

    def turn_away(self) -> None:
        """Leave the group without a word: the neighbours notice at once, and do the same."""
        import torch.distributed as dist

        for sign in self.life_signs:
            sign.release()
        self.life_signs.clear()
        self.under_way.clear()
        self.sender.shutdown(wait=False, cancel_futures=True)
        self.sender = ThreadPoolExecutor(1, "dgt-sender")
        self.groups.clear()
        dist.destroy_process_group()
        gc.collect()  # the last reference closes the connections

    def miss_nobody(self) -> None:
        """Raise if the launcher has seen another member end."""
        missing = self._told_lost()
        if missing:
            raise PeerError(f"node {self.name}: node {min(missing)} is gone")

    def _told_lost(self) -> set[int]:
        """Nodes whose process the launcher has seen end; known at once on one host, and nowhere else."""
        if self.launcher_notes is None:
            return set()
        return {name for name in self.members if (self.launcher_notes / f"lost-{name}").exists()}

    def raise_alarm(self, words: str) -> None:
        """Those who would go on without this node find out why they must not."""
        if self.size > 1:
            self.store.set(meeting.ALARM, words)

    def reunite(self, iteration: int) -> tuple[list[int], int]:
        """Meet the ranks that are left; returns the ranks they had, and the iteration to go on from.

        All of them have turned away from the old group. The furthest of their iterations counts.
        """
        names, first = meeting.reunion(
            self.store, self.members, self.name, iteration, self._told_lost, 2 * self.timeout
        )
        kept = [self.members.index(name) for name in names]
        self.placement = dataclasses.replace(self.placement, rank=names.index(self.name), size=len(names))
        self.members = names
        self._meet_again("-".join(["left", *map(str, names)]))
        self.channels, self.notices.stop_at, self.notices.save_at = 0, NEVER, NEVER
        return kept, first

    def renumber(self, rank: int) -> None:
        """Be another rank from here on. All ranks call it, before anything is exchanged; `world.settle` is next."""
        self.turn_away()
        self.placement = dataclasses.replace(self.placement, rank=rank)
        self._meet_again("renumbered")

    def _meet_again(self, room: str) -> None:
        patience = timedelta(seconds=max(self.timeout, MEETING_SECONDS))
        self.groups = meeting.join_group(meeting.room(self.store, room), self.rank, self.size, patience)
        meeting.set_timeout(self.control, self.timeout)
