"""How the change of a vector is written for the way, and what neighbours make of it: bfloat16, float16, int8, int4.

    change = codec.encode(difference, part, ...)      # into this part of a message; the change that neighbours decode
    change = codec.decode(part)                       # what a neighbour wrote
    codec.add(out, change, share)                     # out += share * change

A change stays in scratch memory of the codec until the next one is asked for. int8 and int4 round as
`network/rounding.py` says. Their message is pieces of at most `piece` numbers, each the codes and then the scales:

    | codes, 64 or 32 bytes per block | a bfloat16 per block |

For int4 a byte holds k_low + 16 k_high + 8, where k_low is of the first half of the piece and k_high of the second.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch

from dgt.errors import ConfigError
from dgt.network import rounding
from dgt.network.rounding import BLOCK, LARGEST, LEVELS, SMALLEST, STRETCH, WIDER

PIECE = 1 << 17  # numbers worked on at a time, so that they stay in the cache
ON_GPU = 32  # times as many numbers in a stretch: there a call costs more than its arithmetic


class Codec(Protocol):
    """Changes of a vector like `like`, which has `numbers` numbers with those that fill up the last group."""

    numbers: int
    piece: int
    empty: torch.Tensor
    """A message to make room for."""

    def cut(self, message: torch.Tensor) -> list[Any]:
        """The parts of a message, one for each piece of the vector."""

    def encode(self, difference: torch.Tensor, part: Any, exchange: int, first: int) -> Any:
        """Write a piece of a difference, which may be changed meanwhile.

        exchange, first   its number and where in the vector the piece begins: what its noise depends on
        """

    def decode(self, part: Any) -> Any: ...

    def add(self, out: torch.Tensor, change: Any, share: float) -> None: ...


def codec(wire: str, like: torch.Tensor, kind: str, node: int, first: int) -> Codec:
    """The codec of this wire for vectors like this one, which begins at number `first` of the parameters."""
    if wire not in LEVELS:
        return Narrow(getattr(torch, wire), like)
    if like.dtype not in (torch.float32, torch.float64):
        width = str(like.dtype).removeprefix("torch.")
        raise ConfigError(f"wire={wire}: for models of float32 or float64, this one's parameters are {width}")
    return Blocks(wire, like, kind, node, first)


class Narrow:
    """To the nearest number of a narrower dtype."""

    def __init__(self, dtype: torch.dtype, like: torch.Tensor) -> None:
        self.numbers = like.numel()
        self.piece = PIECE if like.device.type == "cpu" else max(self.numbers, 1)
        self.empty = torch.empty_like(like, dtype=dtype)
        self._largest = torch.finfo(dtype).max
        self._wide = torch.empty_like(like[: self.piece])

    def cut(self, message: torch.Tensor) -> list[torch.Tensor]:
        return list(message.split(self.piece))

    def encode(self, difference: torch.Tensor, part: torch.Tensor, exchange: int, first: int) -> torch.Tensor:
        part.copy_(difference.clamp_(-self._largest, self._largest))  # what does not fit follows with the next change
        return self.decode(part)

    def decode(self, part: torch.Tensor) -> torch.Tensor:
        """In the vector's own dtype; torch would make a new tensor of it at every sum of two dtypes."""
        return self._wide[: part.numel()].copy_(part)

    def add(self, out: torch.Tensor, change: torch.Tensor, share: float) -> None:
        out.add_(change, alpha=share)


Coded = tuple[torch.Tensor, torch.Tensor]  # k [blocks, 64] and s [blocks, 1]


