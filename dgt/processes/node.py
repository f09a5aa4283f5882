"""`Node`: this process as a member of the network, with its rank, its device and its collective operations.

`dgt.join()` makes one. Its operations are in `collectives`, leaving without an error in `leaving`, and what the ranks
that are left after a loss agree on in `regroup`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dgt.errors import PeerError, TrainingError
from dgt.processes import collectives, output, patience, peer_status, regroup, rendezvous
from dgt.processes.local import Local
from dgt.processes.notices import NEVER, Notices
from dgt.processes.placement import Placement

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch
    import torch.distributed as dist

RENDEZVOUS_SECONDS = 300.0  # least time for ranks to start and connect
RECONNECT_SECONDS = (5.0, 30.0)  # least and most time for ranks that are all alive to connect again
# names of files that a rank writes for dgt's own launcher: it has connected to all others; it saves when asked to stop
CONNECTED, STOPS_ON_SIGNALS = "connected", "stops"
SAME_SECONDS = 1.0  # one Ctrl-C may arrive twice, from the terminal and from a launcher


class Exchange(Protocol):
    """Messages that were sent or are being received.

    A node keeps them until they are complete, also after their optimizer is deleted: a gloo receive that is dropped
    leaves its message in the connection, in front of all later ones.
    """

    def receive_rest(self) -> None:
        """Receive what is still to come."""

    def finish(self) -> None:
        """Wait until what was sent has left."""

    def abandon(self) -> None:
        """Give up what has not left: the connections are closed next, which handles would keep open."""


class Receiver(Protocol):
    """Receives that are posted before their messages are wanted; some wait for messages that never come."""

    def withdraw(self) -> None:
        """The connections are closed next: drop the handles, which would keep them open."""


class LifeSign(Protocol):
    """Something in shared memory by which neighbours on the same host see whether this rank lives."""

    def release(self) -> None:
        """This rank has failed."""

    def leave(self, steps: int) -> None:
        """This rank has left after so many steps, without an error."""


@dataclass(slots=True)
class Node:
    """This process as a member of the network; made by `dgt.join()`.

    rank, size   the number of this node and how many there are; with one rank per node, this process's rank and the
                 number of ranks
    local        the ranks of this node: `node.local.rank`, `node.local.size`, collective operations among them
    world        all ranks of all nodes, likewise; with one rank per node, this object itself
    device       where this rank's model and data belong
    backend      gloo or nccl, for messages between neighbours
    is_main      whether this is rank 0 of all ranks
    timeout      seconds to wait for another rank before `PeerError`

    Collective operations bring together one value per node: with several ranks per node, those of the ranks that have
    the same `local.rank`.
    """

    placement: Placement
    device: torch.device
    backend: str
    timeout: float
    groups: dict[str, dist.ProcessGroup]
    """`control`, a gloo group for CPU tensors, and `data`, for messages between neighbours; empty after leaving."""
    store: dist.Store
    """The rendezvous store; after a loss the remaining ranks use it to find each other again."""
    members: list[int]
    """The node that each rank is: [0, 1, 2, ...] until some are lost, then without those."""
    launcher_notes: Path | None = None
    """The directory through which dgt's own launcher and its ranks exchange files; None under other launchers."""
    generation: int = 0
    """How often ranks were lost and the rest connected again; part of the store's keys, which are never reused."""
    parted: bool = False
    """All members have agreed that the run is over: a rank that fails from here on changes nothing."""
    channels: int = 0
    steps: int = 0
    """Steps that this node's optimizer has made."""
    calls: int = 0
    """Collective operations that this rank has begun."""
    doing: str = ""
    """What the current collective operations are part of, for error messages; see `during`."""
    expected_next: dict[int | tuple[int, int], tuple[int, list[int]]] = field(default_factory=dict)
    """By channel, on a schedule by channel and rank: the tag of this node's next message, and the ranks that may
    wait for it outside shared memory."""
    handlers: dict[int, Any] = field(default_factory=dict)
    """The signal handlers that `stop_on_signals` replaced."""
    notices: Notices = field(default_factory=Notices)
    tamper: Callable[[str, Any, int], torch.Tensor] | None = None
    """Called with every message before it is sent, returns what is sent: fault injection of `training/chaos.py`."""
    life_signs: weakref.WeakSet[LifeSign] = field(default_factory=weakref.WeakSet)
    """Released when this node closes its connections, so that neighbours notice without waiting for a timeout."""
    before_leaving: list[Callable[[], None]] = field(default_factory=list)
    """Called when this node leaves without an error, before its connections are closed."""
    under_way: set[Exchange] = field(default_factory=set)
    """Messages that are not complete yet."""
    local: Local = field(default_factory=Local)
    whole: Node | None = None
    """All ranks, where this is one rank of each node, or the ranks of one node; None where this is all of them."""
    gpu_of_rank: list[int] = field(default_factory=list)
    """Of all ranks: a number per GPU, `NO_GPU` for none."""
    scopes: list[Node] = field(default_factory=list)
    """Of all ranks: the other nodes, and the ranks of this one (`grouping`)."""
    divide_again: Callable[[], None] = field(default=lambda: None)
    """Where there is a `whole` that has connected again: make the groups of this scope anew."""
    called: str = "node"
    """What a member is called in messages: a node, or a rank."""
    receivers: weakref.WeakSet[Receiver] = field(default_factory=weakref.WeakSet)
    """Withdrawn before connections are closed; an optimizer that is deleted takes its own along."""
    probes: dict[int, Any] = field(default_factory=dict)
    """By rank, a message that nobody receives (`patience.find_lost`)."""
    sender: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "dgt-sender"))
    """One thread, started at its first use, so that messages leave in the order in which they were posted."""

    # ------------------------------------------------------------------------------------------------------ who this is

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
        """The number of this node at the start of the run, which it keeps when ranks change after a loss."""
        return self.members[self.rank]

    @property
    def world(self) -> Node:
        """All ranks."""
        return self if self.whole is None else self.whole

    @property
    def title(self) -> str:
        """This member in messages: 'node 3'."""
        return f"{self.called} {self.name}"

    @property
    def is_main(self) -> bool:
        return self.world.rank == 0

    def open_channel(self) -> int:
        """The number of a new sequence of messages; all ranks open theirs in the same order."""
        self.channels += 1
        return self.channels - 1

    # -------------------------------------------------------------------------------------------- collective operations

    def all_gather(self, values: Any) -> torch.Tensor:
        """Every rank's values, stacked [size, ...], on all ranks; all ranks call it. Not meant for every step.

        values   a number, a list of numbers, an array or a tensor, of the same shape and dtype on all ranks
        """
        return collectives.all_gather(self, values)

    def gather(self, values: Any, dst: int | None = None) -> torch.Tensor | None:
        """Every rank's values, stacked [size, ...] on the CPU, on rank `dst` and None elsewhere; all ranks call it.

        values   a number, a list of numbers, an array or a tensor, of the same shape and dtype on all ranks
        dst      the rank that receives them; without it the call is `all_gather`, which is deprecated
        """
        if dst is None:
            _deprecated("node.gather(values) without dst is", "node.all_gather(values)")
            return self.all_gather(values)
        return collectives.gather(self, values, dst)

    def all_reduce(self, values: Any, compared: bool = True) -> torch.Tensor:
        """The sum over all ranks, on all ranks; in place if `values` is a tensor.

        values     a number, a list of numbers, an array or a tensor, of the same shape and dtype on all ranks
        compared   exchange the header that finds ranks in different operations; without it one message less per call,
                   for sums at every step whose first was compared
        """
        return collectives.all_reduce(self, values, compared)

    def barrier(self) -> None:
        """Wait until all ranks are in this call."""
        collectives.barrier(self)

    def collect(self, values: torch.Tensor) -> torch.Tensor | None:
        """Deprecated: `gather(values, dst=0)`."""
        _deprecated("node.collect is", "node.gather(values, dst=0)")
        return self.gather(values, dst=0)

    def sum(self, values: Any, compared: bool = True) -> torch.Tensor:
        """Deprecated: `all_reduce(values)`."""
        _deprecated("node.sum is", "node.all_reduce(values)")
        return self.all_reduce(values, compared)

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Name what the collective operations inside belong to, in the error when ranks are in different ones."""
        before, self.doing = self.doing, f"{self.doing}: {what}" if self.doing else what
        try:
            yield
        finally:
            self.doing = before

    # ----------------------------------------------------------------------------------------- signals and the launcher

    def stop_on_signals(self) -> None:
        """From here on SIGTERM, SIGUSR1 and Ctrl-C set a request to stop: `optimizer.stop_now` is True at one and the
        same step on all ranks. A second Ctrl-C ends the process at once."""
        interrupted = 0.0

        def handle(number: int, frame: object) -> None:
            nonlocal interrupted
            if number == signal.SIGINT:
                if interrupted and time.monotonic() > interrupted + SAME_SECONDS:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                    signal.raise_signal(signal.SIGINT)
                interrupted = interrupted or time.monotonic()
            self.notices.stop_asked = self.notices.stop_asked or number

        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            before = signal.signal(number, handle)
            self.handlers.setdefault(number, before)
        self.write_launcher_note(STOPS_ON_SIGNALS)

    def restore_signals(self) -> None:
        """Undo `stop_on_signals`: no step follows that would check `optimizer.stop_now`."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers.clear()

    def write_launcher_note(self, what: str, exists: bool = True) -> None:
        """Create the file WHAT-PID for dgt's own launcher, or remove it."""
        if self.launcher_notes is not None:
            note = self.launcher_notes / f"{what}-{os.getpid()}"
            with contextlib.suppress(OSError):
                note.touch() if exists else note.unlink(missing_ok=True)

    def _lost_to_launcher(self) -> set[int]:
        """Members whose process dgt's launcher has reaped; always empty under other launchers."""
        if self.launcher_notes is None:
            return set()
        return {int(note.name[5:]) for note in self.launcher_notes.glob("lost-*")}.intersection(self.members)

    # ---------------------------------------------------------------------------------------------------------- leaving

    def steps_at_leaving(self, name: int) -> int | None:
        """How many steps node `name` had made when it left without an error; None if it has not."""
        left = peer_status.find_departure(self.store, self.members, name)
        return left.steps if left is not None else None

    def close_connections(self) -> None:
        """Destroy the process groups after an error: the neighbours' receives fail at once, and they do the same."""
        for scope in [*self.world.scopes, self.world]:
            patience.abort(scope.groups)
            scope.give_up_messages()
            rendezvous.destroy_groups(scope.groups)
        gc.collect()  # gloo closes a connection when the last reference to its group is gone
        self.world.scopes.clear()

    def give_up_messages(self) -> None:
        """The connections are closed next."""
        for sign in self.life_signs:
            sign.release()
        self.life_signs.clear()
        for exchange in self.under_way:
            exchange.abandon()
        self.under_way.clear()
        self.withdraw_receives()
        self.expected_next.clear()
        self.channels, self.calls = 0, 0
        self.sender.shutdown(wait=False, cancel_futures=True)
        self.sender = ThreadPoolExecutor(1, "dgt-sender")

    def withdraw_receives(self) -> None:
        """Before the process groups are destroyed: give up all receives, whose handles keep connections open."""
        self.probes.clear()
        for receiver in list(self.receivers):
            receiver.withdraw()

    # ------------------------------------------------------------------------------------------ other ranks than before

    def ask(self, what: str) -> regroup.Question:
        """A question, named `what`, that the members of this network answer once and all alike."""
        if self.whole is not None:
            return self.whole.ask(what)
        key = f"network-{self.generation}/{what}"
        return regroup.Question(self.store, key, self.members, self.name, self._lost_to_launcher, self.timeout)

    def raise_alarm(self, words: str) -> None:
        """Publish why the run must end: ranks that would go on without this node raise the same error."""
        if self.world.size > 1:
            self.world.store.set(regroup.ALARM, words)

    def agree_on_survivors(self, iteration: int) -> int:
        """Agree with the ranks that are left on who they are; returns the iteration to go on from.

        All of them have closed their connections before. The largest of their iterations is taken; if one of them has
        received a stop, all stop there. With several ranks per node a node is left if all of its ranks are.
        """
        if self.whole is not None:
            return self._agree_on_whole_nodes(self.whole, iteration)
        notices = self.notices
        stop = bool(notices.stop_asked) or notices.stop_at != NEVER
        agreed = regroup.agree_on_survivors(
            self.store,
            self.generation,
            self.members,
            self.name,
            iteration,
            stop,
            self._lost_to_launcher,
            2 * self.timeout,
        )
        rank = agreed.members.index(self.name)
        self._set_placement(dataclasses.replace(self.placement, rank=rank, size=len(agreed.members)))
        self.members, self.generation, self.channels = agreed.members, self.generation + 1, 0
        notices.stop_at, notices.save_at = agreed.iteration if agreed.stop else NEVER, NEVER
        return agreed.iteration

    def _agree_on_whole_nodes(self, world: Node, iteration: int) -> int:
        """The same among all ranks; those of a node that has lost one of them raise `TrainingError`."""
        iteration, ranks = world.agree_on_survivors(iteration), self.local.size
        of_node = {node: range(node * ranks, (node + 1) * ranks) for node in self.members}
        left = [node for node, its in of_node.items() if set(its) <= set(world.members)]
        if self.name not in left:
            gone = next(rank for rank in of_node[self.name] if rank not in world.members)
            raise TrainingError(f"node {self.name}: rank {gone} is gone, and the node with it")
        own = world.name
        world.members = [rank for node in left for rank in of_node[node]]
        place = dataclasses.replace(world.placement, rank=world.members.index(own), size=len(world.members))
        world._set_placement(place)
        self.members, self.placement = left, dataclasses.replace(place, rank=left.index(self.name), size=len(left))
        return iteration

    def reconnect(self) -> None:
        """Connect to the members that `agree_on_survivors` found; `PeerError` if one of them is lost meanwhile."""
        if self.whole is not None:
            self.whole.reconnect()
            self.divide_again()
            return
        regroup.wait_until_ready(
            self.store, self.generation, self.members, self.name, self._lost_to_launcher, 2 * self.timeout
        )
        least, most = RECONNECT_SECONDS
        try:
            self._connect(f"left-{self.generation}", max(least, min(self.timeout, most)))
        except RuntimeError as error:
            what = str(error).splitlines()[0][:120]
            raise PeerError(f"node {self.name}: could not connect to the nodes that are left ({what})") from None

    def move(self, placement: Placement, prefix: str, between: Callable[[], None] = lambda: None) -> None:
        """Connect again with this placement, over keys of the store that begin with `prefix`; all ranks call it.

        `between` is called when the old connections are closed and the new ones not yet made.
        """
        self.write_launcher_note(CONNECTED, False)
        self.close_connections()
        self._set_placement(placement)
        between()
        self._connect(prefix, max(self.timeout, RENDEZVOUS_SECONDS))
        self.write_launcher_note(CONNECTED)

    def _set_placement(self, placement: Placement) -> None:
        self.placement = placement
        output.rank_changed(self.is_main)

    def _connect(self, prefix: str, seconds: float) -> None:
        """New process groups, over keys of the store that begin with `prefix`."""
        patience = timedelta(seconds=seconds)
        self.groups = rendezvous.init_groups(rendezvous.prefixed(self.store, prefix), self.rank, self.size, patience)
        rendezvous.set_timeout(self.control, self.timeout)


def _deprecated(what: str, instead: str) -> None:
    warnings.warn(f"{what} deprecated: use {instead}", DeprecationWarning, stacklevel=3)
