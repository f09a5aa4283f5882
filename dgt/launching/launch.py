"""Starting ranks on this host (`start_ranks`), and being one that torchrun or srun started (`be_rank`).

One warm process forks all ranks: torch's elastic launcher over a forkserver is torchrun's supervision without an
interpreter and an import of torch per rank. Either way the same lines decide how a failure is told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dgt import problems
from dgt.config import Config
from dgt.errors import EXIT_FAILED, EXIT_STOPPED, ConfigError, LaunchError, PeerError, SharedError
from dgt.launching import forkserver, torchrun
from dgt.launching.ranks import Ranks, introduce
from dgt.processes import environment, failures, join, limits, output, probing, signals
from dgt.processes.agreement import agree, share_trouble
from dgt.processes.failures import Failure
from dgt.processes.node import Node
from dgt.processes.process import Process, die_with_parent
from dgt.processes.signals import ENDING, PASSED_ON
from dgt.training.ending import HEARD, Stopped

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0  # how often the launcher looks after ranks that are left
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Job(Protocol):
    """What ranks do once they have joined; plain data, because it travels to the ranks."""

    def run(self, node: Node) -> Any: ...


AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How ranks join: from the config, the same for all of them."""

    backend: str = "auto"
    device: str = "auto"
    timeout: float = 60.0
    lenient: bool = False
    """Whether the other ranks may go on when one is lost."""

    @classmethod
    def from_config(cls, config: Config) -> JoinOptions:
        small = problems.class_of(config).is_small  # goes to a GPU only when asked
        device = "cpu" if config.device == "auto" and small else config.device
        return cls(config.backend, device, config.timeout, config.on_peer_loss == "continue")


@dataclass(frozen=True, slots=True)
class Script:
    """A user's own Python program, to be run by every rank."""

    path: str
    arguments: list[str]


def start_ranks(job: Job | Script, nodes: int, options: JoinOptions) -> dict[int, Any]:
    """Start `nodes` ranks on this host, run the job on each, return what each returned."""
    limits.raise_open_files()
    trouble = limits.too_few(nodes) or ("" if probing.loopback_is_up() else probing.DOWN)
    if trouble:
        raise LaunchError(trouble)
    with (
        _room_needed(),
        _signals_kept(),
        tempfile.TemporaryDirectory(prefix=forkserver.meeting_prefix(), ignore_cleanup_errors=True) as meeting,
    ):
        ranks = Ranks(Path(meeting), nodes)
        arguments = (job, options, meeting, Process.own())
        try:
            with ranks.forwarding():
                if options.lenient:
                    return _start_tolerating_losses(ranks, nodes, meeting, arguments)
                return elastic_launch(_supervision(nodes, meeting), _forked_rank)(*arguments)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise _first_failure(meeting, codes) from None
        except (KeyboardInterrupt, SignalException) as error:
            forkserver.stop()
            ranks.send(signal.SIGKILL)
            number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
            word = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
            raise LaunchError(f"{word}; {nodes} ranks stopped", 128 + number) from None
        finally:
            ranks.send(signal.SIGKILL)  # those that nobody has waited for: whoever forked them was killed


def _supervision(nodes: int, meeting: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nodes,
        run_id="dgt",
        # a file in place of a TCP store: nothing listens, and no reverse look-ups at 64 ranks
        rdzv_backend="c10d",
        rdzv_endpoint=str(Path(meeting) / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=meeting),  # else a folder per run stays behind
        **_own_signals(),
    )


def _start_tolerating_losses(ranks: Ranks, nodes: int, meeting: str, arguments: tuple[Any, ...]) -> dict[int, Any]:
    """Ranks that may lose one of them: torch's launcher would end the others. The ranks are told who is lost."""
    context = multiprocessing.get_context("forkserver")
    processes = {
        rank: context.Process(target=_loss_tolerant_rank, args=(rank, nodes, *arguments)) for rank in range(nodes)
    }
    codes: dict[int, int] = {}
    for rank, process in processes.items():
        process.start()
        assert process.pid is not None
        ranks.add(rank, Process.of(process.pid))
    awake = time.monotonic()
    while len(codes) < nodes:
        running = {process.sentinel: rank for rank, process in processes.items() if rank not in codes}
        if max(codes.values(), default=-1) < 0 or not ranks.are_stopped(running.values()):
            awake = time.monotonic()
        elif time.monotonic() > awake + arguments[1].timeout:  # others have left by themselves, and nobody wakes these
            _end_stopped(ranks, list(running.values()))
        for sentinel in multiprocessing.connection.wait(list(running), LOOK_SECONDS):
            rank = running[cast(int, sentinel)]
            processes[rank].join()
            codes[rank] = processes[rank].exitcode or 0
            if codes[rank] and not ranks.have_met:  # the others would wait for it, and for minutes
                raise _first_failure(meeting, codes)
            if codes[rank]:
                ranks.lose(rank)
                _say_lost(meeting, rank, codes[rank])
    if all(codes.values()):
        raise _first_failure(meeting, codes)
    return dict.fromkeys(range(nodes))


