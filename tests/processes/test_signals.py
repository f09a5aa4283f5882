"""A process that is ended before there is anything to save says so, whatever it is waiting for."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import re
import signal
import subprocess
import sys

import pytest

from dgt.launching import forkserver

WAITING = """
import ctypes, sys
from dgt.processes import output, signals
output.log_to_stderr(is_main={speaks})
signals.exit_on_signals(clean_up=lambda: print("tidy", flush=True))
print("there", flush=True)
ctypes.CDLL(None).sleep(60)  # no Python in between, as in torch's store
ctypes.CDLL(None).sleep(60)  # a signal ends the first one
"""


@pytest.mark.parametrize(
    ("number", "speaks", "code"),
    [
        (signal.SIGTERM, True, 143),
        (signal.SIGTERM, False, 143),
        (signal.SIGUSR1, True, 75),
        (signal.SIGHUP, True, 129),
    ],
)
def test_a_signal_during_start_up_is_named(number: signal.Signals, speaks: bool, code: int) -> None:
    line = [sys.executable, "-c", WAITING.format(speaks=speaks)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        out, words = process.communicate(timeout=20)
    assert process.returncode == code
    assert out == "tidy\n"
    said = rf"dgt: ended by {number.name} \d+ s after the start, before there was anything to save\n"
    assert re.fullmatch(said if speaks else "", words)


def said(*lines: str) -> tuple[int, str, str]:
    """Exit code and words of a program that has begun like the command."""
    begun = ["import signal, time", "from dgt.processes import output, signals", "output.log_to_stderr(is_main=True)"]
    begun.append("signals.exit_on_signals(lambda: None)")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(begun + list(lines))], capture_output=True, text=True, timeout=15
    )
    return done.returncode, done.stdout, done.stderr


def test_handlers_that_come_later_have_the_say() -> None:
    later = "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))"
    assert said(later, "signal.raise_signal(signal.SIGTERM)", "time.sleep(0.3)") == (0, "mine\n", "")


SWALLOWED = """
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(20)
except BaseException:
    time.sleep(20)
"""


def test_ctrl_c_during_imports_is_not_swallowed() -> None:
    """torch went on when it hit the import of numpy, and sixteen ranks trained for ever."""
    assert said(SWALLOWED) == (130, "", "dgt: interrupted\n")


USUAL = """
signals.restore_keyboard_interrupt()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("mine")
"""


def test_ctrl_c_is_pythons_own_once_all_is_imported() -> None:
    assert said(USUAL) == (0, "mine\n", "")


EARLIEST = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "dgt.processes.signals":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from dgt.__main__ import main
"""


def test_ctrl_c_before_anything_is_set_up_is_no_traceback() -> None:
    """It was one in the first half second, while the command's own modules were imported."""
    done = subprocess.run([sys.executable, "-c", EARLIEST], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_signal_while_the_forkserver_is_started_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals were ignored for that moment: a SIGTERM in it was lost, and the run went on."""
    heard: list[int] = []
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        forkserver.start()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
