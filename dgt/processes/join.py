"""`dgt.join()`: connect this process to the other ranks, and disconnect at the end.

with dgt.join() as node:        # inside torchrun, srun or dgt's own launcher; alone it is a network of one
    print(node.rank, node.size, node.device)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

from dgt.errors import PeerError, SharedError
from dgt.processes import collectives, environment, forks, grouping, limits, probing, rendezvous, stores, wrappers
from dgt.processes.leaving import leave
from dgt.processes.node import CONNECTED, RENDEZVOUS_SECONDS, Node
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

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch
    import torch.distributed as dist

log = logging.getLogger(__name__)
LAST_RESORT_SECONDS = 60.0  # after twice the timeout, nccl ends the process of a rank that still waits


@contextlib.contextmanager
def join(
    *, backend: str = "auto", device: str = "auto", timeout: float = 60.0, ranks_per_node: int | str = 1
) -> Iterator[Node]:
    """Connect to all ranks that the launcher started; all ranks enter and leave the block together.

    backend          auto (nccl when every rank has a GPU of its own, else gloo), gloo or nccl
    device           auto (a GPU if there is one), cpu or cuda
    timeout          seconds to wait for another rank before `PeerError`
    ranks_per_node   how many ranks of a host are one node, which share its data, its weight and its model; auto: as
                     many as a host has ranks with a GPU of their own, else 1

    Returns the `Node`. Without a launcher it is a network of one rank. An error inside the block closes the connections
    at once, so that the other ranks fail too.
    """
    with contextlib.ExitStack() as after, connect(timeout) as world:
        try:
            choose_device_and_backend(world, backend, device)
            node = divide(world, ranks_per_node)
            after.callback(node.restore_signals)
            yield node
        except BaseException:
            world.close_connections()  # the process may go on, and join again
            raise


def choose_device_and_backend(node: Node, backend: str, device: str) -> None:
    """Set the node's device and backend, the same decision on all ranks; until then it has gloo and the CPU.

    backend, device   as for `join`
    """
    import torch
    import torch.distributed as dist

    mig = environment.take_gpu_slice(node.placement.local_rank)
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    node.device = torch.device(choose_device(device, node.placement.local_rank, gpus))
    gpu_of_rank = node.gpu_of_rank = node.all_gather(torch.tensor(_gpu_number(node.device, mig))).tolist()
    refuse_missing_gpu(device, gpu_of_rank)
    node.backend = "gloo" if node.is_new else choose_backend(backend, gpu_of_rank)
    words = explain_backend(backend, gpu_of_rank)
    if words and node.is_main:
        log.warning("%s", words)
    if node.device.type == "cuda":
        torch.cuda.set_device(node.device)
    if node.backend == "nccl":
        # the host keeps the time, and names who is missing (`patience.py`); nccl's watchdog is the last resort
        last_resort = timedelta(seconds=2 * node.timeout + LAST_RESORT_SECONDS)
        group = dist.new_group(backend="nccl", timeout=last_resort, device_id=node.device)
        assert isinstance(group, dist.ProcessGroup)
        node.groups["data"] = group
        _begin_nccl(node)


def _begin_nccl(node: Node) -> None:
    """The first operation of an nccl group must have all its ranks in it; messages between neighbours do not."""
    import torch.distributed as dist

    try:
        dist.barrier(group=node.data)
    except RuntimeError as error:
        raise PeerError(f"{node.title}: another rank {absence(error, node.timeout)}") from error


def divide(world: Node, ranks_per_node: int | str) -> Node:
    """The node of which this process is a rank; all ranks call it, after `choose_device_and_backend`.

    world            all ranks
    ranks_per_node   as for `join`
    """
    ranks, order = grouping.agreed(world, ranks_per_node)
    if ranks == 1:
        return world
    if order != list(range(world.size)):
        rendezvous.refuse_to_renumber(world.groups["control"], f"ranks_per_node={ranks}")
        world.move(dataclasses.replace(world.placement, rank=order.index(world.rank)), "by-host")
        choose_device_and_backend(world, world.backend, world.device.type)
    return divide_in_order(world, ranks)


def divide_in_order(world: Node, ranks: int) -> Node:
    """The same where ranks 0 to k - 1 are node 0, the next k node 1, and so on."""
    node = grouping.divided(world, ranks)
    _begin_scopes(world)
    return node


def _begin_scopes(world: Node) -> None:
    for scope in world.scopes if world.backend == "nccl" else []:
        _begin_nccl(scope)


def change_number(node: Node, number: int) -> None:
    """Connect again as another node. All ranks call it, before any message between neighbours."""
    world, ranks = node.world, node.local.size
    world.move(dataclasses.replace(world.placement, rank=number * ranks + node.local.rank), "renumbered")
    choose_device_and_backend(world, world.backend, world.device.type)
    if node is not world:
        grouping.divide_again(node)
        _begin_scopes(world)


@contextlib.contextmanager
def connect(timeout: float) -> Iterator[Node]:
    """Connect to all ranks over gloo, and disconnect at the end; `choose_device_and_backend` comes next."""
    with environment.restored():
        node = _connect(timeout)
        yield node
        try:
            leave(node)
        except BaseException as error:
            if not (isinstance(error, PeerError) and node.parted):  # parted: a rank lost after the end of the run
                node.close_connections()
                raise
        for scope in [*node.scopes, node]:
            scope.withdraw_receives()
            # before Python shuts down: a gloo thread that frees a tensor then would abort the process
            rendezvous.destroy_groups(scope.groups)


def _connect(timeout: float) -> Node:
    """Rendezvous, process groups, and the check that all ranks have the same version."""
    import torch
    import torch.distributed as dist

    # a script, Accelerate or a notebook may have made the default process group already
    within = dist.is_initialized()
    # many ranks may take minutes to start; the shorter timeout is set once they are connected
    patience = timedelta(seconds=max(timeout, RENDEZVOUS_SECONDS))
    where, store = _placement_within(patience) if within else (environment.placement(), None)
    wrappers.watch(include_existing=within)
    die_with_torchrun()
    environment.share_cores(where)
    limits.raise_open_files()
    if where.local_size == where.size:
        # one host: listen on the loopback interface only
        environment.use_interface(probing.loopback())
    try:
        if store is not None:
            groups = rendezvous.new_groups(patience)
        else:
            with forks.sockets_kept_from_children():  # rank 0 may serve it
                store = stores.of_launcher(where, patience)
            if where.local_size < where.size:
                probing.raise_if_ports_closed(store, where, environment.interface())
            if environment.attempt():
                groups = rendezvous.init_groups(dist.HashStore(), 0, 1, patience)
            else:
                groups = rendezvous.init_groups(store, where.rank, where.size, patience)
    except PeerError:
        raise
    except RuntimeError as error:
        raise rendezvous.rendezvous_error(where.rank, stores.address(where), error) from error
    file = environment.store_file()
    notes = file.parent if file is not None else None
    node = Node(where, torch.device("cpu"), "gloo", timeout, groups, store, list(range(where.size)), notes)
    del groups
    node.nodes = where.size
    if environment.attempt():
        _be_alone(node)
    try:
        _same_version(node)
    except BaseException:
        node.close_connections()
        raise
    rendezvous.set_timeout(node.control, timeout)
    if not node.is_new:
        node.write_launcher_note(CONNECTED)
    return node


def _be_alone(node: Node) -> None:
    """In place of a lost process: a network of one, until the others take it in (`Node.change_members`)."""
    name = node.rank
    node.members, node.attempts, node.is_new = [name], {name: environment.attempt()}, True
    node.placement = dataclasses.replace(node.placement, rank=0, size=1)


def _placement_within(patience: timedelta) -> tuple[Placement, dist.Store]:
    """Rank and size in the default process group that the user's program has made, and its store under a prefix.

    Every rank writes its host into the store, since the launcher's variables need not describe that group.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    store = rendezvous.prefixed(dist.distributed_c10d._get_default_store(), f"dgt-{stores.next_join()}")
    store.set(f"host-{rank}", str(environment.host_number()))
    try:
        store.wait([f"host-{other}" for other in range(size)], patience)
    except RuntimeError as error:
        raise rendezvous.rendezvous_error(rank, " of the process group", error) from error
    host_of_rank = [store.get(f"host-{other}") for other in range(size)]
    own = host_of_rank[rank]
    local_rank, local_size = host_of_rank[:rank].count(own), host_of_rank.count(own)
    return Placement(environment.placement().launcher, rank, size, local_rank, local_size), store


def _same_version(node: Node) -> None:
    """Compare versions before anything else, in a message whose format must never change: 32 bytes from every rank."""
    import torch

    own = version("dgt")
    text = torch.frombuffer(bytearray(own.encode()[:32].ljust(32)), dtype=torch.uint8)
    with collectives.peer_errors(node, "comparing versions"):
        rows = collectives.all_gather_bytes(node, text)
    versions = [bytes(row.tolist()).decode(errors="replace").strip() for row in rows]
    for rank, other in enumerate(versions):
        if other != versions[0]:
            raise SharedError(f"ranks disagree on version: dgt {versions[0]} on rank 0, {other} on rank {rank}")


def _gpu_number(device: torch.device, mig: str | None) -> int:
    """A number that differs between all GPUs of all hosts: positive for a whole GPU, negative for a MIG slice."""
    import torch

    if device.type == "cpu":
        return NO_GPU
    identity = mig or str(torch.cuda.get_device_properties(device).uuid)
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big") + 1
    return -number if mig else number
