"""What a change becomes on the way, number by number, and against the twin's arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch

from dgt.errors import ConfigError
from dgt.exchange import codecs
from dgt.exchange.codecs import Codec, codec
from dgt.network import rounding
from dgt.network.rounding import BLOCK, LEVELS, STRETCH
from dgt.reference.wire import mixing

WIRES = ("bfloat16", "float16", "int8", "int4")
LENGTHS = (1, 2, 63, 64, 65, 128, 1001, STRETCH + 70)


def sent(values: torch.Tensor, wire: str, exchange: int = 0, made: Codec | None = None) -> torch.Tensor:
    """What neighbours decode of a change; the sender's estimate is the same."""
    made = made or codec(wire, values, "parameters", 0, 0)
    vector, estimate, heard = (torch.zeros(made.numbers, dtype=values.dtype) for _ in range(3))
    vector[: values.numel()] = values
    message = torch.zeros_like(made.empty())
    parts = made.cut(message)
    for number, pieces in enumerate(zip(made.split(vector), made.split(estimate), parts, strict=True)):
        made.send(*pieces, number, exchange)
    for piece, part in zip(made.split(heard), made.cut(message.clone()), strict=True):
        made.add(piece, part, 1.0)
    assert torch.equal(estimate.isnan(), heard.isnan())
    assert torch.equal(estimate.nan_to_num(), heard.nan_to_num())
    assert not heard[values.numel() :].any(), "what fills up the last group"
    return heard[: values.numel()]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_length_is_rounded_to_its_neighbours(wire: str, dtype: torch.dtype) -> None:
    for length in LENGTHS:
        values = torch.randn(length, dtype=dtype, generator=torch.Generator().manual_seed(length))
        error = (sent(values, wire) - values).abs()
        step = values.abs().max() * 1.02 / LEVELS[wire] if wire in LEVELS else values.abs().max() / 128
        assert error.max() < step, length


@pytest.mark.parametrize("wire", LEVELS)
def test_sizes_are_those_of_the_messages(wire: str) -> None:
    """1.03 and 0.53 bytes per number, in whole groups of 128."""
    for length in LENGTHS:
        size = codec(wire, torch.zeros(length), "parameters", 0, 0).empty().numel()
        assert round(length * rounding.bytes_per_number(wire, length, 4)) == size
        assert size == math.ceil(length / 128) * {"int8": 132, "int4": 68}[wire]


@pytest.mark.parametrize("wire", LEVELS)
def test_ranks_round_as_the_twin_does(wire: str) -> None:
    """Three nodes of one vector of several stretches, three exchanges; alone, v + W e - e is v, so look at e."""
    values = np.random.default_rng(5).standard_normal((3, 2 * STRETCH + 300)) * np.geomspace(
        1e-9, 1e6, 2 * STRETCH + 300
    )
    twin = mixing(scipy.sparse.eye_array(3, format="csr"), wire, "tracker")
    for exchange in range(3):
        before = twin.estimate
        twin(values * (exchange + 1))
        for node in range(3):
            own = torch.from_numpy(np.asarray(values * (exchange + 1) - before)[node])
            rounded = sent(own, wire, exchange, codec(wire, own, "tracker", node, 0)).numpy()
            assert np.allclose(rounded, twin.estimate[node] - (before if exchange == 0 else before[node]), 1e-9, 1e-12)


