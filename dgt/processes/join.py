"""Joining the network as one of its ranks, and leaving it again in good order.

with dgt.join() as node:        # inside torchrun, srun or dgt's own launcher; alone it is a network of one
    print(node.rank, node.size, node.device)
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

from dgt.errors import PeerError, SharedError
from dgt.processes import environment, forks, limits, probing, rendezvous, stores, wrappers
from dgt.processes.node import MEETING_SECONDS, MET, Node
from dgt.processes.notices import absence
from dgt.processes.placement import (
    NO_GPU,
    Placement,
    choose_backend,
    choose_device,
    explain_backend,
    refuse_missing_gpu,
)
from dgt.processes.process import die_with_torchrun

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch
    import torch.distributed as dist

log = logging.getLogger(__name__)


@contextlib.contextmanager
def join(*, backend: str = "auto", device: str = "auto", timeout: float = 60.0) -> Iterator[Node]:
    """Join the network as the launcher says; leave it again in good order.

    backend   auto (nccl when every rank has a GPU of its own, else gloo), gloo or nccl
    device    auto, cpu or cuda
    timeout   seconds to wait for another rank before giving up
    """
    with contextlib.ExitStack() as after, connect(timeout) as node:
        after.callback(node.restore_signals)
        try:
            settle(node, backend, device)
            yield node
        except BaseException:
            node.close_connections()  # the process may live on, and join again
            raise


def settle(node: Node, backend: str, device: str) -> None:
    """Decide on device and backend, together with all ranks; until then messages go over gloo on the CPU."""
    import torch
    import torch.distributed as dist

    mig = environment.take_gpu_slice(node.placement.local_rank)
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    node.device = torch.device(choose_device(device, node.placement.local_rank, gpus))
    gpu_of_rank = node.gather(torch.tensor(_gpu_number(node.device, mig))).tolist()
    refuse_missing_gpu(device, gpu_of_rank)
    node.backend = choose_backend(backend, gpu_of_rank)
    words = explain_backend(backend, gpu_of_rank)
    if words and node.is_main:
        log.warning("%s", words)
    if node.device.type == "cuda":
        torch.cuda.set_device(node.device)
    if node.backend == "nccl":
        group = dist.new_group(backend="nccl", timeout=timedelta(seconds=node.timeout), device_id=node.device)
        assert isinstance(group, dist.ProcessGroup)
        node.groups["data"] = group
        # nccl wants all ranks in its first operation; batches of neighbours come later
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            raise PeerError(f"node {node.name}: another rank {absence(error, node.timeout)}") from error


@contextlib.contextmanager
def connect(timeout: float) -> Iterator[Node]:
    """Meet all ranks over gloo; `settle` decides the rest."""
    with environment.restored():
        node = _meet(timeout)
        yield node
        try:
            _leave(node)
        except BaseException as error:
            if not (isinstance(error, PeerError) and node.parted):  # else it was lost when the run was over
                node.close_connections()
                raise
        # one of gloo's threads that frees a tensor while Python shuts down aborts the process
        rendezvous.leave_groups(node.groups)


def _meet(timeout: float) -> Node:
    import torch
    import torch.distributed as dist

    # a script, Accelerate or a notebook may have made a process group already
    within = dist.is_initialized()
    # starting many ranks may take minutes; waiting for a neighbour later should not
    patience = timedelta(seconds=max(timeout, MEETING_SECONDS))
    where, store = _place_within(patience) if within else (environment.placement(), None)
    wrappers.watch(look_back=within)
    die_with_torchrun()
    environment.share_cores(where)
    limits.raise_open_files()
    if where.local_size == where.size:
        # one host: nothing has to be reachable from elsewhere
        environment.use_interface(probing.loopback())
    try:
        if store is not None:
            groups = rendezvous.group_within(patience)
        else:
            with forks.sockets_kept_from_children():  # rank 0 may keep it
                store = stores.of_launcher(where, patience)
            if where.local_size < where.size:
                probing.refuse_closed_ports(store, where, environment.interface())
            groups = rendezvous.join_group(store, where.rank, where.size, patience)
    except PeerError:
        raise
    except RuntimeError as error:
        raise rendezvous.rendezvous_error(where.rank, stores.place(where), error) from error
    file = environment.meeting_file()
    notes = file.parent if file is not None else None
    node = Node(where, torch.device("cpu"), "gloo", timeout, groups, store, list(range(where.size)), notes)
    del groups
    try:
        _same_version(node)
    except BaseException:
        node.close_connections()
        raise
    rendezvous.set_timeout(node.control, timeout)
    node.tell_launcher(MET)
    return node


def _place_within(patience: timedelta) -> tuple[Placement, dist.Store]:
    """This process as a process group that is there already counts it, and a part of that group's store for dgt.

    The store says who is on this host: the launcher's variables need not be those of that group.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    store = rendezvous.prefixed(dist.distributed_c10d._get_default_store(), f"dgt-{stores.next_meeting()}")
    store.set(f"host-{rank}", str(environment.host_number()))
    try:
        store.wait([f"host-{other}" for other in range(size)], patience)
    except RuntimeError as error:
        raise rendezvous.rendezvous_error(rank, " of the process group", error) from error
    host_of_rank = [store.get(f"host-{other}") for other in range(size)]
    own = host_of_rank[rank]
    local_rank, local_size = host_of_rank[:rank].count(own), host_of_rank.count(own)
    return Placement(environment.placement().launcher, rank, size, local_rank, local_size), store


def _leave(node: Node) -> None:
    """In good order, together with all ranks."""
    for finish in node.before_leaving:
        finish()
    # first take in everything, then wait for what was sent: others may go through theirs in another order
    rest = list(node.under_way)
    for exchange in rest:
        exchange.receive_rest()
    for exchange in rest:
        exchange.finish()
    node.sender.shutdown()
    # together: a connection closed early takes with it what a slower neighbour has not read yet
    node.leave()


def _same_version(node: Node) -> None:
    """First of all, in a message that never changes its size: 32 bytes of version from every rank."""
    import torch

    own = version("dgt")
    text = torch.frombuffer(bytearray(own.encode()[:32].ljust(32)), dtype=torch.uint8)
    with node.patience("comparing versions"):
        rows = node.all_gather(text)
    versions = [bytes(row.tolist()).decode(errors="replace").strip() for row in rows]
    for rank, other in enumerate(versions):
        if other != versions[0]:
            raise SharedError(f"ranks disagree on version: dgt {versions[0]} on rank 0, {other} on rank {rank}")


def _gpu_number(device: torch.device, mig: str | None) -> int:
    """A number that tells GPUs apart across hosts: positive for a whole one, negative for a MIG slice."""
    import torch

    if device.type == "cpu":
        return NO_GPU
    identity = mig or str(torch.cuda.get_device_properties(device).uuid)
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big") + 1
    return -number if mig else number
