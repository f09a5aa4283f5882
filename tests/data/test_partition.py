"""Every sample in exactly one shard, sizes by the weights, labels as skewed as asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgt.data import partition
from dgt.errors import ConfigError
from dgt.network.weights import named

LABELS = np.tile(np.arange(10, dtype=np.uint8), 500)

shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)


@settings(deadline=None)
@given(total=st.integers(0, 100_000), shares=shares)
def test_largest_remainders_sum_up_and_stay_within_one(total: int, shares: list[float]) -> None:
    counts = partition.largest_remainders(total, shares)
    assert counts.sum() == total
    assert np.all(np.abs(counts - total * np.array(shares) / sum(shares)) < 1)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32), beta=st.floats(0.01, 100), shares=st.lists(st.floats(0.2, 5), min_size=1, max_size=20)
)
def test_shards_cover_every_sample_once_with_the_sizes_asked_for(seed: int, beta: float, shares: list[float]) -> None:
    sizes = partition.shard_sizes(len(LABELS), shares)
    for shards in (
        partition.iid_shards(sizes, seed),
        partition.dirichlet_shards(LABELS, sizes, beta, seed),
    ):
        assert [len(shard) for shard in shards] == sizes.tolist()
        assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(LABELS)))


@settings(deadline=None)
@given(data=st.data())
def test_rounding_keeps_rows_and_columns(data: st.DataObject) -> None:
    whole = np.array(data.draw(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=6)))
    # any table near one with these sums will do
    noise = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=whole.size, max_size=whole.size)))
    table = np.maximum(whole + noise.reshape(whole.shape), 0)
    result = partition.rounded(table, whole.sum(1), whole.sum(0))
    assert np.array_equal(result.sum(1), whole.sum(1))
    assert np.array_equal(result.sum(0), whole.sum(0))
    assert (result >= 0).all()


def test_small_beta_gives_few_labels_per_node() -> None:
    sizes = partition.shard_sizes(len(LABELS), named("A"))

    def largest_share(beta: float) -> float:
        shards = partition.dirichlet_shards(LABELS, sizes, beta, seed=0)
        return float(np.mean([np.bincount(LABELS[shard], minlength=10).max() / len(shard) for shard in shards]))

    assert largest_share(0.05) > 0.6
    assert largest_share(100.0) < 0.2


def test_seeds_decide_and_nothing_else() -> None:
    sizes = partition.shard_sizes(len(LABELS), named("A"))
    one, again, other = (partition.dirichlet_shards(LABELS, sizes, 0.5, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_a_node_without_samples_is_named() -> None:
    with pytest.raises(ConfigError, match="node 1 would get none of the 10 samples"):
        partition.shard_sizes(10, [100.0, 0.01])
