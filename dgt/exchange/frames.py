"""The frame around every message: what it is, checked on receipt. gloo and shared memory check nothing themselves.

    | head, 64 bytes | payload | tail, 8 bytes |

The head says who sent it, how long it is, how it is laid out, its number, its iteration and the lr it was made with; it
carries the notices that travel with messages (`notices.Notices`), a checksum of itself, and of the payload too where
that is wanted. The tail repeats the checksum: of a message that came in short, the end is still the one before.

A rank that leaves sends a goodbye (`notices.goodbye`) under the tag of its next message: a head only, and no other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

import torch

from dgt.errors import ConfigError, TrainingError, WireError
from dgt.processes.node import Node
from dgt.processes.notices import NEVER, has_left, steps_at_goodbye

HEAD, TAIL = 64, 8
HEADS = 4  # that may be on their way to a GPU at a time
_WHAT = struct.Struct("<4sIQ8s")  # mark, sender, length, layout
_WHEN = struct.Struct("<QQ")  # number, iteration
_SETTINGS = struct.Struct("<fI")  # lr of the first group, digest of all groups
_REST = struct.Struct("<III")  # stop_at, save_at, checksum of the payload; then the checksum of all before
_MARK = b"dgt2"
_BEGIN, _CHECKED = _WHAT.size + _WHEN.size + _SETTINGS.size, HEAD - 4
_QUIET = _REST.pack(NEVER, NEVER, 0)


def frame_bytes(like: torch.Tensor) -> int:
    """Size of a message like this tensor, head and tail included."""
    return HEAD + -(-like.numel() * like.element_size() // TAIL) * TAIL + TAIL


def layout(kind: str, like: torch.Tensor) -> bytes:
    """8 bytes that differ for messages of another kind, shape or dtype."""
    return hashlib.blake2b(f"{kind} {tuple(like.shape)} {like.dtype}".encode(), digest_size=8).digest()


class Settings:
    """What all nodes must make a step with: lr and weight decay of every parameter group.

    Rounded to float32: hosts whose mathematical libraries differ in the last bit of a schedule still agree.
    """

    __slots__ = ("digest", "packed")

    def __init__(self) -> None:
        self.digest, self.packed = 0, bytes(_SETTINGS.size)

    def note(self, values: Sequence[float]) -> None:
        """From here on these are used; the first is the first group's lr."""
        self.digest = crc32(struct.pack(f"<{len(values)}f", *values))
        self.packed = _SETTINGS.pack(values[0], self.digest)


class Frame:
    """Memory for one message: `raw` travels, `payload` is what the algorithm reads and writes."""

    __slots__ = ("_heads", "_memory", "_writes", "payload", "raw")

    def __init__(self, raw: torch.Tensor, like: torch.Tensor) -> None:
        self.raw = raw
        self._heads: list[torch.Tensor] = []  # in pinned memory, on their way to a GPU
        self._writes = 0
        length = like.numel() * like.element_size()
        self.payload = raw[HEAD : HEAD + length].view(like.dtype).view(like.shape)
        self._memory: memoryview | None = _view(raw) if raw.device.type == "cpu" else None

    @property
    def memory(self) -> memoryview:
        """The frame in main memory; a GPU's is copied there."""
        return self._memory if self._memory is not None else _view(self.raw.cpu())

    def write(self, head: bytes, tail: bytes) -> None:
        if self._memory is not None:
            self._memory[:HEAD], self._memory[-TAIL:] = head, tail
        else:
            both = self._next_head()
            both.numpy()[:] = bytearray(head + tail)
            self.raw[:HEAD].copy_(both[:HEAD], non_blocking=True)
            self.raw[-TAIL:].copy_(both[HEAD:], non_blocking=True)

    def _next_head(self) -> torch.Tensor:
        """Where a head may be written: one is read by the GPU until the step after it is confirmed (`evidence.py`)."""
        if len(self._heads) < HEADS:
            self._heads.append(torch.zeros(HEAD + TAIL, dtype=torch.uint8, pin_memory=True))
        self._writes += 1
        return self._heads[self._writes % len(self._heads)]

    def ends(self) -> tuple[bytes, bytes]:
        """Head and tail as they arrived."""
        if self._memory is not None:
            return bytes(self._memory[:HEAD]), bytes(self._memory[-TAIL:])
        both = bytes(torch.cat([self.raw[:HEAD], self.raw[-TAIL:]]).cpu().numpy())
        return both[:HEAD], both[HEAD:]

    def checksum(self) -> int:
        """CRC-32 of everything between head and tail."""
        return crc32(self.memory[HEAD:-TAIL])


