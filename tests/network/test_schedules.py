"""Schedules: what they are for any number of nodes, their mixing, and how far word spreads."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgt.config import TopologyConfig
from dgt.errors import ConfigError
from dgt.network import changing, graphs, schedules
from dgt.network.mixing import mixing_matrix
from dgt.network.schedules import Schedule
from dgt.network.weights import named

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)


def unequal(n: int) -> np.ndarray:
    draw = np.random.default_rng(n).lognormal(size=n)
    return draw * n / draw.sum()


def all_of(n: int) -> list[Schedule]:
    kinds = [schedules.one_peer(unequal(n)), schedules.matching(n), schedules.one_peer_exponential(n)]
    return [*kinds, schedules.one_peer(unequal(n), rounds=2), schedules.cycle([nx.path_graph(n), nx.empty_graph(n)])]


@pytest.mark.parametrize("n", SIZES)
def test_one_partner_at_a_time_and_nobody_left_out(n: int) -> None:
    for schedule in all_of(n)[:4]:
        assert schedule.is_one_peer
        assert nx.is_connected(schedule.union)
        assert max((d for _, d in schedule.union.degree), default=0) <= schedule.period
    matched = [pairs.size for pairs in schedules.matching(n).pairs]
    assert matched == [n - n % 2] * len(matched), "all have a partner, but one of an odd number"


@pytest.mark.parametrize("n", SIZES)
def test_every_exchange_keeps_the_weighted_mean_and_is_in_detailed_balance(n: int) -> None:
    weights = unequal(n)
    for schedule in all_of(n):
        for number in range(schedule.period):
            W = changing.matrix(schedule, number, weights).toarray()
            assert np.allclose(weights @ W, weights, rtol=0, atol=1e-14)
            assert np.allclose(W.sum(1), 1, rtol=0, atol=1e-15)
            assert np.allclose(weights[:, None] * W, (weights[:, None] * W).T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", SIZES)
def test_a_nodes_rows_are_those_of_the_matrices(n: int) -> None:
    weights = unequal(n)
    for schedule in all_of(n):
        lambdas = dict(enumerate(weights.tolist()))
        steps = changing.matrices(schedule, weights)
        single = [changing.matrix(schedule, number, weights).toarray() for number in range(schedule.period)]
        mean = changing.mean_matrix(schedule, weights).toarray()
        for node in {0, n // 2, n - 1}:
            rows = changing.rows(schedule, node, lambdas, 0.3)
            for number, row in enumerate(rows):
                dense = np.zeros(n)
                dense[[node, *row.neighbours]] = [row.own, *row.neighbours.values()]
                assert np.array_equal(dense, single[number][node])
            for step, W in enumerate(steps):
                first = step * schedule.rounds
                own = changing.own_share(rows, lambdas[node], lambdas, first, schedule.rounds)
                assert own == pytest.approx(W.diagonal()[node], abs=1e-15)
            assert changing.mean_row(rows).own == pytest.approx(mean[node, node], abs=1e-15)


def test_pair_means() -> None:
    W = changing.matrix(schedules.hypercube([1.0, 3.0]), 0, np.array([0.5, 1.5])).toarray()
    assert np.allclose(W, [[0.25, 0.75], [0.25, 0.75]])


def test_the_sorted_hypercube_pairs_neighbours_in_the_order_of_weights() -> None:
    schedule = schedules.hypercube([5.0, 1.0, 7.0, 3.0])  # from the lightest: 1, 3, 0, 2
    assert schedule.edges(0) == schedule.edges(2) == [(0, 2), (1, 3)]
    assert schedule.edges(1) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(("name", "most"), [("A", 2.2), ("B", 2.3), ("C", 3.5), ("D", 5.0)])
def test_messages_for_ten_times_less_disagreement(name: str, most: float) -> None:
    """By the eigenvalues of a period; 332 on the exponential graph with D."""
    weights = named(name)
    product = np.eye(weights.size)
    schedule = schedules.one_peer(weights)
    for W in changing.matrices(schedule, weights):
        product = W @ product
    rest = product - np.ones((weights.size, 1)) * weights / weights.size
    per_period = -np.log10(max(abs(np.linalg.eigvals(rest))))
    assert schedule.period / per_period <= most


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_matchings_are_the_same_for_all_who_draw_them(n: int, seed: int) -> None:
    one, other = schedules.matching(n, seed), schedules.matching(n, seed)
    assert all(np.array_equal(a, b) for a, b in zip(one.pairs, other.pairs, strict=True))
    assert nx.is_connected(one.union)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("n", [2, 5, 8, 12])
def test_a_notice_needs_as_many_steps_as_said_and_no_fewer(n: int, rounds: int) -> None:
    """Followed by hand, from every start: with one step less somebody has not heard."""
    schedule = schedules.one_peer(unequal(n), rounds=rounds)
    for node in range(n):
        said = changing.steps_to_reach_all(schedule, node)

        def heard(start: int, steps: int, node: int = node) -> int:
            known = {node}
            for number in range(start * rounds, (start + steps) * rounds):
                known |= {j for i, j in schedule.edges(number) if i in known} | {
                    i for i, j in schedule.edges(number) if j in known
                }
            return len(known)

        starts = range(schedule.period_in_steps)
        assert min(heard(start, said) for start in starts) == n
        assert min(heard(start, said - 1) for start in starts) < n


def test_schedules_of_ones_own() -> None:
    function = schedules.from_function(6, lambda step: [(k, (k + 1 + step) % 6) for k in (0, 3)], period=3)
    assert function.edges(4) == function.edges(1) == [(0, 2), (3, 5)]
    ring = schedules.cycle([nx.cycle_graph(5), nx.star_graph(4)])
    weights = unequal(5)
    assert np.array_equal(
        changing.matrix(ring, 2, weights).toarray(), mixing_matrix(nx.cycle_graph(5), weights).toarray()
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.cycle([[(0, 1)], [(2, 3)]], n=4), r"^schedule, all exchanges together: not connected"),
        (lambda: schedules.cycle([[(0, 4)]], n=4), r"^schedule, exchange 0: \(0, 4\) must join two different nodes"),
        (lambda: schedules.cycle([[(1, 1)]], n=4), r"^schedule, exchange 0: \(1, 1\) must join two different nodes"),
        (lambda: schedules.cycle([nx.path_graph(3, nx.DiGraph)]), "^schedule, exchange 0: must be undirected"),
        (lambda: schedules.cycle([5], n=4), r"^schedule, exchange 0: must be a networkx.Graph or a list of pairs"),
        (lambda: schedules.cycle([], n=4), "^schedule: 0 exchanges until it repeats, must be 1 to 4096"),
        (lambda: schedules.cycle([[(0, 1)]]), "^schedule: of lists of pairs say the number of nodes"),
        (lambda: schedules.hypercube([1.0] * 6), "^topology.schedule=hypercube: 6 nodes are no power of two"),
        (lambda: schedules.one_peer([1.0] * 4, rounds=3), "^schedule: rounds=3: must be at least 1 and at most 2"),
        (lambda: TopologyConfig(name="one_peer", rounds=3), "^topology.rounds=3: must be at least 1 and at most 2"),
        (lambda: TopologyConfig(name="one_peer", schedule="cube"), "^topology.schedule=cube: .*allowed: hypercube"),
        (
            lambda: graphs.from_config(TopologyConfig(name="one_peer"), np.ones(4)),
            "^topology=one_peer: its edges change from step to step",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(make, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_those_left_after_a_loss_go_on_with_matchings() -> None:
    left = schedules.one_peer(unequal(8)).among([0, 1, 2, 4, 5, 7])
    assert left.size == 6
    assert left.is_one_peer
    assert [pairs.size for pairs in left.pairs] == [6] * left.period
    general = schedules.cycle([nx.cycle_graph(5), nx.star_graph(4)]).among([0, 2, 3])
    assert [general.edges(0), general.edges(1)] == [[(1, 2)], [(0, 1), (0, 2)]]
    assert list(itertools.chain(*schedules.one_peer(unequal(2)).among([1]).pairs)) == []
