"""Collective operations on a node's control group, named as in `torch.distributed`; `Node` has a method for each.

Every operation first exchanges the header of `call_header`, so that ranks in different operations raise an error that
names both in place of waiting for each other. Errors of gloo about missing ranks become `PeerError`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dgt.config.checks import check_range
from dgt.errors import PeerError, TrainingError
from dgt.processes import call_header, patience, peer_status
from dgt.processes.notices import Absence, absence, has_left
from dgt.processes.peer_status import Position

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch
    import torch.distributed as dist

    from dgt.processes.node import Node

POLL_SECONDS = 1.0  # how often a rank that waits in an operation checks whether others have left
ONLY_MAIN = "`if node.is_main:`"
ALL_MUST = f"all ranks must make this call, outside of {ONLY_MAIN}"


def all_gather(node: Node, values: Any) -> torch.Tensor:
    """Every rank's values, stacked [size, ...], on all ranks."""
    own = call_header.as_tensor("all_gather", values)
    call, raw = begin(node, "all_gather", own), _bytes(own)
    headers = compare_headers(node, call, raw)
    if raw.numel() <= call_header.ROOM:
        rows = call_header.values_in(headers, raw.numel())
    else:
        with peer_errors(node, call):
            rows = all_gather_bytes(node, raw)
    return rows.view(own.dtype).view(node.size, *own.shape).to(own.device)


def gather(node: Node, values: Any, dst: int) -> torch.Tensor | None:
    """Every rank's values, stacked [size, ...] on the CPU, on rank `dst`; None elsewhere, where it does not block."""
    check_range("dst", dst, 0, node.size - 1)
    own = call_header.as_tensor("gather", values)
    call, raw = begin(node, "gather", own), _bytes(own)
    with peer_errors(node, call):
        rows = _gather_bytes(node, call_header.pack(call, values=raw), dst)
        if rows is not None:
            call_header.compare(rows)
        if raw.numel() <= call_header.ROOM:
            rows = None if rows is None else call_header.values_in(rows, raw.numel())
        else:
            rows = _gather_bytes(node, raw, dst)
    return None if rows is None else rows.view(own.dtype).view(node.size, *own.shape)


def all_reduce(node: Node, values: Any, compared: bool) -> torch.Tensor:
    """The sum over all ranks, in place if `values` is a tensor; without `compared` no header is exchanged."""
    import torch
    import torch.distributed as dist

    values = values if isinstance(values, torch.Tensor) else call_header.as_tensor("all_reduce", values)
    call = begin(node, "all_reduce", values)
    if compared:
        compare_headers(node, call)
    run(node, call, values, lambda group: dist.all_reduce(values, group=group, async_op=True))
    return values


def complete(
    node: Node, name: str, values: torch.Tensor, start: Callable[[dist.ProcessGroup], dist.Work | None]
) -> None:
    """An operation `name` of every step, started on the group for these values; no header is exchanged."""
    run(node, begin(node, name, values), values, start)


def run(node: Node, call: str, values: torch.Tensor, start: Callable[[dist.ProcessGroup], dist.Work | None]) -> None:
    """Start the operation on the group for these values, and wait until it is complete, or in order on its stream."""
    nccl = values.is_cuda and node.backend == "nccl"
    with peer_errors(node, call):
        work = start(node.data if nccl else node.control)
        assert work is not None, "this rank is in the group"
        if nccl:
            _wait_on_gpu(node, work)
        else:
            wait(node, work)


def barrier(node: Node) -> None:
    """Return once all ranks are in this call."""
    compare_headers(node, begin(node, "barrier"))


def all_gather_bytes(node: Node, raw: torch.Tensor) -> torch.Tensor:
    """Every rank's bytes [size, n], without a header: n must be known to be the same on all ranks."""
    import torch
    import torch.distributed as dist

    rows = torch.empty(node.size, raw.numel(), dtype=torch.uint8)
    wait(node, dist.all_gather(list(rows.unbind()), raw, group=node.control, async_op=True))
    return rows


