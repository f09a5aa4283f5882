"""nccl over gloo, and stricter than either: what is posted to a communicator runs in order, one batch at a time.

There are no tags: messages between two ranks meet in the order in which they were posted, and must be of one size. A
wait only orders the stream; the host goes on. A batch without a partner waits until the group's own timeout, when the
watchdog ends the process. Buffers are filled with rubbish while they are received into, and sent as late as can be.
"""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.fake_cuda import host
from tests.fake_cuda.ledger import ledger, where
from tests.fake_cuda.tensors import FakeTensor, current

MOST_OPERATIONS = 256
SIZES, CONTENTS = 2**31 - 9, 2**31 - 8  # tags of the gloo group below, which carries nothing else
_comms: dict[int, Communicator] = {}
_flights: list[Flight] = []
_flights_lock = threading.Lock()
_awaited: list[Work] = []
"""What the stream waits for, and nobody has seen the end of."""
real: dict[str, Any] = {}


class Flight:
    """Memory that nccl works on, as far as the stream knows."""

    def __init__(self, memory: torch.Tensor, receives: bool) -> None:
        self.first, self.last, self.receives = *_extent(memory), receives

    def hurts(self, first: int, last: int, writes: bool) -> bool:
        return first < self.last and self.first < last and (self.receives or writes)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    length = 1 + sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (length * tensor.element_size() if tensor.numel() else 0)


def flying() -> bool:
    return bool(_flights)


def in_flight(tensor: torch.Tensor, writes: bool) -> str | None:
    """What nccl is doing with this memory, if the stream has not waited for that and may not touch it like this."""
    first, last = _extent(tensor)
    with _flights_lock:
        found = next((flight for flight in _flights if flight.hurts(first, last, writes)), None)
    return None if found is None else "receiving into" if found.receives else "sending"


def awaited() -> list[Work]:
    return list(_awaited)


def before_kernel() -> None:
    """Kernels run when they are called: here the host waits for what the stream waits for."""
    while _awaited:
        work = _awaited.pop(0)
        work.done.wait()
        work.deliver()


class Work:
    """A batch or a collective operation."""

    def __init__(self, words: str, flights: Sequence[Flight]) -> None:
        self.words, self.flights, self.since, self.ended = words, flights, time.monotonic(), 0.0
        self.done, self.aborted, self.asked = threading.Event(), False, False
        self.before = host.queued()
        self.received: list[tuple[torch.Tensor, torch.Tensor]] = []

    def end(self) -> None:
        self.ended = time.monotonic()
        self.done.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None and timeout.total_seconds() and not self.done.wait(timeout.total_seconds()):
            raise RuntimeError("nccl: the operation timed out")
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        with _flights_lock:
            for flight in self.flights:
                if flight in _flights:
                    _flights.remove(flight)
        _awaited.append(self)
        return True

    def is_completed(self) -> bool:
        if not self.done.is_set():
            self.asked = True
            return False
        if self.asked:
            ledger.syncs[f"{where()} message"] += 1
        self.asked = False
        host.seen(self.before)
        return True

    def deliver(self) -> None:
        for memory, content in self.received:
            if not bool((memory == host.RUBBISH).all()):
                ledger.fault(f"memory was written to while nccl received into it ({self.words})")
            memory.copy_(content)
        self.received = []


class Communicator:
    def __init__(self, group: Any, seconds: float) -> None:
        self.group, self.seconds, self.rank = group, seconds, dist.get_rank(group)
        self.open: list[Work] = []
        self.posted: list[str] = []
        self.ended = False
        self._queue: queue.Queue[tuple[Work, Callable[[Work], None]] | None] = queue.Queue()
        self._posting, self._draw = threading.Lock(), random.Random(self.rank)
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self._work, self._watch)]
        for thread in self.threads:
            thread.start()

    def post(self, words: str, flights: Sequence[Flight], job: Callable[[Work], None]) -> Work:
        before_kernel()  # nccl's stream waits for the stream
        if self.ended:
            raise RuntimeError("NCCL communicator was aborted")
        if not self._posting.acquire(blocking=False):
            ledger.fault(f"two threads post to one communicator at a time: {words}")
            self._posting.acquire()
        work = Work(words, flights)
        with _flights_lock:
            _flights.extend(flights)
        self.open.append(work)
        self.posted.append(words)
        self._queue.put((work, job))
        self._posting.release()
        return work

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            work, job = task
            if self._draw.random() < 0.3:
                time.sleep(self._draw.random() * 0.002)
            try:
                job(work)
            except Exception as error:  # a peer is gone: nccl's kernel does not notice, and waits
                if os.environ.get("FAKE_CUDA_DEBUG"):
                    print(f"fake nccl: {work.words}: {error}", file=sys.stderr, flush=True)
                return
            work.end()

    def _watch(self) -> None:
        while not self.ended:
            time.sleep(0.1)
            self.open = [work for work in self.open if not work.done.is_set()]
            for work in self.open:
                if time.monotonic() > work.since + self.seconds and not self.ended:
                    print(
                        f"[Rank {self.rank}] Watchdog caught collective operation timeout: {work.words}; to avoid data "
                        "inconsistency, we are taking the entire process down.", file=sys.stderr, flush=True,
                    )  # fmt: skip
                    os.abort()

    def close(self, aborts: bool) -> None:
        self.ended = True
        self._queue.put(None)
        if aborts:
            for work in self.open:
                work.aborted = True
                work.end()
        else:
            for thread in self.threads:
                thread.join(5)
            self.group = None  # what refers to it keeps gloo's threads into Python's shutdown


