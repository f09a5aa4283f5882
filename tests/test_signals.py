"""A process that is ended before there is anything to save says so, whatever it is waiting for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITING = """
import ctypes, sys
from dgt import signals
signals.say_when_ended(speaks={speaks}, tidy_up=lambda: print("tidy", flush=True))
print("there", flush=True)
ctypes.CDLL(None).sleep(60)  # no Python in between, as in torch's store
ctypes.CDLL(None).sleep(60)  # a signal ends the first one
"""


@pytest.mark.parametrize(
    ("number", "speaks", "code"),
    [(signal.SIGTERM, True, 143), (signal.SIGTERM, False, 143), (signal.SIGUSR1, True, 75)],
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
    said = f"dgt: ended by {number.name} 0 s after the start, before there was anything to save\n"
    assert words == (said if speaks else "")


def test_handlers_that_come_later_have_the_say() -> None:
    later = (
        "from dgt import signals\nimport signal, time\n"
        "signals.say_when_ended(True, lambda: None)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n"
        "signal.raise_signal(signal.SIGTERM)\ntime.sleep(0.3)\n"
    )
    done = subprocess.run([sys.executable, "-c", later], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")


def test_a_ctrl_c_that_went_astray_comes_again() -> None:
    """Once the launcher of sixteen ranks went on after it, for ever."""
    astray = (
        "from dgt import signals\nimport signal, time\n"
        "signals.INSIST_SECONDS = 0.2\n"
        "signals.say_when_ended(True, lambda: None)\n"
        "heard = []\n"
        "signal.signal(signal.SIGINT, lambda *_: heard.append(1))\n"  # as good as swallowed
        "signal.raise_signal(signal.SIGINT)\n"
        "while len(heard) < 3:\n    time.sleep(0.01)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\ntime.sleep(0.5)\nprint('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", astray], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
