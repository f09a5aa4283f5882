"""Where ranks find each other: stores that start-up, restarts and the ranks left after a loss can rely on."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from dgt.errors import ConfigError, PeerError, SilenceError
from dgt.processes import forks, probing

if TYPE_CHECKING:  # the `dgt` command asks where it is while torch is still on its way
    import torch.distributed as dist


def tcp_store(host: str, port: int, rank: int, size: int, patience: timedelta) -> dist.Store:
    """Rank 0 keeps the store; on one host it listens on the loopback interface only."""
    import torch.distributed as dist

    if rank:
        await_answer(host, port, patience)
        return dist.TCPStore(host, port, size, is_master=False, timeout=patience)
    try:
        listener = _listener(host, port)
    except OSError as error:
        why = "is taken, perhaps by another job" if error.errno == errno.EADDRINUSE else f"cannot be used ({error})"
        raise ConfigError(f"port {port} on {host} {why}; set MASTER_PORT to another, on all ranks") from None
    return dist.TCPStore(host, port, size, is_master=True, timeout=patience, master_listen_fd=listener.detach())


def _listener(host: str, port: int) -> socket.socket:
    """On one host, the loopback interface only: left alone the store would listen on all of them."""
    if host == "127.0.0.1":
        return socket.create_server((host, port))
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def await_answer(host: str, port: int, patience: timedelta, silent: timedelta | None = None) -> None:
    """Wait until somebody listens there. torch would wait more than twice as long, and end with a page of its own.

    `SilenceError` where nothing at all comes back for `silent`. A misspelt host is found out at once.
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
    """Ranks did not find each other: where they looked, and what is usually wrong."""
    what = str(error).splitlines()[0]
    if not probing.loopback_is_up() and "127.0.0.1" in (place or "127.0.0.1"):
        return PeerError(f"rank {rank}: {probing.DOWN}")
    hint = "did all ranks start, is that host reachable, is GLOO_SOCKET_IFNAME the network between hosts"
    hint = f"{hint}, does a firewall close their ports (docs/clusters.md, Ports)?" if place else f"{hint}?"
    return PeerError(f"rank {rank}: could not meet the other ranks{place} ({what}); {hint}")


def prefixed(store: dist.Store, name: str) -> dist.Store:
    """A part of the store for those who know its name."""
    import torch.distributed as dist

    return dist.PrefixStore(name, store)


def new_prefix(
    store: dist.Store, own_rank: int, size: int, patience: timedelta, look: Callable[[], None] = lambda: None
) -> dist.Store:
    """A corner of torchrun's store that no earlier start of these ranks has used.

    torchrun keeps its store when it restarts ranks, with the addresses of dead ones in it, and its count of restarts
    differs between hosts. So every rank leaves a word of its own, rank 0 answers each word with the room's name,
    and answers again where a rank leaves a new word; only a rank that lives can know that its word was answered.
    `look` may raise while rank 0 waits for the others.
    """
    word = secrets.token_hex(8)
    store.set(f"dgt/word/{own_rank}", word)
    if own_rank:
        name = store.get(f"dgt/answer/{own_rank}/{word}").decode()
        store.set(f"dgt/there/{name}/{own_rank}", "1")
        return prefixed(store, name)
    answered: dict[int, bytes] = {}
    looked = time.monotonic()
    missing, deadline = set(range(1, size)), looked + patience.total_seconds()
    while missing:
        for rank in sorted(missing):
            theirs = store.get(f"dgt/word/{rank}") if store.check([f"dgt/word/{rank}"]) else b""
            if theirs and answered.get(rank) != theirs:
                answered[rank] = theirs
                store.set(f"dgt/answer/{rank}/{theirs.decode()}", word)
            if store.check([f"dgt/there/{word}/{rank}"]):
                missing.discard(rank)
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(missing)[:8]} did not come within {patience.total_seconds():g} s")
        if missing and time.monotonic() > looked + 1:
            look()
            looked = time.monotonic()
        time.sleep(0.01)
    return prefixed(store, word)


def join_group(store: dist.Store, rank: int, size: int, patience: timedelta) -> dict[str, dist.ProcessGroup]:
    import torch.distributed as dist

    with forks.sockets_kept_from_children():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    control = dist.group.WORLD
    assert control is not None
    return {"control": control, "data": control}


def group_within(patience: timedelta) -> dict[str, dist.ProcessGroup]:
    """A gloo group of dgt's own among the ranks of a process group that somebody else has made, and will destroy."""
    import torch.distributed as dist

    with forks.sockets_kept_from_children():
        control = dist.new_group(backend="gloo", timeout=patience)
    assert isinstance(control, dist.ProcessGroup)
    return {"control": control, "data": control}


def leave_groups(groups: dict[str, dist.ProcessGroup]) -> None:
    """Forget these groups; the last reference to one ends its threads and closes its connections."""
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
    import torch.distributed as dist

    change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # the older name
    change(timedelta(seconds=seconds), group)
