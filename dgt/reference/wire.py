"""What an exchange makes of a vector: W times it, or of changes that were rounded to fewer bits on the way.

On a schedule W is a list, W_t of every exchange until they repeat: what is called at every exchange counts them.

mix_z = mixing(W, wire)               # one for every message of the algorithm
theta = mix_z(z) if exchanges(t, local_steps) else z
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse

from dgt.network import rounding
from dgt.network.rounding import BLOCK, LARGEST, LEVELS, SMALLEST, STRETCH, WIDER
from dgt.reference.stacked import Array, mix

Mixing: TypeAlias = scipy.sparse.csr_array | list[scipy.sparse.csr_array]
"""W, or W_t of every exchange until they repeat."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A wire of a run whose vectors travel in several parts, which are rounded each for itself.

    parts   where they begin; `bucket_mb` makes them
    """

    name: str
    parts: Sequence[int] = (0,)


def mixing(W: Mixing, wire: str | Wire, kind: str = "parameters") -> Callable[[Array], Array]:
    """What one message of an algorithm goes through at every exchange; it remembers what was sent before.

    kind   as the ranks call it, `Message.kind`: int8 and int4 round every kind with noise of its own
    """
    if isinstance(W, list):
        return Changing(W)
    wire = Wire(wire) if isinstance(wire, str) else wire
    return Plain(W) if wire.name == "full" else Compressed(W, wire, kind)


def exchanges(t: int, local_steps: int) -> bool:
    """Whether step t ends with an exchange; else W = I."""
    return (t + 1) % local_steps == 0


@dataclass(slots=True)
class Plain:
    """v -> W v."""

    W: scipy.sparse.csr_array

    def __call__(self, values: Array) -> Array:
        return mix(self.W, values)


@dataclass(slots=True)
class Changing:
    """v -> W_t v at the t-th call."""

    W: list[scipy.sparse.csr_array]
    exchange: int = 0

    def __call__(self, values: Array) -> Array:
        self.exchange += 1
        return mix(self.W[(self.exchange - 1) % len(self.W)], values)


@dataclass(slots=True)
class Compressed:
    """v -> v + W e' - e',  e' = e + Q(v - e): what neighbours hear is rounded as `wire` says."""

    W: scipy.sparse.csr_array
    wire: Wire
    kind: str
    estimate: Array | float = 0.0
    exchange: int = 0

    def __call__(self, values: Array) -> Array:
        self.estimate = self.estimate + self._rounded(values - self.estimate)
        self.exchange += 1
        return values + mix(self.W, self.estimate) - self.estimate

    def _rounded(self, change: Array) -> Array:
        if self.wire.name not in LEVELS:
            return _rounded(change, self.wire.name)
        flat = change.reshape(len(change), -1)  # seeds side by side are one vector of a node
        parts = np.split(flat, self.wire.parts[1:], axis=1)
        whole = zip(self.wire.parts, parts, strict=True)
        rounded = [_in_blocks(part, self.wire.name, self.kind, self.exchange, first) for first, part in whole]
        return np.concatenate(rounded, axis=1).reshape(change.shape)


def _rounded(values: Array, wire: str) -> Array:
    """To the nearest number of the narrow dtype, ties to even, within its range."""
    if wire == "float16":
        clipped = np.clip(values, -65504, 65504).astype(np.float32)  # torch, too, goes by way of float32
        return clipped.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # bfloat16: the upper half of a float32
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def _in_blocks(change: Array, wire: str, kind: str, exchange: int, first: int) -> Array:
    """s k, of which the mean is x:  s = bfloat16(max |x| (1 + 2^-7) / L),  k = floor(x / s + u)."""
    nodes, length = change.shape
    x = np.zeros((nodes, rounding.padded(length)))
    x[:, :length] = change
    peaks = np.abs(x.reshape(nodes, -1, BLOCK)).max(-1).astype(np.float32) * np.float32(WIDER / LEVELS[wire])
    scales = np.repeat(_rounded(np.clip(peaks, SMALLEST, LARGEST), "bfloat16"), BLOCK, axis=1)
    integers = np.floor(x * (1 / scales) + _noise(kind, exchange, first, *x.shape))
    rounded: Array = scales * np.clip(integers, -LEVELS[wire], LEVELS[wire])
    return rounded[:, :length]


def _noise(kind: str, exchange: int, first: int, nodes: int, length: int) -> Array:
    """u [nodes, length]: every node reads the table from places of its own."""
    table, every = rounding.uniform_numbers(STRETCH), np.arange(nodes, dtype=np.uint64)
    stretches = []
    for start in range(0, length, STRETCH):
        places = rounding.place_of_noise(rounding.noise_key(kind, first + start, every), exchange, STRETCH)
        stretches.append(table[places[:, None] + np.arange(min(STRETCH, length - start), dtype=np.uint64)])
    return np.concatenate(stretches, axis=1)