def _end_stopped(ranks: Ranks, stopped: list[int]) -> None:
    """Ranks that a signal has stopped while the others went on without them, to their end."""
    who = ", ".join(map(str, stopped))
    log.warning("the others have ended, and rank %s is stopped (SIGSTOP): killed", who)
    ranks.send(signal.SIGKILL)


def _say_lost(meeting: str, rank: int, code: int) -> None:
    """Why a rank is gone, unless it only followed others."""
    if code < 0:
        log.warning("rank %d was killed (%s)", rank, signal.Signals(-code).name)
    for note in failures.notes(Path(meeting)):
        if note.rank == rank and note.kind in ("TrainingError", "WireError"):
            log.warning("rank %d left: %s", rank, note.reason)


def _loss_tolerant_rank(
    rank: int, nodes: int, job: Job | Script, options: JoinOptions, meeting: str, launcher: Process
) -> None:
    environment.set_rank(rank, nodes)
    _forked_rank(job, options, meeting, launcher)


def _own_signals() -> dict[str, Any]:
    """Leave SIGTERM and SIGINT to us, where torch lets us: ranks had half a minute, not the time they need to save.

    A SIGHUP that is ignored (`nohup`) stays so: torch would end the run with the terminal.
    """
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    wanted = "SIGQUIT" if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else "SIGHUP,SIGQUIT"
    return {"signals_to_handle": wanted} if "signals_to_handle" in known else {}


@contextlib.contextmanager
def _room_needed() -> Iterator[None]:
    """Ranks meet in a temporary folder, and their launcher's semaphores are files in /dev/shm."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        needed = f"they need a few KB in /dev/shm and {tempfile.gettempdir()}"
        raise LaunchError(f"cannot start ranks ({error.strerror}); {needed}") from None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """The elastic launcher logs a lot and leaves its signal handlers behind: failures are told here, in one line."""
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *PASSED_ON)
    }
    forkserver.start()
    try:
        with _torch_loggers_disabled():
            yield
    except LaunchError:
        signals.keep_exit_code()
        raise
    finally:
        signals.training_began()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _torch_loggers_disabled() -> Iterator[None]:
    """No log records of torch.distributed, whose elastic launcher logs every start and failure; all others stay."""
    loggers = [found for name, found in logging.root.manager.loggerDict.items() if name.startswith("torch.distributed")]
    changed = [found for found in loggers if isinstance(found, logging.Logger) and not found.disabled]
    for logger in changed:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in changed:
            logger.disabled = False


def _forked_rank(job: Job | Script, options: JoinOptions, meeting: str, launcher: Process) -> Any:
    """Entry of a rank started by `start_ranks`."""
    for number in ENDING:  # what the forkserver has them do waits for Python, and gloo does not return to it
        signal.signal(number, signal.SIG_DFL)
    # torch has the kernel send SIGINT when the forkserver ends: that would be taken for Ctrl-C
    die_with_parent()
    _die_with_launcher(launcher)
    output.log_to_stderr(is_main=not environment.is_other_rank())
    introduce(Path(meeting), environment.placement().rank)
    environment.set_meeting_file(Path(meeting) / "store")
    # as in any other process, not as this one was started: that would run a user's script again in every worker
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)

    def note(rank: int, error: BaseException | Stopped) -> None:
        _note(rank, error).write(Path(meeting))

    if isinstance(job, Script):
        return _as_script(job, note)
    return _as_rank(lambda: job, lambda _: options, note)


def be_rank(prepare: Callable[[], AnyJob], options: Callable[[AnyJob], JoinOptions]) -> Any:
    """Be the rank that torchrun or srun started. `prepare` may raise `ConfigError`, on one rank or on all."""

    def say(rank: int, error: BaseException | Stopped) -> None:
        if isinstance(error, Stopped):
            torchrun.stop_agent()
        note, told = _note(rank, error), rank == 0 or not isinstance(error, (SharedError, Stopped))
        if told and (path := environment.agent_error_file()) is not None:
            note.tell_torchrun(path)
        if note.traceback:
            log.error("%s", note.traceback, extra=output.VERBATIM)
        elif told:
            if isinstance(error, PeerError):
                torchrun.watch_agent()
            log.log(logging.INFO if isinstance(error, Stopped) else logging.ERROR, "%s", note.reason)
        elif not isinstance(error, Stopped):
            # a launcher ends everyone at the first exit: let rank 0 speak first, then leave with our own code
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1.0)

    return _as_rank(prepare, options, say)


def _as_rank(
    prepare: Callable[[], AnyJob],
    options: Callable[[AnyJob], JoinOptions],
    tell: Callable[[int, BaseException | Stopped], None],
) -> Any:
    """Join, make sure all ranks start the same job, run it; leave at once when it fails."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every rank: end, without a traceback each
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
            join.settle(node, settings.backend, settings.device)
            result = job.run(node)
        if isinstance(result, Stopped):
            tell(rank, result)
            _leave_at_once(result.code)
        return result
    except Exception as error:
        tell(rank, error)
        _leave_at_once(_note(rank, error).code)


