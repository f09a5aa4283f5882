"""Rendezvous: TCP stores, keys that no earlier start has used, and the process groups that are made over a store."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from dgt.errors import ConfigError, PeerError, SharedError, SilenceError
from dgt.processes import forks, probing

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch.distributed as dist


def tcp_store(host: str, port: int, rank: int, size: int, patience: timedelta) -> dist.Store:
    """The store, served by rank 0; `patience` bounds how long the others wait for it."""
    import torch.distributed as dist

    if rank:
        wait_for_port(host, port, patience)
        return dist.TCPStore(host, port, size, is_master=False, timeout=patience)
    try:
        listener = _listener(host, port)
    except OSError as error:
        why = "is taken, perhaps by another job" if error.errno == errno.EADDRINUSE else f"cannot be used ({error})"
        raise ConfigError(f"port {port} on {host} {why}; set MASTER_PORT to another, on all ranks") from None
    return dist.TCPStore(host, port, size, is_master=True, timeout=patience, master_listen_fd=listener.detach())


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket, bound to the loopback interface if all ranks are on this host: torch would bind to all."""
    if host == "127.0.0.1":
        return socket.create_server((host, port))
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def wait_for_port(host: str, port: int, patience: timedelta, silent: timedelta | None = None) -> None:
    """Wait until the port accepts connections; torch's own client waits more than twice as long and prints a page.

    `SilenceError` if for `silent` no connection was even refused. A host name that does not resolve raises at once.
    """
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        raise ConfigError(f"MASTER_ADDR={host}: no such host; give a name or address that all hosts know") from None
    since, refused = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            refused = refused or not isinstance(error, TimeoutError)
            waited = timedelta(seconds=time.monotonic() - since)
            if silent is not None and not refused and waited > silent:
                raise SilenceError(f"no answer at all for {silent.total_seconds():g} s") from None
            if waited > patience:
                what = f"nobody answered for {patience.total_seconds():g} s: {error.strerror or error}"
                raise RuntimeError(what) from None
        time.sleep(0.2)


def rendezvous_error(rank: int, place: str, error: RuntimeError) -> PeerError:
    """The error of a rank that did not find the others at `place`, with the usual causes."""
    what = str(error).splitlines()[0]
    if not probing.loopback_is_up() and "127.0.0.1" in (place or "127.0.0.1"):
        return PeerError(f"rank {rank}: {probing.DOWN}")
    hint = "did all ranks start, is that host reachable, is GLOO_SOCKET_IFNAME the network between hosts"
    hint = f"{hint}, does a firewall close their ports (docs/clusters.md, Ports)?" if place else f"{hint}?"
    return PeerError(f"rank {rank}: could not meet the other ranks{place} ({what}); {hint}")


def prefixed(store: dist.Store, name: str) -> dist.Store:
    """The same store with all keys prefixed by `name`."""
    import torch.distributed as dist

    return dist.PrefixStore(name, store)


def new_prefix(
    store: dist.Store, own_rank: int, size: int, patience: timedelta, check: Callable[[], None] = lambda: None
) -> dist.Store:
    """torchrun's store under a prefix that no earlier start of these ranks has used.

    torchrun keeps its store when it restarts ranks, with the addresses of dead ones in it, and its count of restarts
    differs between hosts. So every rank writes a random token, and rank 0 answers each token with the common prefix. A
    rank that was restarted writes a new token, which rank 0 answers again; a token of a dead rank is never confirmed.
    `check` is called every second while rank 0 waits, and may raise.
    """
    token = secrets.token_hex(8)
    store.set(f"dgt/token/{own_rank}", token)
    if own_rank:
        name = store.get(f"dgt/answer/{own_rank}/{token}").decode()
        store.set(f"dgt/there/{name}/{own_rank}", "1")
        return prefixed(store, name)
    answered: dict[int, bytes] = {}
    checked = time.monotonic()
    missing, deadline = set(range(1, size)), checked + patience.total_seconds()
    while missing:
        for rank in sorted(missing):
            theirs = store.get(f"dgt/token/{rank}") if store.check([f"dgt/token/{rank}"]) else b""
            if theirs and answered.get(rank) != theirs:
                answered[rank] = theirs
                store.set(f"dgt/answer/{rank}/{theirs.decode()}", token)
            if store.check([f"dgt/there/{token}/{rank}"]):
                missing.discard(rank)
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(missing)[:8]} did not come within {patience.total_seconds():g} s")
        if missing and time.monotonic() > checked + 1:
            check()
            checked = time.monotonic()
        time.sleep(0.01)
    return prefixed(store, token)


def init_groups(store: dist.Store, rank: int, size: int, patience: timedelta) -> dict[str, dist.ProcessGroup]:
    """torch's default process group over gloo, for control messages and at first for data too."""
    import torch.distributed as dist

    try:
        with forks.sockets_kept_from_children():
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    except BaseException:
        # the count of groups is part of their keys, and includes those that failed: a rank whose last attempt failed,
        # and one that had no such attempt, would wait for each other under different keys
        dist.distributed_c10d._world.group_count = 0
        raise
    control = dist.group.WORLD
    assert control is not None
    return {"control": control, "data": control}


def new_groups(patience: timedelta) -> dict[str, dist.ProcessGroup]:
    """A gloo group of dgt's own beside a default process group that the user's program has made and will destroy."""
    import torch.distributed as dist

    with forks.sockets_kept_from_children():
        control = dist.new_group(backend="gloo", timeout=patience)
    assert isinstance(control, dist.ProcessGroup)
    return {"control": control, "data": control}


def refuse_to_renumber(control: dist.ProcessGroup, setting: str) -> None:
    """Raise if the ranks are those of a default process group that the user's program has made."""
    import torch.distributed as dist

    if control is not dist.group.WORLD:
        raise SharedError(
            f"{setting}: the process group that is there must number the ranks of a host one after another"
        )


def destroy_groups(groups: dict[str, dist.ProcessGroup]) -> None:
    """Destroy these groups and empty the dict: the last reference to a group ends its threads and connections."""
    import torch.distributed as dist

    if dist.group.WORLD in groups.values():
        groups.clear()
        dist.destroy_process_group()
        return
    while groups:
        _, group = groups.popitem()
        if group not in groups.values():
            dist.destroy_process_group(group)


def set_timeout(group: dist.ProcessGroup, seconds: float) -> None:
    """The timeout of all further operations of this group."""
    import torch.distributed as dist

    change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # the older name
    change(timedelta(seconds=seconds), group)
