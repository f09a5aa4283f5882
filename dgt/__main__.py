"""The `dgt` command, `python -m dgt` and `torchrun -m dgt`.

Commands that start ranks start the forkserver first: importing torch takes seconds, and both processes do it at the
same time.
"""

import errno
import logging
import os
import select
import signal
import sys

_ctrl_c = signal.getsignal(signal.SIGINT)
if _ctrl_c is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of a KeyboardInterrupt during these imports

from dgt import commands  # noqa: E402
from dgt.commands.base import Command  # noqa: E402
from dgt.errors import printable  # noqa: E402
from dgt.launching import forkserver  # noqa: E402
from dgt.processes import environment, output, process, signals  # noqa: E402

signal.signal(signal.SIGINT, _ctrl_c)

log = logging.getLogger("dgt")
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
IN_A_LINE = dict.fromkeys(NO_DESCRIPTORS, "; allow more: ulimit -n 1024") | {
    errno.ENAMETOOLONG: "; names have at most 255 characters, paths 4095"
}


def main() -> None:
    """Entry point of the console command."""
    closed, writes_results = output.open_missing(), False
    output.log_to_stderr(is_main=not environment.is_other_rank())
    if not _has_current_directory():
        log.error("the current directory was removed; cd to another one")
        raise SystemExit(2)
    try:
        command = commands.find(sys.argv[1]) if len(sys.argv) > 1 else None
        writes_results = command is not None and command.writes_results
        output.ignore_write_errors(stdout=writes_results)
        _run(command)
        sys.stdout.flush()
        signals.ignore_signals()
    except BrokenPipeError:  # the reader has closed the pipe: `dgt gaps | head -1`
        if not _has_no_reader(sys.stdout.fileno()):
            raise
        output.redirect_to_null()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if error is output.failure():
            output.redirect_to_null()
            log.error("standard output cannot be written (%s)", error.strerror)
            raise SystemExit(1) from None
        if error.errno not in IN_A_LINE:
            raise
        forkserver.stop()
        name = printable(str(error.filename or ""))
        words = f"{name[:60]}...: {error.strerror}" if name else error.strerror
        log.error("%s%s", words, IN_A_LINE[error.errno])
        raise SystemExit(1 if error.errno in NO_DESCRIPTORS else 2) from None
    except KeyboardInterrupt:  # while torch is still being imported
        forkserver.stop()
        log.info("interrupted", extra=output.EVERY_RANK)
        raise SystemExit(128 + signal.SIGINT) from None
    if 1 in closed and not writes_results:
        log.error("standard output is closed, and this command only prints")
        raise SystemExit(1)


def _run(command: Command | None) -> None:
    process.die_with_torchrun()
    signals.exit_on_signals(clean_up=forkserver.stop_and_clean_up)
    if command is not None and command.computes_alone:
        environment.one_thread()
    wanted = command is not None and command.starts_ranks and not {"-h", "--help"} & set(sys.argv)
    if wanted and environment.starts_ranks():
        try:
            forkserver.start()
        except OSError as error:  # no writable temporary directory, as in a read-only container
            log.error("cannot start ranks (%s)", error.strerror or error)
            raise SystemExit(1) from None
    from dgt import cli

    if command is not None:
        import dgt.launching.run  # noqa: F401  (imports torch: KeyboardInterrupt is restored after it)
    signals.restore_keyboard_interrupt()
    cli.main()


def _has_current_directory() -> bool:
    """Whether the current directory exists: without one, loading torch's libraries aborts the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _has_no_reader(descriptor: int) -> bool:
    """Whether this descriptor is a pipe whose reader has closed it; a BrokenPipeError may also be of another pipe."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
