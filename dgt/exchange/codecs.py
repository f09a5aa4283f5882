"""How the change of a vector is written for the way, and what neighbours make of it: bfloat16, float16, int8, int4.

    codec.send(vector, estimate, part, ...)      # q = Q(m - e) into this part of a message, and e += q
    codec.add(out, part, share)                  # out += share q, of a part that a neighbour wrote

Vectors and messages are cut into pieces that stay in the cache, `codec.split` and `codec.cut`. int8 and int4 round as
`network/rounding.py` says. Their message is pieces of at most `STRETCH` numbers, each the codes and then the scales:

    | codes, 64 or 32 bytes per block | a bfloat16 per block |

For int4 a byte holds k_low + 16 k_high + 8, where k_low is of the first half of the piece and k_high of the second.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dgt.errors import ConfigError
from dgt.network import rounding
from dgt.network.rounding import BLOCK, LARGEST, LEVELS, SMALLEST, STRETCH, WIDER

PIECE = 1 << 17  # numbers worked on at a time, so that they stay in the cache
ON_GPU = 8  # times as many numbers in a stretch: there a call costs more than its arithmetic


class Codec(Protocol):
    """Of vectors like `like`."""

    numbers: int
    """How long a vector is with the numbers that fill up its last group."""
    piece: int
    """How many of them are worked on at a time."""

    def empty(self) -> torch.Tensor:
        """A message to make room for."""

    def split(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """The pieces of a vector of `numbers` numbers."""

    def cut(self, message: torch.Tensor) -> Sequence[Any]:
        """The parts of a message, one for each piece."""

    def send(self, vector: torch.Tensor, estimate: torch.Tensor, part: Any, number: int, exchange: int) -> None:
        """q = Q(m - e) into this part, and e += q.

        number, exchange   of the piece, and of the exchange: what its noise depends on
        """

    def add(self, out: torch.Tensor, part: Any, share: float) -> None:
        """out += share q."""


def codec(
    wire: str, like: torch.Tensor, kind: str, node: int, first: int, room: torch.Tensor | None = None,
    long: bool = False,
) -> Codec:  # fmt: skip
    """The codec of this wire for vectors like this one, which begins at number `first` of the parameters.

    room   like the vector, to compute in: other codecs and streams may use it in between
    long   all nodes are on GPUs, and cut messages into pieces that suit those
    """
    if wire not in LEVELS:
        return Narrow(getattr(torch, wire), like, room)
    if like.dtype not in (torch.float32, torch.float64):
        width = str(like.dtype).removeprefix("torch.")
        raise ConfigError(f"wire={wire}: for models of float32 or float64, this one's parameters are {width}")
    return Blocks(wire, like, kind, node, first, long)


class Narrow:
    """To the nearest number of a narrower dtype."""

    def __init__(self, dtype: torch.dtype, like: torch.Tensor, room: torch.Tensor | None = None) -> None:
        self.numbers = like.numel()
        self.piece = PIECE if like.device.type == "cpu" else max(self.numbers, 1)
        self._dtype, self._device = dtype, like.device
        self._largest = torch.finfo(dtype).max
        self._scratch = torch.empty_like(like[: self.piece]) if room is None else room

    def empty(self) -> torch.Tensor:
        return torch.empty(self.numbers, dtype=self._dtype, device=self._device)

    def split(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        return vector.split(self.piece)

    cut = split

    def send(
        self, vector: torch.Tensor, estimate: torch.Tensor, part: torch.Tensor, number: int, exchange: int
    ) -> None:
        difference = torch.sub(vector, estimate, out=self._scratch[: vector.numel()])
        part.copy_(difference.clamp_(-self._largest, self._largest))  # what does not fit follows with the next change
        self.add(estimate, part, 1.0)

    def add(self, out: torch.Tensor, part: torch.Tensor, share: float) -> None:
        # torch would make a new tensor of the wide numbers at every sum of two dtypes
        out.add_(self._scratch[: part.numel()].copy_(part), alpha=share)


@dataclass(frozen=True, slots=True)
class Part:
    """Codes and scales [blocks, 1] of a piece, in the message's memory."""

    codes: torch.Tensor
    scales: torch.Tensor


