"""The frame around every message: what it is, checked on receipt. gloo and shared memory check nothing themselves.

    | head, 64 bytes | payload | tail, 8 bytes |

The head says who sent it, how long it is, how it is laid out, its number and its iteration; it carries the notices that
travel with the messages (`world.Notices`), a checksum of itself, and of the payload too where that is wanted. The
tail repeats the checksum: of a message that came in short, the end is still the one before.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

import torch

from dgt.notices import WireError
from dgt.world import Node

HEAD, TAIL = 64, 8
_WHAT = struct.Struct("<4sIQ16s")  # mark, sender, length, layout
_WHEN = struct.Struct("<QQ")  # number, iteration
_REST = struct.Struct("<IIII")  # stop_at, save_at, checksum of the payload, checksum of all before
_TAIL = struct.Struct("<II")
_MARK = b"dgt1"
_CHECKED = HEAD - 4


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
        return zlib.crc32(self.memory[HEAD:-TAIL])


def _view(raw: torch.Tensor) -> memoryview:
    return memoryview(raw.numpy())  # type: ignore[arg-type]  # arrays are buffers


def number_of(frame: Frame) -> int:
    """The number its head gives the message."""
    return int(_WHEN.unpack(frame.ends()[0][_WHAT.size : _WHAT.size + _WHEN.size])[0])


class Seal:
    """Writes and checks the heads of one stream of messages."""

    def __init__(self, node: Node, kind: str, like: torch.Tensor, crc: bool) -> None:
        self.node, self._kind, self._notices, self._crc = node, kind, node.notices, crc
        self._length, self.layout = like.numel() * like.element_size(), layout(kind, like)
        self._what: dict[int, bytes] = {}

    def _of(self, sender: int) -> bytes:
        if sender not in self._what:
            self._what[sender] = _WHAT.pack(_MARK, sender, self._length, self.layout)
        return self._what[sender]

    def write(self, frame: Frame, number: int, iteration: int) -> None:
        notices, content = self._notices, frame.checksum() if self._crc else 0
        begin = self._of(self.node.rank) + _WHEN.pack(number, iteration)
        head = begin + _REST.pack(notices.stop_at, notices.save_at, content, 0)[:12]
        own = zlib.crc32(head)
        frame.write(head + own.to_bytes(4, "little"), _TAIL.pack(own, number & 0xFFFFFFFF))

    def check(self, frame: Frame, sender: int, number: int, iteration: int) -> None:
        """Raise `WireError` unless this is the message that was asked for; take its notices."""
        head, tail = frame.ends()
        own = zlib.crc32(head[:_CHECKED])
        expected = self._of(sender) + _WHEN.pack(number, iteration)
        if (
            head[: len(expected)] != expected
            or head[_CHECKED:] != own.to_bytes(4, "little")
            or tail != _TAIL.pack(own, number & 0xFFFFFFFF)
        ):
            raise self._error(sender, iteration, _difference(head, tail, expected, own))
        stop_at, save_at, content, _ = _REST.unpack(head[len(expected) :])
        if self._crc and content != frame.checksum():
            raise self._error(sender, iteration, "its content changed on the way")
        self._notices.hear(stop_at, save_at)

    def _error(self, sender: int, iteration: int, what: str) -> WireError:
        return WireError(
            f"node {self.node.name}: the {self._kind} of iteration {iteration} from neighbour "
            f"{self.node.members[sender]} is wrong: {what}"
        )


def _difference(head: bytes, tail: bytes, expected: bytes, own: int) -> str:
    """What is wrong with a head, in words."""
    if head[_CHECKED:] != own.to_bytes(4, "little"):
        return "its head is damaged"
    mark, sender, length, laid_out = _WHAT.unpack(head[: _WHAT.size])
    number, iteration = _WHEN.unpack(head[_WHAT.size : _WHAT.size + _WHEN.size])
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
    assert tail != _TAIL.pack(own, number & 0xFFFFFFFF)
    return "its end is missing"
