"""What neighbours hear of a vector: all of it, or changes rounded to a narrower dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from dgt.reference.stacked import Array, mix


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
        return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # bfloat16: the upper half of a float32
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)