class _Ends:
    """Head and tail of a frame whose content is elsewhere."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def ends(self) -> tuple[bytes, bytes]:
        return self._content[:HEAD], self._content[HEAD:]

    def checksum(self) -> int:
        raise NotImplementedError("crc=True looks at content as soon as it is there")


def _view(raw: torch.Tensor) -> memoryview:
    return memoryview(raw.numpy())  # type: ignore[arg-type]  # arrays are buffers


def number_of(frame: Frame) -> int:
    """The number its head gives the message."""
    return int(_WHEN.unpack_from(frame.ends()[0], _WHAT.size)[0])


class Seal:
    """Writes and checks the heads of one stream of messages.

    A small model's iteration takes a few dozen microseconds, so the right message is known by comparing bytes.
    """

    def __init__(self, node: Node, kind: str, like: torch.Tensor, crc: bool, settings: Settings | None = None) -> None:
        self.node, self._kind, self._notices, self._crc = node, kind, node.notices, crc
        self._settings = settings or Settings()
        self._used = self._settings.packed
        self.last = -1
        """The iteration of the last message that was the right one."""
        length, self.layout = like.numel() * like.element_size(), layout(kind, like)
        self._what = [_WHAT.pack(_MARK, sender, length, self.layout) for sender in range(node.size)]

    def write(self, frame: Frame, number: int, iteration: int) -> None:
        notices, content = self._notices, frame.checksum() if self._crc else 0
        # the answers are compared with these: by the time they are read, a schedule may have gone on
        self._used = self._settings.packed
        head = self._what[self.node.rank] + _WHEN.pack(number, iteration) + self._used
        head += _REST.pack(notices.stop_at, notices.save_at, content)
        own = crc32(head).to_bytes(4, "little")
        frame.write(head + own, own + own)

    def check(
        self, frames: Iterable[tuple[int, Frame | _Ends]], number: int, iteration: int, used: bytes | None = None
    ) -> None:
        """Raise `WireError` unless these are the messages that were asked for, by sender; take their notices.

        used   the settings that the answers are compared with, if not those of now
        """
        rest = _WHEN.pack(number, iteration) + (self._used if used is None else used)
        for sender, frame in frames:
            head, tail = frame.ends()
            own = head[_CHECKED:]
            if (
                head[:_BEGIN] != self._what[sender] + rest
                or crc32(head[:_CHECKED]).to_bytes(4, "little") != own
                or tail != own + own
            ):
                raise self._error(sender, iteration, head, self._what[sender] + rest)
            if self._crc or head[_BEGIN:_CHECKED] != _QUIET:
                stop_at, save_at, content = _REST.unpack(head[_BEGIN:_CHECKED])
                if self._crc and content != frame.checksum():
                    raise self._wrong(sender, iteration, "its content changed on the way")
                self._notices.hear(stop_at, save_at)
        self.last = iteration

    def check_later(self, senders: Sequence[int], number: int, iteration: int) -> Callable[[bytes], None]:
        """The same for heads that are still on a GPU: to be called with `HEAD` and `TAIL` of every sender in turn."""
        used = self._used

        def check(content: bytes) -> None:
            width = HEAD + TAIL
            ends = [_Ends(content[k * width : (k + 1) * width]) for k in range(len(senders))]
            self.check(zip(senders, ends, strict=True), number, iteration, used)

        return check

    def _error(self, sender: int, iteration: int, head: bytes, expected: bytes) -> Exception:
        steps = steps_at_goodbye(head)
        if steps is not None:
            who = f"neighbour {self.node.members[sender]}"
            return TrainingError(has_left(self.node.title, who, steps, f"at step {iteration + 1}"))
        what = _difference(head, expected)
        if not what:
            return ConfigError(self._other_settings(sender, iteration, head, expected))
        return self._wrong(sender, iteration, what)

    def _wrong(self, sender: int, iteration: int, what: str) -> WireError:
        return WireError(
            f"{self.node.title}: the {self._kind} of iteration {iteration} from neighbour "
            f"{self.node.members[sender]} is wrong: {what}"
        )

    def _other_settings(self, sender: int, iteration: int, head: bytes, expected: bytes) -> str:
        place, who = _WHAT.size + _WHEN.size, self.node.members[sender]
        (own, _), (theirs, _) = (_SETTINGS.unpack_from(each, place) for each in (expected, head))
        what = f"lr is {own:.7g} here and {theirs:.7g} on neighbour {who}"
        if f"{own:.7g}" == f"{theirs:.7g}":
            others = "a weight_decay, momentum or beta, or the lr of a later parameter group"
            what = f"{others}, is another one on neighbour {who}"
        return (
            f"{self.node.title}: {what} at iteration {iteration}; all ranks need the same lr and weight_decay at "
            "every step: the same schedule, and none that looks at a rank's own loss"
        )


def _difference(head: bytes, expected: bytes) -> str:
    """What is wrong with a head, in words; none if it is only the settings."""
    if crc32(head[:_CHECKED]).to_bytes(4, "little") != head[_CHECKED:]:
        return "its head is damaged"
    mark, sender, length, laid_out = _WHAT.unpack_from(head)
    number, iteration = _WHEN.unpack_from(head, _WHAT.size)
    want_mark, want_sender, want_length, want_laid_out = _WHAT.unpack_from(expected)
    want_number, want_iteration = _WHEN.unpack_from(expected, _WHAT.size)
    if mark != want_mark:
        return "it is no message of this version of dgt"
    if sender != want_sender:
        return f"node {sender} sent it"
    if length != want_length:
        return f"{length} bytes in place of {want_length}"
    if laid_out != want_laid_out:
        return "another kind, shape or dtype"
    if (number, iteration) != (want_number, want_iteration):
        return f"it is number {number} of iteration {iteration}, expected {want_number} of {want_iteration}"
    return "" if head[:_BEGIN] != expected else "its end is missing"