class Blocks:
    """To integers times a scale per block, at random to the one below or above."""

    def __init__(self, wire: str, like: torch.Tensor, kind: str, node: int, first: int) -> None:
        self._wire, self._levels = wire, LEVELS[wire]
        self._kind, self._node, self._first = kind, node, first
        self.numbers = rounding.padded(like.numel())
        self.piece = STRETCH if like.device.type == "cpu" else STRETCH * ON_GPU
        self.empty = like.new_empty(rounding.message_bytes(wire, self.numbers), dtype=torch.uint8)
        self._noise = _noise(self.piece, like.dtype, like.device)
        blocks = min(self.piece, self.numbers) // BLOCK
        self._codes, self._work = (like.new_empty(blocks, BLOCK) for _ in range(2))
        self._scales, self._inverses = (like.new_empty(blocks, 1) for _ in range(2))
        self._peaks = like.new_empty(blocks, 1, dtype=torch.float32)
        self._integers = like.new_empty(blocks * BLOCK, dtype=torch.int32)
        self._bytes = like.new_empty(blocks * BLOCK // 2, dtype=torch.int8)

    def cut(self, message: torch.Tensor) -> list[Coded]:
        parts = message.split(rounding.message_bytes(self._wire, self.piece))
        lengths = [min(self.piece, self.numbers - first) for first in range(0, self.numbers, self.piece)]
        return [self._views(part, length) for part, length in zip(parts, lengths, strict=True)]

    def _views(self, part: torch.Tensor, numbers: int) -> Coded:
        codes = numbers * rounding.BITS[self._wire] // 8
        return part[:codes].view(torch.int8), part[codes:].view(torch.bfloat16).view(-1, 1)

    def encode(self, difference: torch.Tensor, part: Coded, exchange: int, first: int) -> Coded:
        """s = max |x| (1 + 2^-7) / L,  k = floor(x / s + u)."""
        x, blocks = difference.view(-1, BLOCK), len(part[1])
        codes, scales = self._codes[:blocks], self._scales[:blocks]
        part[1].copy_(self._new_scales(x))
        torch.reciprocal(scales.copy_(part[1]), out=self._inverses[:blocks])
        start = rounding.place_of_noise(self._kind, exchange, self._first + first, self._node, self.piece)
        noise = self._noise[start : start + x.numel()].view(-1, BLOCK)
        torch.addcmul(noise, x, self._inverses[:blocks], out=codes)
        # beyond L only where the scale is as large as may be: what does not fit follows with the next change
        codes.floor_().clamp_(-self._levels, self._levels)
        self._write(codes, part[0])
        return codes, scales

    def _new_scales(self, x: torch.Tensor) -> torch.Tensor:
        """In float32, whatever the vector has; a number that is not finite makes its block's scale so, or the largest.

        NaN stays NaN, so that it reaches the neighbours and the estimate; infinity is sent as the largest number.
        """
        peaks, blocks = self._peaks[: len(x)], len(x)
        peaks.copy_(torch.amax(torch.abs(x, out=self._work[:blocks]), 1, keepdim=True, out=self._inverses[:blocks]))
        return peaks.mul_(WIDER / self._levels).clamp_(SMALLEST, LARGEST)

    def _write(self, codes: torch.Tensor, out: torch.Tensor) -> None:
        """By way of int32, for which processors have an instruction."""
        integers = self._integers[: out.numel()]
        if self._wire == "int8":
            integers.copy_(codes.view(-1))
        else:
            low, high = codes.view(2, -1)
            packed = self._work.view(-1)[: out.numel()]
            integers.copy_(torch.add(low, high, alpha=16, out=packed)).add_(8)
        out.copy_(integers)

    def decode(self, part: Coded) -> Coded:
        bits, blocks = part[0], len(part[1])
        codes = self._codes[:blocks]
        if self._wire == "int8":
            codes.view(-1).copy_(bits)
        else:
            low, high = codes.view(2, -1)
            nibbles = self._bytes[: bits.numel()]
            low.copy_(torch.bitwise_and(bits, 15, out=nibbles).sub_(8))
            high.copy_(torch.bitwise_right_shift(bits, 4, out=nibbles))
        return codes, self._scales[:blocks].copy_(part[1])

    def add(self, out: torch.Tensor, change: Coded, share: float) -> None:
        out.view(-1, BLOCK).addcmul_(*change, value=share)


@functools.cache
def _noise(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The table that all streams of a process read."""
    return torch.from_numpy(rounding.uniform_numbers(length)).to(device, dtype)
