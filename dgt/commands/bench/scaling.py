"""How an iteration's cost grows: with the number of ranks, the degree, and the bytes of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dgt.commands.bench.job import BenchConfig

GROWTH = ("ranks", "degree", "bytes")
RANKS = (2, 4, 8, 16, 32)
DEGREES = (2, 4, 6, 8, 12, 15)
PARAMETERS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


def cells(base: BenchConfig) -> list[tuple[str, int, BenchConfig]]:
    """(what grows, its value, what to measure); `base` says preset, rounds, steps, variants and the largest network."""
    middle = min(16, base.nodes)
    small = min(4, base.nodes)
    found = [
        ("ranks", nodes, dataclasses.replace(base, nodes=nodes, topology="ring", degree=0))
        for nodes in _up_to(base.nodes, RANKS)
    ]
    found += [
        ("degree", degree, dataclasses.replace(base, nodes=middle, degree=degree))
        for degree in DEGREES
        if degree < middle
    ]
    found += [
        (
            "bytes",
            4 * size,
            dataclasses.replace(base, preset="vector", size=size, nodes=small, topology="ring", degree=0),
        )
        for size in PARAMETERS
    ]
    return found


def _up_to(largest: int, values: Sequence[int]) -> list[int]:
    return sorted({value for value in values if value < largest} | {largest})
