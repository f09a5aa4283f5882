"""The `dgt` command, `python -m dgt` and `torchrun -m dgt`.

Commands that start ranks start the warm process that forks them first of all: importing torch takes seconds, and the
two processes can do it at the same time.
"""

import os
import select
import signal
import sys

from dgt import forkserver, signals, world

STARTS_RANKS = ("train", "compare", "bench", "run", "doctor")
IN_ONE_PROCESS = ("simulate", "plan", "gaps")


def main() -> None:
    """Entry point of the console command."""
    try:
        _run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough: `dgt gaps | head -1`
        if not _nobody_reads(sys.stdout.fileno()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    except KeyboardInterrupt:  # while torch is still being imported
        forkserver.stop()
        print("dgt: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _run() -> None:
    world.die_with_torchrun()
    signals.say_when_ended(speaks=not world.is_other_rank(), tidy_up=forkserver.stop)
    if len(sys.argv) > 1 and sys.argv[1] in IN_ONE_PROCESS:
        world.one_thread()
    wanted = len(sys.argv) > 1 and sys.argv[1] in STARTS_RANKS and not {"-h", "--help"} & set(sys.argv)
    if wanted and world.starts_ranks():
        try:
            forkserver.start()
        except OSError as error:  # no place for temporary files, as in a container that is read-only throughout
            print(f"dgt: error: cannot start ranks ({error.strerror or error})", file=sys.stderr)
            raise SystemExit(1) from None
    from dgt import cli

    signals.interrupt_as_usual()
    cli.main()


def _nobody_reads(descriptor: int) -> bool:
    """Whether the other end of this pipe is closed; others, as those to the ranks, may break too."""
    look = select.poll()
    look.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in look.poll(0))


if __name__ == "__main__":
    main()
