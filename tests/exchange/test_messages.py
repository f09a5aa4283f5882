"""The order of a batch of messages, and flat parameters, without any process."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgt.errors import ConfigError
from dgt.exchange.flat import FlatParameters
from dgt.exchange.pending import message_order
from dgt.network import graphs


@given(st.sampled_from(["ring", "star", "exponential", "complete"]), st.integers(2, 12))
def test_batches_of_both_ends_of_every_edge_meet_in_order(topology: str, n: int) -> None:
    """nccl ignores tags: on every pair the n-th send of one must face the n-th receive of the other."""
    graph = getattr(graphs, topology)(n)
    for i, j in graph.edges:
        mine = [way for way, peer in message_order(i, list(graph[i])) if peer == j]
        theirs = [way for way, peer in message_order(j, list(graph[j])) if peer == i]
        assert mine == [{"send": "receive", "receive": "send"}[way] for way in theirs]
        assert sorted(mine) == ["receive", "send"]


def test_peers_are_sorted_and_each_appears_twice() -> None:
    assert message_order(2, [5, 0]) == [("receive", 0), ("send", 0), ("send", 5), ("receive", 5)]
    assert message_order(0, []) == []


def test_parameters_become_views_and_keep_their_values() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    before = [p.detach().clone() for p in model.parameters()]
    flat = FlatParameters([list(model[0].parameters()), list(model[1].parameters())])
    assert [s.stop - s.start for s in flat.slices] == [16, 10]
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    flat.values.fill_(2.0)
    assert all((p == 2).all() for p in model.parameters())


def test_missing_gradients_count_as_zero() -> None:
    model = torch.nn.Linear(2, 1)
    flat = FlatParameters([list(model.parameters())])
    model.weight.grad = torch.ones(1, 2)
    out = torch.full((3,), 9.0)
    flat.gather_gradients(out)
    assert out.tolist() == [1, 1, 0]


def test_mixed_dtypes_share_a_buffer_of_the_widest() -> None:
    narrow = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    wide = torch.nn.Parameter(torch.ones(3))
    flat = FlatParameters([[narrow, wide]])
    assert flat.values.dtype == torch.float32
    flat.values.fill_(1 / 3)
    flat.write_parameters()
    assert torch.equal(narrow.detach(), torch.full((2,), 1 / 3, dtype=torch.bfloat16))
    assert torch.equal(wide.detach(), torch.full((3,), 1 / 3))


def test_frozen_parameters_stay_out_and_mixed_devices_are_refused() -> None:
    here, frozen = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    frozen.requires_grad_(False)
    assert FlatParameters([[here, frozen]]).values.numel() == 1
    with pytest.raises(ConfigError, match="all must be on one device, found cpu, meta"):
        FlatParameters([[here, torch.nn.Parameter(torch.zeros(1, device="meta"))]])
    with pytest.raises(ConfigError, match="no trainable parameter"):
        FlatParameters([[frozen]])