def _gather_bytes(node: Node, raw: torch.Tensor, dst: int) -> torch.Tensor | None:
    import torch
    import torch.distributed as dist

    rows = torch.empty(node.size, raw.numel(), dtype=torch.uint8) if node.rank == dst else None
    main = dist.get_global_rank(node.control, dst)  # `dst` is one of all ranks
    dist.gather(raw, None if rows is None else list(rows.unbind()), dst=main, group=node.control)
    return rows


def begin(node: Node, name: str, values: torch.Tensor | None = None) -> str:
    """Count the operation; returns the text of its header: what it is part of (`Node.during`), name, shape, dtype."""
    node.calls += 1
    call = name if values is None else f"{name} of {call_header.described(values)}"
    return f"{node.doing}: {call}" if node.doing else call


def compare_headers(node: Node, call: str, raw: torch.Tensor | None = None) -> torch.Tensor:
    """All ranks' headers [size, SIZE]; raises `SharedError` on every rank if they are in different operations."""
    with peer_errors(node, call):
        headers = all_gather_bytes(node, call_header.pack(call, values=raw))
    call_header.compare(headers)
    return headers


def wait(node: Node, work: dist.Work) -> None:
    """Wait for an operation of gloo; raise if a rank that has left the network is needed to complete it."""
    while not is_complete(work):
        _refuse_departed(node)


def _refuse_departed(node: Node) -> None:
    left = peer_status.find_departure(node.store, node.generation)
    if left is not None and left.calls < node.calls:
        where = f"in a call of all ranks after {node.steps} steps"
        raise TrainingError(has_left(node.title, f"{node.called} {left.name}", left.steps, where))


def _wait_on_gpu(node: Node, work: dist.Work) -> None:
    """The same for an operation of nccl, which a rank that is gone leaves waiting."""

    def look() -> None:
        _refuse_departed(node)
        lost = patience.find_lost(node, [rank for rank in range(node.size) if rank != node.rank])
        if lost is not None:
            raise lost[1]

    if not patience.asked_until(work.is_completed, time.monotonic() + node.timeout, look):
        raise RuntimeError("timed out")
    work.wait()


def is_complete(work: dist.Work) -> bool:
    """Whether the operation completes within POLL_SECONDS; raises if it failed."""
    try:
        work.wait(timedelta(seconds=POLL_SECONDS))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises the operation's own error; returns if it completed just after the timeout
    return True


@contextlib.contextmanager
def peer_errors(node: Node, call: str) -> Iterator[None]:
    """Turn gloo's errors about missing ranks inside of `call` into `PeerError`."""
    try:
        yield
    except TrainingError:
        raise
    except RuntimeError as error:
        missing = absence(error, node.timeout)
        elsewhere = other_positions(node, Position(False, call), node.members, missing)
        # a neighbour of the missing rank knows which one it is: let its message reach the launcher first
        time.sleep(0.3)
        hint = elsewhere or (f"; {ALL_MUST}" if missing.timed_out else "")
        raise PeerError(f"{node.title}: {call}: another rank {missing}{hint}") from error


def other_positions(node: Node, position: Position, others: Sequence[int], missing: Absence) -> str:
    """'; node 1 waited in ..., node 0 in ...', where `others` were when they gave up; empty if none was elsewhere."""
    seconds = 1.0 if missing.timed_out else 0.0  # after a timeout the others time out at about the same moment
    found = peer_status.exchange_positions(node.store, node.generation, node.name, position, others, seconds)
    # ranks in different steps are no mistake: each of them waits for the messages of a rank that is missing
    different = {
        name: theirs.text
        for name, theirs in found.items()
        if not (theirs.in_step and position.in_step) and theirs.text != position.text
    }
    if not different:
        return ""
    shown = ", ".join(f"{node.called} {name} waited in {text}" for name, text in sorted(different.items())[:3])
    return f"; {shown}, {node.title} in {position.text}: all ranks must make the same calls, outside of {ONLY_MAIN}"


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """The tensor's memory, or a copy of a GPU's, as [n] bytes."""
    import torch

    return values.cpu().reshape(-1).view(torch.uint8) if values.numel() else torch.empty(0, dtype=torch.uint8)
