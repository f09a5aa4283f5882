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
from collections.abc import Callable, Iterator, Sequence
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
# least and most time for ranks that are all alive to connect again, doubled after each failure: gloo takes STALL times
# as long where one of them dies meanwhile
RECONNECT_SECONDS, STALL = (2.0, 30.0), 5
# names of files that a rank writes for dgt's own launcher: it has connected to all others; it saves when asked to stop
CONNECTED, STOPS_ON_SIGNALS = "connected", "stops"
SAME_SECONDS = 1.0  # one Ctrl-C may arrive twice, from the terminal and from a launcher


def lost_note(name: int, attempt: int) -> str:
    """The file by which dgt's own launcher says that the process of a node, started again so often, has ended."""
    return f"lost-{name}.{attempt}"


def returns_note(name: int) -> str:
    """The file by which dgt's own launcher says that it starts a lost node again."""
    return f"returns-{name}"


def start_note(name: int) -> str:
    """The file that asks dgt's own launcher to start a process for a node."""
    return f"start-{name}"


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
    """How often the members have changed and connected again; part of the store's keys, which are never reused."""
    nodes: int = 0
    """Nodes of the whole network, those that are away included."""
    attempts: dict[int, int] = field(default_factory=dict)
    """How often the process of a node was started again, of the nodes where it was."""
    is_new: bool = False
    """This process takes the place of a lost one: it is alone until `change_members`, and then needs parameters."""
    parted: bool = False
    """All members have agreed that the run is over: a rank that fails from here on changes nothing."""
    channels: int = 0
    _failed_to_connect: int = 0
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

    def leave_on_signal(self) -> None:
        """From here on SIGUSR2 asks this node to leave the others, who then go on without it."""

        def handle(number: int, frame: object) -> None:
            self.notices.leave_asked = True

        self.handlers.setdefault(signal.SIGUSR2, signal.signal(signal.SIGUSR2, handle))

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

    def ask_launcher_to_start(self, name: int) -> None:
        """Have dgt's own launcher start a process for a node that has left, or was lost for good."""
        if self.launcher_notes is not None:
            (self.launcher_notes / start_note(name)).touch()

    def _lost_to_launcher(self) -> set[int]:
        """Members whose process dgt's launcher has reaped; always empty under other launchers."""
        return {name for name in self.members if self._is_lost(name, self.attempts.get(name, 0))}

    def _is_lost(self, name: int, attempt: int) -> bool:
        return self.launcher_notes is not None and (self.launcher_notes / lost_note(name, attempt)).exists()

    # ---------------------------------------------------------------------------------------------------------- leaving

    def steps_at_leaving(self, name: int) -> int | None:
        """How many steps node `name` had made when it left without an error; None if it has not."""
        left = peer_status.find_departure(self.store, self.generation, name)
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

    def who_asks_to_join(self) -> dict[int, int]:
        """Nodes whose process was started again and is ready to be taken in, and how often it was."""
        known = {name: self.attempts.get(name, 0) for name in range(self.nodes)}
        asking = regroup.who_asks_to_join(self.store, self.name, [name for name in known if name not in self.members])
        return {name: tries for name, tries in asking.items() if tries > known[name] and not self._is_lost(name, tries)}

    def wait_for_newcomers(self) -> bool:
        """Wait until a node can be taken in, or another is lost; False where none is started again, or all are to stop.

        For a network that has fallen apart until some come back; all ranks call it, and then `change_members`.
        """
        while not self.who_asks_to_join() and not self._lost_to_launcher():
            if regroup.has_begun(self.store, self.generation, self.members, self.name):
                break
            if self.notices.stop_asked or not any(map(self._returns, set(range(self.nodes)) - set(self.members))):
                return False
            time.sleep(regroup.POLL_SECONDS)
        return True

    def _returns(self, name: int) -> bool:
        return self.launcher_notes is not None and (self.launcher_notes / returns_note(name)).exists()

    def change_members(self, iteration: int, leaving: Sequence[int] = ()) -> regroup.Members:
        """Agree with the ranks that are left on who makes up the network from here on, and at which iteration.

        All of them have closed their connections before. The largest of their iterations is taken; if one of them has
        received a stop, all stop there. A new node waits until they take it in. With several ranks per node a node is
        left if all of its ranks are.

        leaving   nodes that this one knows to leave on purpose
        """
        if self.whole is not None:
            return self._agree_on_whole_nodes(self.whole, iteration)
        notices = self.notices
        stop = bool(notices.stop_asked) or notices.stop_at != NEVER
        if self.is_new and self.members == [self.name]:
            regroup.ask_to_join(self.store, self.name, self.attempts[self.name])
            self.generation, agreed = regroup.wait_to_be_taken_in(self.store, self.name, self.attempts[self.name])
            self.write_launcher_note(CONNECTED)
        else:
            agreed = regroup.agree_on_members(
                self.store,
                self.generation,
                {name: self.attempts.get(name, 0) for name in self.members},
                self.name,
                regroup.Standing(iteration, stop, self.is_new, tuple(leaving)),
                self._lost_to_launcher,
                2 * max(self.timeout, STALL * self._reconnect_seconds),
                self.who_asks_to_join,
            )
        self.attempts |= dict(zip(agreed.members, agreed.attempts, strict=True))
        self.generation, self.channels = self.generation + 1, 0
        if self.name in agreed.leaving:
            self.members = [self.name]  # alone, and silent
            self._set_placement(dataclasses.replace(self.placement, rank=0, size=1), speaks=False)
            return agreed
        rank, self.members = agreed.members.index(self.name), agreed.members
        self._set_placement(dataclasses.replace(self.placement, rank=rank, size=len(agreed.members)))
        notices.stop_at, notices.save_at = agreed.iteration if agreed.stop else NEVER, NEVER
        return agreed

    @property
    def _reconnect_seconds(self) -> float:
        least, most = RECONNECT_SECONDS
        return min(most, least * 2**self._failed_to_connect)

    def _agree_on_whole_nodes(self, world: Node, iteration: int) -> regroup.Members:
        """The same among all ranks; those of a node that has lost one of them raise `TrainingError`."""
        agreed, ranks = world.change_members(iteration), self.local.size
        before = [(node, 0) for node in self.members]
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
        return regroup.Members(left, agreed.iteration, agreed.stop, [0] * len(left), before=before)

    def reconnect(self) -> None:
        """Connect to the members that `change_members` found; `PeerError` if one of them is lost meanwhile."""
        if self.whole is not None:
            self.whole.reconnect()
            self.divide_again()
            return
        regroup.wait_until_ready(
            self.store, self.generation, self.members, self.name, self._lost_to_launcher, 2 * self.timeout
        )
        try:
            self._connect(f"left-{self.generation}", self._reconnect_seconds)
            self._failed_to_connect = 0
        except RuntimeError as error:
            self._failed_to_connect += 1
            what = str(error).splitlines()[0][:120]
            raise PeerError(f"node {self.name}: could not connect to the other nodes ({what})") from None

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

    def _set_placement(self, placement: Placement, speaks: bool = True) -> None:
        self.placement = placement
        output.rank_changed(self.is_main and speaks)

    def _connect(self, prefix: str, seconds: float) -> None:
        """New process groups, over keys of the store that begin with `prefix`."""
        patience = timedelta(seconds=seconds)
        self.groups = rendezvous.init_groups(rendezvous.prefixed(self.store, prefix), self.rank, self.size, patience)
        rendezvous.set_timeout(self.control, self.timeout)


def _deprecated(what: str, instead: str) -> None:
    warnings.warn(f"{what} deprecated: use {instead}", DeprecationWarning, stacklevel=3)
