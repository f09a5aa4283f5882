"""What an exchange makes of a vector: W times it, or of changes that were rounded to a narrower dtype on the way.

mix_z = mixing(W, wire)               # one for every message of the algorithm
theta = mix_z(z) if exchanges(t, local_steps) else z
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from dgt.reference.stacked import Array, mix


def mixing(W: scipy.sparse.csr_array, wire: str) -> Callable[[Array], Array]:
    """What one message of an algorithm goes through at every exchange; it remembers what was sent before."""
    return Plain(W) if wire == "full" else Compressed(W, wire)


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
class Compressed:
    """v -> v + W e' - e',  e' = e + Q(v - e): what neighbours hear is rounded to the dtype `wire`."""

    W: scipy.sparse.csr_array
    wire: str
    estimate: Array | float = 0.0

    def __call__(self, values: Array) -> Array:
        self.estimate = self.estimate + _rounded(values - self.estimate, self.wire)
        return values + mix(self.W, self.estimate) - self.estimate


def _rounded(values: Array, wire: str) -> Array:
    """To the nearest number of the narrow dtype, ties to even, within its range."""
    if wire == "float16":
        clipped = np.clip(values, -65504, 65504).astype(np.float32)  # torch, too, goes by way of float32
        return clipped.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # bfloat16: the upper half of a float32
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)
