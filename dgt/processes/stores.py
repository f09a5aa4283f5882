"""The store in which ranks meet, for each launcher: a file, torchrun's own, or one on the first host of a step."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dgt.errors import ConfigError, PeerError, SilenceError
from dgt.processes import environment, probing, rendezvous
from dgt.processes.placement import Placement, rendezvous_endpoint

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch.distributed as dist

SILENT_SECONDS = timedelta(seconds=15)
UNREACHED = "dgt/unreached"
_meetings = itertools.count()


def next_meeting() -> int:
    """How often this process has met others before: a script may join more than once."""
    return next(_meetings)


def of_launcher(where: Placement, patience: timedelta) -> dist.Store:
    """The launcher's store, or a new one where it has none."""
    import torch.distributed as dist

    file = environment.meeting_file()
    if file is not None:
        return dist.FileStore(f"{file}-{next_meeting()}", where.size)
    if where.launcher == "alone":
        return dist.HashStore()
    if where.launcher == "torchrun":
        store = _torchrun_store(where, patience)
        other = _rendezvous_store() if where.rank == 0 and where.local_size < where.size else None
        return rendezvous.new_prefix(store, where.rank, where.size, patience, lambda: _refuse_unreached(other))
    store = rendezvous.tcp_store(*environment.slurm_master(), where.rank, where.size, patience)
    # another job may have taken the port first: nobody takes its words for ours
    return rendezvous.prefixed(store, environment.slurm_step())


def place(where: Placement) -> str:
    """' at HOST:PORT', for errors; empty where ranks meet through a file."""
    if environment.meeting_file() is not None or where.launcher == "alone":
        return ""
    host, port = environment.slurm_master() if where.launcher == "srun" else environment.master()
    return f" at {host}:{port}"


def _torchrun_store(where: Placement, patience: timedelta) -> dist.Store:
    """torchrun keeps it itself, or has rank 0 keep it (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`)."""
    import torch.distributed as dist

    host, port = environment.master()
    if host and port.isdecimal():
        is_there = environment.agent_keeps_store()
        if where.rank:
            _await_torchrun(where.rank, host, int(port), patience, is_there)
        elif not is_there:
            # as "env://" does, but without waiting there for the others: where they do not reach it, they say so in
            # torchrun's other store, and rank 0 must be free to look
            return dist.TCPStore(
                host, int(port), where.size, is_master=True, timeout=patience, wait_for_workers=False, multi_tenant=True
            )
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=patience))
    except ValueError as error:  # no MASTER_ADDR, for example
        raise ConfigError(f"the launcher's environment is incomplete or wrong: {error}") from None
    return store


def _await_torchrun(rank: int, host: str, port: int, patience: timedelta, is_there: bool) -> None:
    """Wait for its store; not for long where it must be there, or where a firewall drops what is sent to it.

    The other host is up, as its torchrun has met ours: it would refuse connections to a port where nobody listens yet.
    """
    silent = SILENT_SECONDS if environment.has_agent() else None
    try:
        rendezvous.await_answer(host, port, min(patience, SILENT_SECONDS) if is_there else patience, silent)
    except RuntimeError as error:
        if not is_there and not isinstance(error, SilenceError):
            raise
        words = probing.closed(rank, host, str(port), f"no answer within {SILENT_SECONDS.total_seconds():g} s")
        store = _rendezvous_store()
        if store is not None:
            store.set(UNREACHED, words)
        raise PeerError(words) from None


def _rendezvous_store() -> dist.Store | None:
    """torchrun's other store, where its hosts found each other: that port is open. Ranks are not told which it is."""
    import torch.distributed as dist

    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0")
        endpoint = rendezvous_endpoint(words)
        return None if endpoint is None else dist.TCPStore(*endpoint, is_master=False, timeout=timedelta(seconds=10))
    except (OSError, ValueError, RuntimeError):
        return None


def _refuse_unreached(store: dist.Store | None) -> None:
    """Raise if ranks of another host have found that they do not reach this one."""
    if store is not None and store.check([UNREACHED]):
        words = store.get(UNREACHED).decode()
        store.delete_key(UNREACHED)  # ranks that are started again look anew
        raise PeerError(words)
