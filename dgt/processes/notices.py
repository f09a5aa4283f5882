"""What ranks tell each other besides numbers: that a peer is gone, a message wrong, a stop or a checkpoint wanted."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_GOODBYE = struct.Struct("<4sQ52x")
_BYE = b"bye2"


def goodbye(steps: int) -> bytes:
    """The message of a rank that has left in good order, to neighbours who may wait for its next one: 64 bytes."""
    return _GOODBYE.pack(_BYE, steps)


def steps_at_goodbye(head: bytes) -> int | None:
    """How many steps the rank that has left made; None if this is the head of another message."""
    mark, steps = _GOODBYE.unpack(head)
    return int(steps) if mark == _BYE else None


def has_left(node: int, who: str, steps: int, where: str) -> str:
    """What is wrong when another rank has left and this one goes on, and what to do about it."""
    return (
        f"node {node}: {who} has left after {steps} steps, this node is {where}: do all ranks make the same number of "
        "steps? `for batch in dgt.even_steps(loader, node):` makes them agree"
    )


NEVER = 2**32 - 1


@dataclass(slots=True)
class Notices:
    """What travels in the head of every message: the iteration to stop at, and to save at. The earliest counts.

    Whoever announces one chooses it so far ahead that everybody has heard of it by then, neighbour by neighbour: so
    all ranks act at the same iteration without asking anyone.
    """

    stop_at: int = NEVER
    save_at: int = NEVER
    stop_asked: int = 0
    """The signal that asked this rank to stop; it is announced with the next step."""
    save_asked: bool = False

    def hear(self, stop_at: int, save_at: int) -> None:
        self.stop_at, self.save_at = min(self.stop_at, stop_at), min(self.save_at, save_at)

    def announce(self, iteration: int) -> None:
        """Pass on what this rank was asked for, to be done at that iteration unless others are earlier."""
        self.hear(iteration if self.stop_asked else NEVER, iteration if self.save_asked else NEVER)
        self.save_asked = False


# in what gloo and nccl say of a connection that has ended; the last is in every error of gloo's sockets
GONE = ("connection", "closed", "reset", "broken pipe", "socket", "remote", "is gone", "gloo/transport")


def absence(error: Exception, timeout: float) -> str:
    """What gloo's or nccl's error says of a missing peer, in plain words; other errors are raised again."""
    text = str(error).lower()
    if isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text:
        return f"did not answer within {timeout:g} s"
    if any(word in text for word in GONE):
        return "is gone (connection closed)"
    raise error
