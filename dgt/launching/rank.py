"""Being a rank: `be_rank` in a process that torchrun or srun started, `forked_rank` in one that `launch` has forked.

Either way the rank joins, checks that all ranks run the same job, runs it, and exits with a code and a failure note.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dgt.errors import EXIT_FAILED, ConfigError, PeerError, SharedError
from dgt.launching import forkserver, torchrun
from dgt.launching.jobs import Job, JoinOptions, Script
from dgt.launching.ranks import register_rank
from dgt.processes import environment, join, output
from dgt.processes.agreement import agree, share_trouble
from dgt.processes.environment import LocalRank
from dgt.processes.failures import Failure
from dgt.processes.placement import Placement
from dgt.processes.process import Process, die_with_parent
from dgt.processes.signals import ENDING
from dgt.training.ending import Stopped

log = logging.getLogger(__name__)
AnyJob = TypeVar("AnyJob", bound=Job)
Report = Callable[[int, BaseException | Stopped], None]


def be_rank(prepare: Callable[[], AnyJob], options: Callable[[AnyJob], JoinOptions]) -> Any:
    """Be the rank that torchrun or srun started; returns the job's result.

    prepare   makes the job; may raise `ConfigError`, on one rank or on all
    options   how to join for this job
    """

    def report(rank: int, error: BaseException | Stopped) -> None:
        if isinstance(error, Stopped):
            torchrun.stop_agent()
        # all ranks raise a SharedError and return Stopped: rank 0 prints those
        note, own = _note(rank, error), rank == 0 or not isinstance(error, (SharedError, Stopped))
        if own and (path := environment.agent_error_file()) is not None:
            note.write_for_torchrun(path)
        if note.traceback:
            log.error("%s", note.traceback, extra=output.VERBATIM)
        elif own:
            if isinstance(error, PeerError):
                torchrun.watch_agent()
            log.log(logging.INFO if isinstance(error, Stopped) else logging.ERROR, "%s", note.reason)
        elif not isinstance(error, Stopped):
            # a launcher kills all ranks when the first exits: give rank 0 time to print, then exit with our own code
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1.0)

    return _run_job(prepare, options, report)


def loss_tolerant_rank(
    rank: int, nodes: int, attempt: int, job: Job | Script, options: JoinOptions, folder: str, launcher: Process
) -> None:
    """Entry of a rank of `supervision`, which has no environment variables of torch's launcher.

    attempt   how often it was started again
    """
    _forked(Placement("torchrun", rank, nodes, rank, nodes), job, options, folder, launcher, attempt)


def forked_rank(job: Job | Script, options: JoinOptions, folder: str, launcher: Process) -> Any:
    """Entry of a rank of torch's launcher, which has set RANK and WORLD_SIZE."""
    return _forked(environment.placement(), job, options, folder, launcher)


def _forked(
    where: Placement, job: Job | Script, options: JoinOptions, folder: str, launcher: Process, attempt: int = 0
) -> Any:
    for number in ENDING:  # the forkserver's handlers are Python's, which do not run while gloo waits
        signal.signal(number, signal.SIG_DFL)
    # torch has the kernel send SIGINT when the forkserver ends, which would look like Ctrl-C: make it SIGKILL
    die_with_parent()
    _die_with_launcher(launcher)
    environment.set_local_rank(LocalRank(where, Path(folder) / "store", attempt))
    output.log_to_stderr(is_main=where.rank == 0 and not attempt)
    register_rank(Path(folder), where.rank)
    # the default, not forkserver: a forkserver of a user's script would import, that is run, the script in every worker
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)

    def report(rank: int, error: BaseException | Stopped) -> None:
        _note(rank, error).write(Path(folder))

    if isinstance(job, Script):
        return _run_script(job, report)
    return _run_job(lambda: job, lambda _: options, report)


def _run_job(prepare: Callable[[], AnyJob], options: Callable[[AnyJob], JoinOptions], report: Report) -> Any:
    """Join, check that all ranks start the same job, run it; exit the process if it fails or is stopped."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every rank: exit without a traceback from each
    rank = environment.placement().rank
    try:
        job, trouble = None, ""
        try:
            job = prepare()
        except ConfigError as error:
            trouble = str(error)
        settings = options(job) if job is not None else JoinOptions()
        with join.connect(settings.timeout) as node:
            share_trouble(node, trouble)
            assert job is not None, "trouble was raised"
            agree(node, {name: str(value) for name, value in dataclasses.asdict(settings).items()})
            join.choose_device_and_backend(node, settings.backend, settings.device)
            result = job.run(join.divide(node, settings.ranks_per_node))
        if isinstance(result, Stopped):
            report(rank, result)
            _exit_at_once(result.code)
        return result
    except Exception as error:
        report(rank, error)
        _exit_at_once(_note(rank, error).code)


def _run_script(script: Script, report: Report) -> None:
    """Run a user's own program as this rank; it joins by itself, with `dgt.join()`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv = [script.path, *script.arguments]
    sys.path.insert(0, str(Path(script.path).resolve().parent))  # as `python script.py` does
    try:
        runpy.run_path(script.path, run_name="__main__")
    except SystemExit as leave:
        if leave.code:
            report(environment.placement().rank, RuntimeError(f"{script.path} exited with {leave.code}"))
            _exit_at_once(leave.code if isinstance(leave.code, int) else EXIT_FAILED)
    except Exception as error:
        report(environment.placement().rank, error)
        _exit_at_once(_note(0, error).code)


def _exit_at_once(code: int) -> NoReturn:
    """Exit without clean-up: the neighbours see closed connections at once, and fail too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _note(rank: int, end: BaseException | Stopped) -> Failure:
    if isinstance(end, Stopped):  # without a signal of its own this rank stopped because another was asked to
        return Failure(rank, Stopped.__name__, str(end), end.code, time.time(), second_hand=not end.signal)
    return Failure.of(rank, end)


def _die_with_launcher(launcher: Process) -> None:
    """Exit this rank when the launcher ends, by SIGKILL too, and remove its temporary files.

    The kernel's parent-death signal does not help: the parent is the forkserver, which runs as long as any rank.
    """

    def watch() -> None:
        launcher.wait()
        forkserver.remove_files(environment.launcher_folder())
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, daemon=True).start()