# ----------------------------------------------------------------------------------------- what stands in torch's place


def batch_isend_irecv(operations: list[Any]) -> list[Any]:
    communicator = _comms.get(id(operations[0].group))
    if communicator is None:
        return real["batch_isend_irecv"](operations)
    if len(operations) > MOST_OPERATIONS:
        ledger.fault(f"{len(operations)} operations in a batch")
    sends, receives = [], []
    before_kernel()
    for operation in operations:
        raw, is_send = _checked(operation.tensor), operation.op is dist.isend
        if (what := in_flight(raw, not is_send)) is not None:
            ledger.fault(f"a batch {'sends' if is_send else 'receives into'} memory that nccl is {what}")
        (sends if is_send else receives).append((operation.group_peer, raw))
    _refuse_overlaps(sends, receives)
    for _, raw in receives:
        raw.fill_(host.RUBBISH)
    flights = [Flight(raw, False) for _, raw in sends] + [Flight(raw, True) for _, raw in receives]
    words = ", ".join(
        f"{'to' if each.op is dist.isend else 'from'} {each.peer}: {each.tensor.numel() * each.tensor.element_size()}"
        for each in operations
    )
    return [communicator.post(words, flights, lambda work: _exchange(communicator, work, sends, receives))]


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor) or not tensor.is_contiguous():
        raise RuntimeError("nccl: tensors must be on a GPU, dense and contiguous")
    if tensor.place != current():
        ledger.fault(f"a tensor on {tensor.place} is posted while {current()} is the current device")
    return tensor.inner.view(-1).view(torch.uint8)


def _refuse_overlaps(sends: Iterable[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]) -> None:
    for number, (_, raw) in enumerate(receives):
        others = [each for _, each in [*sends, *receives[:number]]]
        if any(Flight(raw, True).hurts(*_extent(other), True) for other in others):
            ledger.fault("a batch receives into memory that it uses for something else")


def _exchange(communicator: Communicator, work: Work, sends: Any, receives: Any) -> None:
    """Sizes first, then contents; all operations of a batch at a time."""
    group = communicator.group
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in receives]
    coming = [group.recv([size], peer, SIZES) for size, (peer, _) in zip(sizes, receives, strict=True)]
    own = [torch.tensor([raw.numel()]) for _, raw in sends]
    going = [group.send([size], peer, SIZES) for size, (peer, _) in zip(own, sends, strict=True)]
    for each in [*coming, *going]:
        each.wait()
    for size, (peer, raw) in zip(sizes, receives, strict=True):
        if int(size) != raw.numel():
            ledger.fault(f"rank {communicator.rank} receives {raw.numel()} bytes from {peer}, which sends {int(size)}")
            raise RuntimeError("sizes differ: nccl hangs, or damages memory")
    contents = [torch.empty_like(raw) for _, raw in receives]
    coming = [group.recv([content], peer, CONTENTS) for content, (peer, _) in zip(contents, receives, strict=True)]
    going = [group.send([raw.clone()], peer, CONTENTS) for peer, raw in sends]
    for each in [*coming, *going]:
        each.wait()
    work.received = [(raw, content) for (_, raw), content in zip(receives, contents, strict=True)]


def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    communicator = _comms.get(id(group))
    if communicator is None:
        return real["all_reduce"](tensor, op=op, group=group, async_op=async_op)
    raw = _checked(tensor)
    inner = tensor.inner  # type: ignore[attr-defined]

    def job(work: Work) -> None:
        total = inner.clone()
        communicator.group.allreduce([total]).wait()
        work.received = [(raw, total.view(-1).view(torch.uint8))]
        raw.fill_(host.RUBBISH)

    work = communicator.post(f"all_reduce of {inner.numel()}", [Flight(inner, True)], job)
    if async_op:
        return work
    work.wait()
    return None


def barrier(group: Any = None, **options: Any) -> Any:
    communicator = _comms.get(id(group))
    if communicator is None:
        return real["barrier"](group=group, **options)
    work = communicator.post("barrier", [], lambda work: communicator.group.barrier().wait())
    work.wait()
    before_kernel()
    return None


def new_group(*args: Any, **kwargs: Any) -> Any:
    if kwargs.get("backend") != "nccl":
        return real["new_group"](*args, **kwargs)
    device, timeout = kwargs.pop("device_id", None), kwargs.get("timeout")
    if device is None or device.index is None:
        ledger.fault("an nccl group without the index of its device")
    group = real["new_group"](*args, **{**kwargs, "backend": "gloo"})
    # the watchdog is to come before gloo's own timeout
    (getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout)(timedelta(hours=1), group)
    _comms[id(group)] = Communicator(group, timeout.total_seconds() if timeout else 600.0)
    return group


def destroy_process_group(group: Any = None) -> None:
    for key, communicator in list(_comms.items()):
        if group is None or communicator.group is group:
            communicator.close(aborts=False)
            del _comms[key]
    return real["destroy_process_group"](group)


def abort(group: Any) -> None:
    if (communicator := _comms.pop(id(group), None)) is not None:
        communicator.close(aborts=True)
    elif "abort" in real:
        real["abort"](group)


def communicators() -> list[Communicator]:
    return list(_comms.values())


def install() -> None:
    for stand_in in (batch_isend_irecv, all_reduce, barrier, new_group, destroy_process_group):
        real[stand_in.__name__] = getattr(dist, stand_in.__name__)
        setattr(dist, stand_in.__name__, stand_in)
    if hasattr(dist.ProcessGroup, "abort"):
        real["abort"] = dist.ProcessGroup.abort
    dist.ProcessGroup.abort = abort  # type: ignore[method-assign]