class Blocks:
    """To integers times a scale per block, at random to the one below or above."""

    def __init__(self, wire: str, like: torch.Tensor, kind: str, node: int, first: int, long: bool = False) -> None:
        self._bits, self._levels = rounding.BITS[wire], LEVELS[wire]
        self.numbers = rounding.padded(like.numel())
        self.piece = STRETCH * ON_GPU if long else STRETCH
        self._message_bytes, self._device = rounding.message_bytes(wire, self.numbers), like.device
        self._lengths = [min(self.piece, self.numbers - start) for start in range(0, self.numbers, self.piece)]
        self._part_bytes = [rounding.message_bytes(wire, length) for length in self._lengths]
        starts = range(first, first + self.numbers, STRETCH)
        keys, each = [rounding.noise_key(kind, start, node) for start in starts], self.piece // STRETCH
        self._keys = [keys[start : start + each] for start in range(0, len(keys), each)]
        self._noise = _noise(STRETCH, like.dtype, like.device)
        memory = like.new_empty(2, self._lengths[0])
        self._scratch = {length: _Scratch(memory, length, self._bits) for length in {*self._lengths}}

    def empty(self) -> torch.Tensor:
        return torch.empty(self._message_bytes, dtype=torch.uint8, device=self._device)

    def split(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        return vector.view(-1, BLOCK).split(self.piece // BLOCK)

    def cut(self, message: torch.Tensor) -> list[Part]:
        borders = [length * self._bits // 8 for length in self._lengths]
        return [
            Part(part[:border].view(torch.int8), part[border:].view(torch.bfloat16).view(-1, 1))
            for part, border in zip(message.split(self._part_bytes), borders, strict=True)
        ]

    def send(self, vector: torch.Tensor, estimate: torch.Tensor, part: Part, number: int, exchange: int) -> None:
        """s = max |x| (1 + 2^-7) / L,  k = floor(x / s + u),  x = m - e;  e += s k."""
        scratch = self._scratch[vector.numel()]
        x = torch.sub(vector, estimate, out=scratch.x)
        scales, inverses = self._new_scales(x, part, scratch)
        for start, key in zip(range(0, len(x), STRETCH // BLOCK), self._keys[number], strict=True):
            part_of_x = x[start : start + STRETCH // BLOCK]
            noise = self._noise.as_strided(part_of_x.shape, (BLOCK, 1), rounding.place_of_noise(key, exchange, STRETCH))
            torch.addcmul(noise, part_of_x, inverses[start : start + STRETCH // BLOCK], out=part_of_x)
        # beyond L only where the scale is as large as may be: what does not fit follows with the next change
        codes = x.floor_().clamp_(-self._levels, self._levels)
        estimate.addcmul_(codes, scales)
        self._write(part, scratch)

    def _new_scales(self, x: torch.Tensor, part: Part, scratch: _Scratch) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and 1 / s. NaN stays NaN and reaches all neighbours; infinity is sent as the largest number."""
        torch.amax(torch.abs(x, out=scratch.work), 1, keepdim=True, out=scratch.scales)
        if scratch.scales is not scratch.peaks:
            scratch.peaks.copy_(scratch.scales)
        part.scales.copy_(scratch.peaks.mul_(WIDER / self._levels).clamp_(SMALLEST, LARGEST))
        scratch.scales.copy_(part.scales)
        return scratch.scales, torch.reciprocal(scratch.scales, out=scratch.inverses)

    def _write(self, part: Part, scratch: _Scratch) -> None:
        """By way of int32, for which processors have an instruction; what is not a number spoils no other one there."""
        scratch.integers.copy_(scratch.flat)
        if self._bits == 4:
            scratch.packed.add_(scratch.high_integers, alpha=16).add_(8)
        part.codes.copy_(scratch.packed)

    def add(self, out: torch.Tensor, part: Part, share: float) -> None:
        scratch = self._scratch[out.numel()]
        if self._bits == 8:
            scratch.flat.copy_(part.codes)
        else:
            scratch.low.copy_(torch.bitwise_and(part.codes, 15, out=scratch.bytes).sub_(8))
            scratch.high.copy_(torch.bitwise_right_shift(part.codes, 4, out=scratch.bytes))
        out.addcmul_(scratch.x, scratch.scales.copy_(part.scales), value=share)


class _Scratch:
    """Views of the same memory for pieces of one length: making them anew takes as long as the arithmetic."""

    def __init__(self, memory: torch.Tensor, length: int, bits: int) -> None:
        first, second = (each[:length] for each in memory)
        blocks, codes = length // BLOCK, length * bits // 8
        self.flat, self.x, self.work = first, first.view(-1, BLOCK), second.view(-1, BLOCK)
        self.low, self.high = first.split(length // 2)
        self.integers = second.view(torch.int32)[:length]
        self.packed, self.high_integers = self.integers[:codes], self.integers[codes:]
        self.bytes = second.view(torch.int8)[:codes]
        self.scales, self.inverses = (memory.new_empty(blocks, 1) for _ in range(2))
        self.peaks = self.scales if memory.dtype == torch.float32 else self.scales.to(torch.float32)


@functools.cache
def _noise(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The table that all streams of a process read."""
    return torch.from_numpy(rounding.uniform_numbers(length)).to(device, dtype)
