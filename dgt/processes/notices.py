"""Control information between ranks: the goodbye of a rank that leaves, the steps to stop and save at, lost peers."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_GOODBYE = struct.Struct("<4sQ52x")
_BYE = b"bye2"


def goodbye(steps: int) -> bytes:
    """The message of a rank that has left without an error, for neighbours that wait for its next one: 64 bytes."""
    return _GOODBYE.pack(_BYE, steps)


def steps_at_goodbye(head: bytes) -> int | None:
    """How many steps the rank that has left made; None if this is the head of another message."""
    mark, steps = _GOODBYE.unpack(head)
    return int(steps) if mark == _BYE else None


def has_left(own: str, who: str, steps: int, where: str) -> str:
    """The error message when another rank has left and this one still needs it."""
    return (
        f"{own}: {who} has left after {steps} steps, this node is {where}: do all ranks make the same number of "
        "steps? `for batch in dgt.even_steps(loader, node):` makes them agree"
    )


NEVER = 2**32 - 1


@dataclass(slots=True)
class Notices:
    """The iterations to stop and to save at, in the head of every message; each rank takes the minimum it receives.

    A rank that announces one adds its distance to the furthest node (`Network.eccentricity`) to its own iteration: by
    then the number has passed from neighbour to neighbour to all ranks, which act at the same iteration.
    """

    stop_at: int = NEVER
    save_at: int = NEVER
    stop_asked: int = 0
    """Number of the signal that asked this rank to stop, or 0; announced with the next step."""
    save_asked: bool = False
    leave_asked: bool = False
    """This node is to leave the others on purpose."""

    def hear(self, stop_at: int, save_at: int) -> None:
        """Take the earlier of what is known here and what a message says."""
        self.stop_at, self.save_at = min(self.stop_at, stop_at), min(self.save_at, save_at)

    def announce(self, iteration: int, stop: bool, save: bool) -> None:
        """Announce that this node was asked to stop or to save, for that iteration, unless an earlier one is known."""
        self.hear(iteration if stop else NEVER, iteration if save else NEVER)


# gloo and nccl raise RuntimeErrors without a code: words of those about a connection that has ended; the last is in
# every error of gloo's sockets
CONNECTION_WORDS = ("connection", "closed", "reset", "broken pipe", "socket", "remote", "is gone", "gloo/transport")


@dataclass(frozen=True, slots=True)
class Absence:
    """How a peer failed to answer: `str` continues a sentence that begins with the peer."""

    timed_out: bool
    """No message within the timeout; else the connection was closed."""
    timeout: float

    def __str__(self) -> str:
        return f"did not answer within {self.timeout:g} s" if self.timed_out else "is gone (connection closed)"


def absence(error: Exception, timeout: float) -> Absence:
    """What an error of gloo or nccl means for the peer; raises the error again if it is about something else."""
    text = str(error).lower()
    if isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text:
        return Absence(True, timeout)
    if any(word in text for word in CONNECTION_WORDS):
        return Absence(False, timeout)
    raise error
