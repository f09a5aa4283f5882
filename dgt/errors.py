"""Every error that dgt raises on purpose, and the exit codes of its commands. Each is printed as one line.

ConfigError     bad input: exit code 2                                  base of SharedError, DataError
TrainingError   the run cannot go on: exit code 1                       base of AlarmError, StoreError
PeerError       another rank did not answer, or is gone
WireError       a message is not the expected one
LaunchError     ranks that this process started did not finish; carries their exit code
DamagedError    a checkpoint fails its checksum; the one before it is used
SilenceError    packets to an address are dropped: no connection is even refused
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: asked to stop, and ready to be resumed
_NO_TEXT = (
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)  # line breaks, text directions, surrogates
_CONTROLS = (
    {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
    | {code: f"\\u{code:04x}" for code in _NO_TEXT}
    | {ord("\t"): " ", ord("\n"): " "}
)
_IN_LINES = {code: text for code, text in _CONTROLS.items() if code not in (ord("\t"), ord("\n"))}


def printable(text: str, lines: bool = False) -> str:
    """The text with control characters escaped, for terminals and files; `lines` keeps line breaks and tabs."""
    return text.translate(_IN_LINES if lines else _CONTROLS)


class ConfigError(ValueError):
    """Bad input: one line that names the value and what is allowed, and exit code 2."""

    def __init__(self, words: str) -> None:
        super().__init__(printable(" ".join(words.splitlines())))  # messages of other libraries may have several lines


class SharedError(ConfigError):
    """A `ConfigError` found by comparing the ranks: all of them raise it, so only rank 0 prints it."""


class DataError(ConfigError):
    """The data set is missing, incomplete, or cannot be written."""


class TrainingError(RuntimeError):
    """The run cannot go on; raised by the rank that detects it."""


class AlarmError(TrainingError):
    """A metric of the whole network is wrong: no rank may go on, not even without the node that detected it."""


class StoreError(TrainingError):
    """The rendezvous store is lost: ranks cannot agree on anything any more."""


class PeerError(RuntimeError):
    """Another rank did not answer in time, or its connection is gone.

    peers   nodes one of which failed on a connection of this rank; empty if this rank only knows that some rank failed
    """

    def __init__(self, words: str, peers: Sequence[int] = ()) -> None:
        super().__init__(words)
        self.peers = tuple(peers)


class WireError(RuntimeError):
    """A message that is not the expected one: stale, short, of another layout, or damaged."""


class SilenceError(RuntimeError):
    """No connection was even refused: packets to that address are dropped."""


class DamagedError(Exception):
    """A checkpoint that cannot be used, and why."""


class LaunchError(RuntimeError):
    """The ranks did not finish: the reason in one line, and the exit code of this process."""

    def __init__(self, reason: str, code: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.code = code
