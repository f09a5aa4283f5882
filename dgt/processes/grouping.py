"""Nodes of several ranks: n k ranks become n nodes of k, each on one host.

Rank l of node i is rank i k + l of all. It keeps share l of the node's parameters, and exchanges messages with the
ranks that keep the same share in other nodes: those n ranks are a network of their own, and what runs in it (handshake,
messages, collective operations) runs as with one rank per node. The k ranks of a node have a group too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta

from dgt.errors import PeerError, SharedError
from dgt.processes import environment, forks, rendezvous
from dgt.processes.local import Local
from dgt.processes.node import Node
from dgt.processes.placement import NO_GPU

AUTO = "auto"
_AUTO, _INVALID = 0, -1


def number_of_ranks(given: int | str, hosts: Sequence[int], gpus: Sequence[int]) -> int:
    """How many ranks a node has, of all ranks on these hosts with these GPUs (`NO_GPU` for none).

    given   a number, or auto: as many as every host has GPUs in use, 1 without GPUs
    """
    if given == AUTO:
        in_use = {
            host: len({gpu for gpu, other in zip(gpus, hosts, strict=True) if other == host and gpu != NO_GPU}) or 1
            for host in hosts
        }
        if len(set(in_use.values())) > 1:
            counts = " and ".join(map(str, sorted(set(in_use.values()))))
            raise SharedError(f"ranks_per_node=auto: hosts use {counts} GPUs; give a number")
        given = next(iter(in_use.values()))
    ranks, size = int(given), len(hosts)
    if size % ranks:
        below = f"{size // ranks * ranks} or " if size > ranks else ""
        raise SharedError(
            f"ranks_per_node={ranks}: {size} ranks are no multiple of it; start {below}{-(-size // ranks) * ranks}"
        )
    return ranks


def ranks_by_host(hosts: Sequence[int], ranks: int) -> list[int]:
    """All ranks, those of a host together, in the order in which hosts first appear: every `ranks` of them are a node.

    hosts   of every rank, a number per host
    """
    order: list[int] = []
    for host in dict.fromkeys(hosts):
        here = [rank for rank, other in enumerate(hosts) if other == host]
        if len(here) % ranks:
            raise SharedError(
                f"ranks_per_node={ranks}: the host of rank {here[0]} has {len(here)} ranks, no multiple of it, and the "
                f"ranks of a node must be on one host; start {ranks}, {2 * ranks}, ... ranks on every host"
            )
        order += here
    return order


def agreed(world: Node, given: int | str) -> tuple[int, list[int]]:
    """How many ranks a node has, and the ranks by host; the same error on all ranks if they were not given the same.

    given   from 1 on, or auto
    """
    number = given if type(given) is int and given > 0 else _AUTO if given == AUTO else _INVALID
    rows = world.all_gather([number, environment.host_number()]).tolist()
    numbers, hosts = [row[0] for row in rows], [row[1] for row in rows]
    if _INVALID in numbers:
        shown = f"={given}" if number == _INVALID else f" of rank {numbers.index(_INVALID)}"
        raise SharedError(f"ranks_per_node{shown}: must be a number from 1 on, or auto")
    for rank, other in enumerate(numbers):
        if other != numbers[0]:
            raise SharedError(
                f"ranks disagree on ranks_per_node: {numbers[0] or AUTO} on rank 0, {other or AUTO} on rank {rank}"
            )
    ranks = number_of_ranks(numbers[0] or AUTO, hosts, world.gpu_of_rank)
    return ranks, ranks_by_host(hosts, ranks) if ranks > 1 else list(range(world.size))


def divided(world: Node, ranks: int, members: Sequence[int] = ()) -> Node:
    """The node of this process, where ranks 0 to k - 1 of all are node 0, the next k node 1, and so on.

    members   the nodes that are left, where some were lost
    """
    number, own = divmod(world.rank, ranks)
    nodes = world.size // ranks
    world.called = "rank"
    share = [other * ranks + own for other in range(nodes)]
    node = _scope(world, share, f"share-{own}", list(members or range(nodes)))
    node.divide_again = lambda: divide_again(node)
    here = range(number * ranks, (number + 1) * ranks)
    mates = _scope(world, here, f"node-{number}", [world.members[rank] for rank in here], "rank")
    node.local = Local(mates)
    world.scopes = [node, mates]
    return node


def divide_again(node: Node) -> None:
    """The same after all ranks have connected again; the object stays, as others refer to it."""
    try:
        fresh = divided(node.world, node.local.size, node.members)
    except RuntimeError as error:
        what = str(error).splitlines()[0][:120]
        raise PeerError(f"node {node.name}: could not connect to the nodes that are left ({what})") from None
    for name in ("placement", "groups", "store", "generation"):
        setattr(node, name, getattr(fresh, name))
    node.local.ranks = fresh.local.ranks
    node.world.scopes[0] = node


def _scope(world: Node, ranks: Sequence[int], name: str, members: list[int], called: str = "node") -> Node:
    """Some of all ranks, with groups of their own; only they call it, ascending."""
    import torch.distributed as dist

    patience = timedelta(seconds=world.timeout)
    with forks.sockets_kept_from_children():
        made = dist.new_group(list(ranks), timeout=patience, backend="gloo", use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup)
    groups = {"control": made, "data": made}
    if world.backend == "nccl":
        own = dist.new_group(
            list(ranks), timeout=patience, backend="nccl", use_local_synchronization=True, device_id=world.device
        )
        assert isinstance(own, dist.ProcessGroup)
        groups["data"] = own
    place = dataclasses.replace(world.placement, rank=ranks.index(world.rank), size=len(ranks))
    store = rendezvous.prefixed(world.store, f"{name}-{world.generation}")
    return Node(
        place, world.device, world.backend, world.timeout, groups, store, members, world.launcher_notes,
        notices=world.notices, generation=world.generation, whole=world, called=called,
    )  # fmt: skip
