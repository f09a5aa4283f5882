"""The order of a node's samples over epochs."""

from __future__ import annotations

import pytest

from dgt.data.sampler import EpochSampler


def epochs(sampler: EpochSampler, count: int) -> list[int]:
    seen = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        seen += list(sampler)
    return seen


@pytest.mark.parametrize("length", [None, 3, 7, 16])
def test_every_pass_has_all_samples_once_however_long_an_epoch_is(length: int | None) -> None:
    sampler = EpochSampler(7, seed=1, node=2, length=length)
    assert len(sampler) == (length or 7)
    seen = epochs(sampler, 14)
    passes = [seen[first : first + 7] for first in range(0, len(seen) - 6, 7)]
    assert all(sorted(each) == list(range(7)) for each in passes)
    assert len({tuple(each) for each in passes}) > len(passes) // 2


def test_the_order_depends_on_seed_and_node() -> None:
    orders = {tuple(epochs(EpochSampler(20, seed, node), 1)) for seed in (0, 1) for node in (0, 1)}
    assert len(orders) == 4
    assert epochs(EpochSampler(20, 0, 1), 3) == epochs(EpochSampler(20, 0, 1), 3)


def test_an_epoch_goes_on_in_its_middle() -> None:
    sampler = EpochSampler(10, length=25)
    whole = epochs(sampler, 3)
    sampler.set_epoch(2, first=6)
    assert list(sampler) == whole[56:]


def test_without_shuffling_passes_are_in_order() -> None:
    assert epochs(EpochSampler(3, length=4, shuffle=False), 3) == [0, 1, 2] * 4
