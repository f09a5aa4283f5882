import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgt.config import WeightsConfig
from dgt.errors import ConfigError
from dgt.network import weights


@pytest.mark.parametrize(("name", "nodes", "ratio"), [("A", 16, 7.3), ("B", 16, 5.5), ("C", 32, 20), ("D", 64, 50)])
def test_paper_vectors_have_the_published_sums_and_ratios(name: str, nodes: int, ratio: float) -> None:
    assert math.fsum(weights.PAPER[name]) == pytest.approx(nodes, abs=1e-12)
    vector = weights.named(name)
    assert vector.size == nodes
    assert vector.max() / vector.min() == pytest.approx(ratio, abs=0.05)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_normalised_weights_sum_to_n_and_keep_their_ratios(values: list[float]) -> None:
    vector = weights.normalise(values)
    assert vector.sum() == pytest.approx(len(values), rel=1e-12)
    assert vector / vector[0] == pytest.approx(np.array(values) / values[0], rel=1e-9)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_extreme_scales_do_not_overflow(scale: float) -> None:
    assert weights.normalise([1 * scale, 3 * scale]) == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, -1], "node 1 has -1"),
        ([1, 0], "node 1 has 0"),
        ([math.nan, 1], "node 0 has nan"),
        ([1, math.inf], "node 1 has inf"),
        ([], "at least one"),
        ([[1, 2]], "at least one"),
        (["x"], "list of numbers"),
        ([1e-320, 1e300], "too small"),
    ],
)
def test_bad_weights_are_named(values: list, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        weights.normalise(values)


def test_wrong_length_says_both_numbers() -> None:
    with pytest.raises(ConfigError, match="3 numbers for nodes=4"):
        weights.normalise([1, 2, 3], 4)
    with pytest.raises(ConfigError, match="nodes=8: weights A has 16 entries"):
        weights.from_config(WeightsConfig(name="A"), 8)


def test_files_hold_numbers_in_any_common_form(tmp_path) -> None:
    (tmp_path / "w.txt").write_text("1, 2  # two nodes\n3\n")
    np.save(tmp_path / "w.npy", [1.0, 2.0, 3.0])
    for name in ("w.txt", "w.npy"):
        assert weights.from_file(tmp_path / name) == pytest.approx([0.5, 1.0, 1.5])


@pytest.mark.parametrize(
    ("content", "words"),
    [("1 two", "not a list of numbers"), ("1 -2", "node 1 has -2"), ("", "at least one")],
)
def test_bad_files_are_named(tmp_path, content: str, words: str) -> None:
    path = tmp_path / "w.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        weights.from_file(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        weights.from_file(tmp_path / "missing.txt")


def test_data_size_weights_are_shares_of_the_samples() -> None:
    assert weights.from_config(WeightsConfig(name="data_size"), 3, [10, 20, 30]) == pytest.approx([0.5, 1.0, 1.5])
