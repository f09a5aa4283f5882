"""Rounding to a few bits: `wire=int8` and `wire=int4`, as ranks and the twin both do it. Constants, noise and sizes.

64 numbers share a scale s, and each becomes an integer k from -L to L:

    s = bfloat16(max |x| (1 + 2^-7) / L)          k = floor(x / s + u)          u uniform in (0, 1)

so that E[s k] = x. The scale is widened a little, because rounding it to bfloat16 must not make it too small for the
largest number; a bfloat16 has the range of a float32, so that scales can follow changes down to 2^-120. s k is exact
in float32: nodes that decode it have the same number.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

BLOCK = 64
"""Numbers that share a scale."""
GROUP = 2 * BLOCK
"""A message holds whole groups: two blocks, because int4 has two numbers in a byte."""
BITS = {"int8": 8, "int4": 4}
LEVELS = {wire: 2 ** (bits - 1) - 1 for wire, bits in BITS.items()}
"""L of every wire that is rounded in blocks."""
WIDER = 1 + 2.0**-7
SMALLEST, LARGEST = 2.0**-120, 2.0**120
"""Bounds of scales. Smaller changes wait until they have added up, what is too large follows with the next change."""
SCALE_BYTES = 2
NARROW_BYTES = 2
"""Per number: bfloat16 and float16."""
STRETCH = 2**17
"""Numbers of a vector that take their noise from one place of the table."""

_MASK, _ODD = 2**64 - 1, 0x9E3779B97F4A7C15
Integers = TypeVar("Integers", int, npt.NDArray[np.uint64])


@functools.cache
def uniform_numbers(length: int) -> npt.NDArray[np.float64]:
    """The numbers (k + 1/2) / length in an order without pattern, and once more: a table of noise.

    A vector reads its noise from a random place on, `place_of_noise`. That costs no more than reading memory, and
    rounding stays unbiased: over all places any one number of a vector meets every entry once, so that the mean of
    floor(x + u) is x but for 1 / (2 length). Two numbers of a vector meet pairs of a random permutation, whose
    correlation is of the order of length^-1/2, and a number's noise at other exchanges comes from other places.
    """
    order = np.argsort(_mixed(np.arange(1, length + 1, dtype=np.uint64)))
    once = (order + 0.5) / length
    return np.concatenate([once, once])


def noise_key(kind: str, first: int, node: Integers) -> Integers:
    """What the noise of a stretch depends on, besides the exchange.

    kind    of message; each kind has noise of its own
    first   the number of the flat parameters at which the stretch begins
    node    its number, or the numbers of several nodes
    """
    key: Integers = _mixed(_mixed(_mixed(zlib.crc32(kind.encode())) ^ first) ^ node)
    return key


def place_of_noise(key: Integers, exchange: int, length: int) -> Integers:
    """Where in the table a stretch begins to read: a hash, so that a resumed run has nothing to remember."""
    place: Integers = _mixed(key ^ exchange) % length
    return place


def _mixed(number: Any) -> Any:
    """The finaliser of splitmix64, of an int or an array of uint64: every bit depends on all."""
    number = ((number + 1) * _ODD) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def padded(numbers: int) -> int:
    """So many numbers as whole groups."""
    return -(-numbers // GROUP) * GROUP


def message_bytes(wire: str, numbers: int) -> int:
    """Codes and scales of so many numbers, in whole groups."""
    return numbers * BITS[wire] // 8 + numbers // BLOCK * SCALE_BYTES


def bytes_per_number(wire: str, numbers: int, width: int) -> float:
    """What a vector of so many numbers costs on the way, per number, where each has `width` bytes in memory."""
    if wire == "full":
        return width
    return NARROW_BYTES if wire not in LEVELS else message_bytes(wire, padded(numbers)) / numbers
