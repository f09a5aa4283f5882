"""The rendezvous store under each launcher: a file (dgt), torchrun's own, or one served by rank 0 (srun)."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dgt.errors import ConfigError, PeerError, SilenceError
from dgt.processes import environment, probing, rendezvous
from dgt.processes.placement import Placement, rendezvous_endpoint

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch.distributed as dist

UNANSWERED_SECONDS = timedelta(seconds=15)
UNREACHED = "dgt/unreached"
_joins = itertools.count()


def next_join() -> int:
    """How often this process has joined before, for keys and files of its own: a script may join more than once."""
    return next(_joins)


def of_launcher(where: Placement, patience: timedelta) -> dist.Store:
    """The launcher's store, or a new one where it has none."""
    import torch.distributed as dist

    file = environment.store_file()
    if file is not None:
        return dist.FileStore(f"{file}-{next_join()}", where.size)
    if where.launcher == "alone":
        return dist.HashStore()
    if where.launcher == "torchrun":
        store = _torchrun_store(where, patience)
        other = _rendezvous_store() if where.rank == 0 and where.local_size < where.size else None
        return rendezvous.new_prefix(store, where.rank, where.size, patience, lambda: _raise_if_unreached(other))
    store = rendezvous.tcp_store(*environment.slurm_master(), where.rank, where.size, patience)
    # another job may have taken the port first: under this prefix its keys are not mistaken for ours
    return rendezvous.prefixed(store, environment.slurm_step())


def address(where: Placement) -> str:
    """' at HOST:PORT', for errors; empty if the store is a file."""
    if environment.store_file() is not None or where.launcher == "alone":
        return ""
    host, port = environment.slurm_master() if where.launcher == "srun" else environment.master()
    return f" at {host}:{port}"


def _torchrun_store(where: Placement, patience: timedelta) -> dist.Store:
    """The store that torchrun serves, or that rank 0 serves if TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."""
    import torch.distributed as dist

    host, port = environment.master()
    if host and port.isdecimal():
        by_agent = environment.agent_keeps_store()
        if where.rank:
            _wait_for_torchrun(where.rank, host, int(port), patience, by_agent)
        elif not by_agent:
            # as "env://" does, but with wait_for_workers=False: ranks that cannot connect write that into torchrun's
            # other store, which rank 0 must be free to read (_raise_if_unreached)
            return dist.TCPStore(
                host, int(port), where.size, is_master=True, timeout=patience, wait_for_workers=False, multi_tenant=True
            )
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=patience))
    except ValueError as error:  # no MASTER_ADDR, for example
        raise ConfigError(f"the launcher's environment is incomplete or wrong: {error}") from None
    return store


def _wait_for_torchrun(rank: int, host: str, port: int, patience: timedelta, by_agent: bool) -> None:
    """Wait for the store: only briefly if torchrun serves it, since it listens before any rank starts, or if packets
    are dropped, as by a firewall.

    The other host is up, since its torchrun has reached ours: a port where no process listens yet refuses connections.
    """
    silent = UNANSWERED_SECONDS if environment.has_agent() else None
    try:
        rendezvous.wait_for_port(host, port, min(patience, UNANSWERED_SECONDS) if by_agent else patience, silent)
    except RuntimeError as error:
        if not by_agent and not isinstance(error, SilenceError):
            raise
        words = probing.closed(rank, host, str(port), f"no answer within {UNANSWERED_SECONDS.total_seconds():g} s")
        store = _rendezvous_store()
        if store is not None:
            store.set(UNREACHED, words)
        raise PeerError(words) from None


def _rendezvous_store() -> dist.Store | None:
    """The store of torchrun's own rendezvous, whose port is open between the hosts; its address is known only from the
    command line of torchrun, the parent process."""
    import torch.distributed as dist

    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0")
        endpoint = rendezvous_endpoint(words)
        return None if endpoint is None else dist.TCPStore(*endpoint, is_master=False, timeout=timedelta(seconds=10))
    except (OSError, ValueError, RuntimeError):
        return None


def _raise_if_unreached(store: dist.Store | None) -> None:
    """Raise `PeerError` if a rank of another host has written that it cannot connect to this one."""
    if store is not None and store.check([UNREACHED]):
        words = store.get(UNREACHED).decode()
        store.delete_key(UNREACHED)  # restarted ranks must not read it again
        raise PeerError(words)
