"""Every error that dgt raises on purpose, and the exit codes of its commands. All are told in one line.

ConfigError     what the user gave cannot be used: exit code 2        SharedError, DataError are such
TrainingError   the run cannot go on: exit code 1                     AlarmError, StoreError are such
PeerError       another rank did not answer, or is gone
WireError       a message is not the one asked for
LaunchError     ranks that this process started did not finish; carries their exit code
DamagedError    a checkpoint whose bits are wrong; the one before it is used
SilenceError    an address where nobody answers, not even with a refusal
"""

from __future__ import annotations

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: asked to stop, and ready to be resumed
_NO_TEXT = (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))  # breaks, directions, halves
_CONTROLS = (
    {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
    | {code: f"\\u{code:04x}" for code in _NO_TEXT}
    | {ord("\t"): " ", ord("\n"): " "}
)
_IN_LINES = {code: text for code, text in _CONTROLS.items() if code not in (ord("\t"), ord("\n"))}


def printable(text: str, lines: bool = False) -> str:
    """The text without what a terminal obeys, or no file can hold; `lines` keeps line breaks and tabs."""
    return text.translate(_IN_LINES if lines else _CONTROLS)


class ConfigError(ValueError):
    """Bad input: one line that names the value and what is allowed, and exit code 2."""

    def __init__(self, words: str) -> None:
        super().__init__(printable(" ".join(words.splitlines())))  # other people's reasons may have several


class SharedError(ConfigError):
    """A `ConfigError` found by comparing the ranks: all of them raise it, so only rank 0 prints it."""


class DataError(ConfigError):
    """The data set is not there, not whole, or cannot be stored."""


class TrainingError(RuntimeError):
    """The run cannot go on; raised by the rank that finds out."""


class AlarmError(TrainingError):
    """The network as a whole is unwell: no rank may go on, not even without the node that noticed."""


class StoreError(TrainingError):
    """The store in which ranks met is gone: nothing can be decided together any more."""


class PeerError(RuntimeError):
    """Another rank did not answer in time, or its connection is gone."""


class WireError(RuntimeError):
    """A message that is not the one asked for: stale, short, of another layout, or damaged."""


class SilenceError(RuntimeError):
    """No connection was even refused: whatever is sent to that address is dropped."""


class DamagedError(Exception):
    """A checkpoint that cannot be used; says why."""


class LaunchError(RuntimeError):
    """The ranks did not finish; says why in one line and with which exit code to leave."""

    def __init__(self, reason: str, code: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.code = code
