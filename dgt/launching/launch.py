"""Starting ranks on this host: `start_ranks` forks them from the forkserver, supervises them, returns their results.

torch's elastic launcher supervises them as under torchrun, but over a forkserver, which has imported torch once for all
ranks; ranks of which some may be lost are supervised by `supervision`. What a rank does is in `rank`, what is raised
when ranks fail in `outcome`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dgt.errors import LaunchError
from dgt.launching import forkserver
from dgt.launching.jobs import Job, JoinOptions, Script
from dgt.launching.outcome import launch_error
from dgt.launching.rank import forked_rank
from dgt.launching.ranks import Ranks
from dgt.launching.supervision import Supervision
from dgt.processes import limits, probing, signals
from dgt.processes.process import Process
from dgt.processes.signals import PASSED_ON

log = logging.getLogger(__name__)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

__all__ = ["Job", "JoinOptions", "Script", "start_ranks"]


def start_ranks(job: Job | Script, nodes: int, options: JoinOptions) -> dict[int, Any]:
    """Start `nodes` ranks on this host, run the job on each, return the results by rank; `LaunchError` if they fail.

    job       what every rank runs, pickled: `job.run(node)`, or a script of the user's
    options   how the ranks join
    """
    limits.raise_open_files()
    trouble = limits.too_few(nodes) or ("" if probing.loopback_is_up() else probing.DOWN)
    if trouble:
        raise LaunchError(trouble)
    with (
        _no_room_is_launch_error(),
        _signal_handlers_restored(),
        tempfile.TemporaryDirectory(prefix=forkserver.folder_prefix(), ignore_cleanup_errors=True) as folder,
    ):
        ranks = Ranks(Path(folder), nodes)
        arguments = (job, options, folder, Process.own())
        try:
            with ranks.forwarding():
                if options.tolerates_loss:
                    return Supervision(ranks, nodes, options, folder, arguments).run()
                return elastic_launch(_supervision(nodes, folder), forked_rank)(*arguments)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise launch_error(folder, codes) from None
        except (KeyboardInterrupt, SignalException) as error:
            forkserver.stop()
            ranks.send(signal.SIGKILL)
            number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
            word = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
            raise LaunchError(f"{word}; {nodes} ranks stopped", 128 + number) from None
        finally:
            ranks.send(signal.SIGKILL)  # if the forkserver was killed, its ranks run on without a parent


def _supervision(nodes: int, folder: str) -> LaunchConfig:
    """The configuration of torch's elastic launcher: one host, no restarts, no port."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nodes,
        run_id="dgt",
        # a file in place of a TCP store: no listening port, and no reverse look-ups of host names at 64 ranks
        rdzv_backend="c10d",
        rdzv_endpoint=str(Path(folder) / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=folder),  # the default creates a directory per run and leaves it there
        **_handled_signals(),
    )


def _handled_signals() -> dict[str, Any]:
    """Signals that torch's launcher handles: not SIGTERM and SIGINT, after which it kills ranks within 30 s, while they
    may need longer to save; and not a SIGHUP that is ignored (`nohup`). Older torch has no such setting.
    """
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    wanted = "SIGQUIT" if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else "SIGHUP,SIGQUIT"
    return {"signals_to_handle": wanted} if "signals_to_handle" in known else {}


# ---------------------------------------------------------------------------------------------- around torch's launcher


@contextlib.contextmanager
def _no_room_is_launch_error() -> Iterator[None]:
    """A full or read-only file system becomes a `LaunchError`: ranks need a temporary folder, and semaphores in
    /dev/shm."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        needed = f"they need a few KB in /dev/shm and {tempfile.gettempdir()}"
        raise LaunchError(f"cannot start ranks ({error.strerror}); {needed}") from None


@contextlib.contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    """Torch's launcher replaces signal handlers and does not restore them; a failure is logged once, by us."""
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *PASSED_ON)
    }
    forkserver.start()
    try:
        with _torch_log_dropped():
            yield
    except LaunchError:
        signals.keep_exit_code()
        raise
    finally:
        signals.training_began()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _torch_log_dropped() -> Iterator[None]:
    """Drop what torch logs, since its elastic launcher logs every start, signal and failure; dgt's own log stays.

    All records of torch, also of loggers made later, end in a handler of one of its loggers: each gets a filter.
    """

    def drop(record: logging.LogRecord) -> bool:
        return False

    loggers = [found for name, found in logging.root.manager.loggerDict.items() if name.split(".")[0] == "torch"]
    handlers = {handler for found in loggers if isinstance(found, logging.Logger) for handler in found.handlers}
    for handler in handlers:
        handler.addFilter(drop)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