def _as_script(script: Script, tell: Callable[[int, BaseException | Stopped], None]) -> None:
    """Run a user's own program as this rank; it joins by itself, with `dgt.join()`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv = [script.path, *script.arguments]
    sys.path.insert(0, str(Path(script.path).resolve().parent))  # as `python script.py` has it
    try:
        runpy.run_path(script.path, run_name="__main__")
    except SystemExit as leave:
        if leave.code:
            tell(environment.placement().rank, RuntimeError(f"{script.path} exited with {leave.code}"))
            _leave_at_once(leave.code if isinstance(leave.code, int) else EXIT_FAILED)
    except Exception as error:
        tell(environment.placement().rank, error)
        _leave_at_once(_note(0, error).code)


def _leave_at_once(code: int) -> NoReturn:
    """No orderly leave: neighbours notice a closed connection at once and follow."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _first_failure(meeting: str, codes: dict[int, int]) -> LaunchError:
    """The reason behind the others: the first that is not a rank's absence, else who was killed, or missed whom."""
    notes = failures.notes(Path(meeting))
    stopped = [note for note in notes if note.kind == Stopped.__name__]  # agreed on by all who were in the network then
    first = failures.first(stopped or notes, follows=HEARD) if notes else None
    if (how := forkserver.ended_by()) and (first is None or first.kind == "PeerError"):
        return LaunchError(f"the process that forks ranks was ended ({how}), and all ranks with it; out of memory?")
    # whoever notices first that a rank is gone may be seen to end before it
    killed = [(rank, code) for rank, code in codes.items() if code < 0]
    if killed and (first is None or first.kind == "PeerError"):
        rank, code = min(killed, key=lambda pair: -pair[1] in ENDING)  # others may only have been ended with it
        if code == -signal.SIGINT:  # Ctrl-C reached the ranks first
            return LaunchError("interrupted; all ranks stopped", 128 + signal.SIGINT)
        if -code in ENDING:  # still starting, or a run without checkpoints
            again = EXIT_STOPPED if code == -signal.SIGUSR1 else 128 - code
            return LaunchError(f"ended by {signal.Signals(-code).name} without saving", again)
        return LaunchError(f"rank {rank} was killed ({signal.Signals(-code).name}); out of memory?")
    if first is None:
        rank, code = next(iter(codes.items()))
        return LaunchError(f"rank {rank} ended without a word (exit code {code})")
    if first.traceback:
        log.error("%s", first.traceback, extra=output.VERBATIM)
    return LaunchError(first.line, first.code)


def _note(rank: int, end: BaseException | Stopped) -> Failure:
    if isinstance(end, Stopped):
        return Failure(rank, "Stopped", str(end), end.code, time.time())
    return Failure.of(rank, end)


def _die_with_launcher(launcher: Process) -> None:
    """End this rank when the launcher is gone, however it went, and tidy up in its place.

    A parent-death signal would not do: the parent is the forkserver, which lives as long as any rank does.
    """

    def watch() -> None:
        launcher.wait()
        forkserver.tidy_up(environment.launchers_folder())
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, daemon=True).start()