@pytest.mark.parametrize("wire", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_unbiased(wire: str, dtype: torch.dtype) -> None:
    """256 numbers of several sizes, 512 times in a vector, 12 exchanges: means within 5 standard errors."""
    few = torch.randn(4 * BLOCK, dtype=dtype, generator=torch.Generator().manual_seed(1))
    few[::7] *= 1e-3
    values = few.repeat(STRETCH // 256)
    made = codec(wire, values, "parameters", 3, 640)
    errors = torch.stack([sent(values, wire, exchange, made).double() - values.double() for exchange in range(12)])
    each = errors.view(-1, 256)
    step = few.double().view(4, BLOCK).abs().max(1).values.repeat_interleave(BLOCK) * rounding.WIDER / LEVELS[wire]
    share = (few / step) % 1  # of those that are rounded up
    deviation = step * (share * (1 - share)).sqrt()
    # and two roundings: of numbers far below a step one in thousands becomes a whole one
    bound = 5 * deviation / math.sqrt(len(each)) + 2 * step / len(each)
    assert (each.mean(0).abs() <= bound).all(), "every number over time and places"
    assert each.std(0).max() < values.abs().max() / LEVELS[wire], "less than a step"
    # numbers beside each other are rounded independently: the variance of their mean is a 256th of their own
    assert float(each.mean(1).var()) == pytest.approx(float(each.var(0).mean()) / 256, rel=0.1)
    # and so is a number at one exchange and at the next
    assert abs(torch.corrcoef(errors[:2, ::7])[0, 1]) < 0.05


def test_noise_depends_on_node_kind_place_and_exchange_only() -> None:
    seen = {
        rounding.place_of_noise(rounding.noise_key(kind, first, node), exchange, STRETCH)
        for kind in ("parameters", "tracker")
        for first in (0, STRETCH)
        for node in range(4)
        for exchange in range(4)
    }
    assert len(seen) > 60, "of 64"
    key = rounding.noise_key("tracker", 0, np.arange(4, dtype=np.uint64))
    places = rounding.place_of_noise(key, 9, STRETCH)
    assert places.tolist() == [
        rounding.place_of_noise(rounding.noise_key("tracker", 0, i), 9, STRETCH) for i in range(4)
    ]
    assert places.tolist() == [33808, 107066, 113533, 73052], "a run that was saved goes on with the same"
    table = rounding.uniform_numbers(1024)
    assert sorted(table[:1024]) == [(k + 0.5) / 1024 for k in range(1024)]
    assert abs(np.corrcoef(table[:1024], np.roll(table[:1024], 1))[0, 1]) < 0.1


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_is_sent_as_nothing(wire: str) -> None:
    assert not sent(torch.zeros(200), wire).any()


@pytest.mark.parametrize("wire", LEVELS)
def test_tiny_numbers_wait_and_huge_ones_follow(wire: str) -> None:
    """A scale has the range of a float32: far from its ends nothing is lost, beyond them what is left is sent later."""
    for size in (1e-30, 1e-12, 1e30):
        values = torch.tensor([1.0, -0.5, 0.25, 0.0]) * size
        assert sent(values, wire).tolist() == pytest.approx(values.tolist(), abs=size * 1.01 / LEVELS[wire])
    denormal = sent(torch.full((64,), 1e-42), wire)
    assert denormal.isfinite().all()
    assert denormal.abs().max() <= rounding.SMALLEST
    doubles = torch.tensor([1e300, -1e-300, 1.0], dtype=torch.float64)
    assert sent(doubles, wire)[0] == LEVELS[wire] * rounding.LARGEST
    for values in (torch.tensor([3e38, 1.0]), torch.tensor([math.inf, -math.inf])):
        there = sent(values, wire)
        assert there.isfinite().all()
        assert there[0] == LEVELS[wire] * rounding.LARGEST


@pytest.mark.parametrize("wire", LEVELS)
def test_what_is_not_a_number_stays_so(wire: str) -> None:
    """It spoils its block, there and in the sender's own estimate, and is never sent as some number."""
    values = torch.ones(200)
    values[70] = math.nan
    there = sent(values, wire)
    assert there.isnan().nonzero().flatten().tolist() == list(range(64, 128))


@pytest.mark.parametrize("wire", LEVELS)
def test_outliers_cost_their_own_block_only(wire: str) -> None:
    values = torch.full((256,), 1e-3)
    values[10] = 1e3
    assert (sent(values, wire)[64:] - 1e-3).abs().max() < 1e-3 / LEVELS[wire] * 1.02


@pytest.mark.parametrize("wire", LEVELS)
def test_narrow_models_are_refused(wire: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"wire={wire}: for models of float32 or float64, this one's .* are bfloat16"
    ):
        codec(wire, torch.zeros(3, dtype=torch.bfloat16), "parameters", 0, 0)


@pytest.mark.parametrize("wire", LEVELS)
def test_longer_pieces_of_a_gpu_are_the_same_code(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces may be of any even number of groups; here short ones, so that there are many."""
    monkeypatch.setattr(codecs, "STRETCH", 256)
    values = torch.randn(1001)
    assert (sent(values, wire) - values).abs().max() < values.abs().max() * 1.02 / LEVELS[wire]
