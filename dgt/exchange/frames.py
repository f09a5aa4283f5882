"""The frame around every message: what it is, checked on receipt. gloo and shared memory check nothing themselves.

    | head, 64 bytes | payload | tail, 8 bytes |

The head says who sent it, how long it is, how it is laid out, its number and its iteration; it carries the notices that
travel with the messages (`world.Notices`), a checksum of itself, and of the payload too where that is wanted. The
tail repeats the checksum: of a message that came in short, the end is still the one before.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from zlib import crc32

import torch

from dgt.node import Node
from dgt.notices import NEVER, WireError

HEAD, TAIL = 64, 8
_WHAT = struct.Struct("<4sIQ16s")  # mark, sender, length, layout
_WHEN = struct.Struct("<QQ")  # number, iteration
_REST = struct.Struct("<III")  # stop_at, save_at, checksum of the payload; then the checksum of all before
_MARK = b"dgt1"
_BEGIN, _CHECKED = _WHAT.size + _WHEN.size, HEAD - 4
_QUIET = _REST.pack(NEVER, NEVER, 0)


def frame_bytes(like: torch.Tensor) -> int:
    """Size of a message like this tensor, head and tail included."""
    return HEAD + -(-like.numel() * like.element_size() // TAIL) * TAIL + TAIL


def layout(kind: str, like: torch.Tensor) -> bytes:
    """16 bytes that differ for messages of another kind, shape or dtype."""
    return hashlib.blake2b(f"{kind} {tuple(like.shape)} {like.dtype}".encode(), digest_size=16).digest()


class Frame:
    """Memory for one message: `raw` travels, `payload` is what the algorithm reads and writes."""

    __slots__ = ("_memory", "payload", "raw")

    def __init__(self, raw: torch.Tensor, like: torch.Tensor) -> None:
        self.raw = raw
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
            both = torch.frombuffer(bytearray(head + tail), dtype=torch.uint8).to(self.raw.device)
            self.raw[:HEAD], self.raw[-TAIL:] = both[:HEAD], both[HEAD:]

    def ends(self) -> tuple[bytes, bytes]:
        """Head and tail as they arrived."""
        if self._memory is not None:
            return bytes(self._memory[:HEAD]), bytes(self._memory[-TAIL:])
        both = bytes(torch.cat([self.raw[:HEAD], self.raw[-TAIL:]]).cpu().numpy())
        return both[:HEAD], both[HEAD:]

    def checksum(self) -> int:
        """CRC-32 of everything between head and tail."""
        return crc32(self.memory[HEAD:-TAIL])


def _view(raw: torch.Tensor) -> memoryview:
    return memoryview(raw.numpy())  # type: ignore[arg-type]  # arrays are buffers


def number_of(frame: Frame) -> int:
    """The number its head gives the message."""
    return int(_WHEN.unpack(frame.ends()[0][_WHAT.size : _BEGIN])[0])


class Seal:
    """Writes and checks the heads of one stream of messages.

    A small model's iteration takes a few dozen microseconds, so the right message is known by comparing bytes.
    """

    def __init__(self, node: Node, kind: str, like: torch.Tensor, crc: bool) -> None:
        self.node, self._kind, self._notices, self._crc = node, kind, node.notices, crc
        length, self.layout = like.numel() * like.element_size(), layout(kind, like)
        self._what = [_WHAT.pack(_MARK, sender, length, self.layout) for sender in range(node.size)]

    def write(self, frame: Frame, number: int, iteration: int) -> None:
        notices, content = self._notices, frame.checksum() if self._crc else 0
        head = self._what[self.node.rank] + _WHEN.pack(number, iteration)
        head += _REST.pack(notices.stop_at, notices.save_at, content)
        own = crc32(head).to_bytes(4, "little")
        frame.write(head + own, own + own)

    def check(self, frames: Iterable[tuple[int, Frame]], number: int, iteration: int) -> None:
        """Raise `WireError` unless these are the messages that were asked for, by sender; take their notices."""
        when = _WHEN.pack(number, iteration)
        for sender, frame in frames:
            head, tail = frame.ends()
            own = head[_CHECKED:]
            if (
                head[:_BEGIN] != self._what[sender] + when
                or crc32(head[:_CHECKED]).to_bytes(4, "little") != own
                or tail != own + own
            ):
                raise self._error(sender, iteration, _difference(head, self._what[sender] + when))
            if self._crc or head[_BEGIN:_CHECKED] != _QUIET:
                stop_at, save_at, content = _REST.unpack(head[_BEGIN:_CHECKED])
                if self._crc and content != frame.checksum():
                    raise self._error(sender, iteration, "its content changed on the way")
                self._notices.hear(stop_at, save_at)

    def _error(self, sender: int, iteration: int, what: str) -> WireError:
        return WireError(
            f"node {self.node.name}: the {self._kind} of iteration {iteration} from neighbour "
            f"{self.node.members[sender]} is wrong: {what}"
        )


def _difference(head: bytes, expected: bytes) -> str:
    """What is wrong with a head, in words."""
    if crc32(head[:_CHECKED]).to_bytes(4, "little") != head[_CHECKED:]:
        return "its head is damaged"
    mark, sender, length, laid_out = _WHAT.unpack(head[: _WHAT.size])
    number, iteration = _WHEN.unpack(head[_WHAT.size : _BEGIN])
    want_mark, want_sender, want_length, want_laid_out = _WHAT.unpack(expected[: _WHAT.size])
    want_number, want_iteration = _WHEN.unpack(expected[_WHAT.size :])
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
    return "its end is missing"
