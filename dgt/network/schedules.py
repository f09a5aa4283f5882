"""Schedules: graphs that change from exchange to exchange, so that a node talks to one other node at a time.

schedule = dgt.schedules.one_peer(weights)                     # sorted hypercube for 2^k nodes, else random matchings
network = dgt.Network(node, schedule, weights, strategy="II")

schedule = dgt.schedules.cycle([first, second, third])                    # networkx graphs, or lists of pairs
schedule = dgt.schedules.from_function(16, lambda step: pairs, period=32)  # a function of the exchange

A schedule depends on the number of the exchange only: all ranks know all of it, and a resumed run needs no state. It
repeats after `period` exchanges, so that the edges it will ever use are known and opened once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from dgt.config import TopologyConfig
from dgt.config.checks import check_choice, check_range
from dgt.config.settings import Meaning
from dgt.errors import ConfigError
from dgt.network import graphs
from dgt.network.topologies import make, topology
from dgt.network.weights import Weights, normalise

Pairs = npt.NDArray[np.int64]  # [edges, 2], the lower node first, ascending
Edges: TypeAlias = nx.Graph | Iterable[Sequence[int]]

KINDS = ("hypercube", "matching")
MOST_PERIOD = 4096
MOST_ROUNDS = 2
MATCHINGS = 4
"""Random matchings are drawn once, 4 log2(n) of them, and used in turn: a node has as many neighbours at most."""


class Schedule:
    """Edges by number of the exchange, from a period of them; rounds=2 makes two exchanges per step.

    n        nodes 0, ..., n-1
    period   the edges of every exchange until they repeat: networkx graphs, or lists of pairs
    rounds   exchanges per step, 1 or 2
    seed     of the matchings that the nodes left after a loss go on with
    """

    def __init__(
        self, n: int, period: Iterable[Edges], rounds: int = 1, seed: int = 0, label: str = "schedule"
    ) -> None:
        check_range(f"{label}: rounds", rounds, 1, MOST_ROUNDS)
        self.size, self.rounds, self.seed = n, rounds, seed
        self.pairs = [_checked(n, edges, f"{label}, exchange {k}") for k, edges in enumerate(period)]
        if not 0 < self.period <= MOST_PERIOD:
            raise ConfigError(f"{label}: {self.period} exchanges until it repeats, must be 1 to {MOST_PERIOD}")
        graphs.check(self.union, f"{label}, all exchanges together")

    @property
    def period(self) -> int:
        """Exchanges after which it repeats."""
        return len(self.pairs)

    @property
    def period_in_steps(self) -> int:
        """The same in steps that exchange `rounds` times each."""
        return math.lcm(self.period, self.rounds) // self.rounds

    def at(self, number: int) -> Pairs:
        """The edges of this exchange, [edges, 2]."""
        return self.pairs[number % self.period]

    def edges(self, number: int) -> list[tuple[int, int]]:
        """The pairs that exchange then."""
        return [(i, j) for i, j in self.at(number).tolist()]

    def graph(self, number: int) -> nx.Graph:
        """The same as a graph of all nodes."""
        return _graph(self.size, self.at(number))

    @functools.cached_property
    def union(self) -> nx.Graph:
        """All edges it ever uses."""
        return _graph(self.size, np.concatenate(self.pairs))

    def is_matching(self, number: int) -> bool:
        """Whether no node has more than one partner then."""
        return bool(self.degrees(number).max(initial=0) <= 1)

    def degrees(self, number: int) -> npt.NDArray[np.int64]:
        """How many partners every node has then."""
        return np.bincount(self.at(number).ravel(), minlength=self.size)

    @property
    def is_one_peer(self) -> bool:
        """Whether every node has one partner at a time, or none."""
        return all(self.is_matching(number) for number in range(self.period))

    def edges_per_step(self) -> list[int]:
        """How many pairs exchange in every step until they repeat, all rounds of it together."""
        firsts = range(0, self.period_in_steps * self.rounds, self.rounds)
        return [sum(len(self.at(first + k)) for k in range(self.rounds)) for first in firsts]

    def partners(self, node: int) -> list[list[int]]:
        """Whom this node exchanges with, ascending, exchange by exchange until it repeats."""
        found = []
        for pairs in self.pairs:
            mine = pairs[(pairs == node).any(1)]
            found.append(sorted(mine[mine != node].tolist()))
        return found

    def among(self, members: Sequence[int]) -> Schedule:
        """For the nodes that are left, renumbered from 0: random matchings of them; of general graphs what is left."""
        if self.is_one_peer:
            return Schedule(len(members), _matchings(len(members), self.seed), self.rounds, self.seed)
        place = np.full(self.size, -1)
        place[list(members)] = np.arange(len(members))
        left = [place[pairs] for pairs in self.pairs]
        label = f"schedule among the nodes {', '.join(map(str, members))}"
        return Schedule(len(members), [pairs[(pairs >= 0).all(1)] for pairs in left], self.rounds, self.seed, label)


Topology: TypeAlias = nx.Graph | Schedule
"""One graph for all exchanges, or a schedule."""


def union_of(topology: Topology) -> nx.Graph:
    """All edges that are ever used."""
    return topology.union if isinstance(topology, Schedule) else topology


# --------------------------------------------------------------------------------------------------------- constructors


def cycle(period: Sequence[Edges], n: int | None = None, rounds: int = 1) -> Schedule:
    """These graphs in turn; of lists of pairs, n says how many nodes there are."""
    known = next((each.number_of_nodes() for each in period if isinstance(each, nx.Graph)), n)
    if known is None:
        raise ConfigError("schedule: of lists of pairs say the number of nodes, cycle(pairs, n=16)")
    return Schedule(known, period, rounds)


def from_function(n: int, edges: Callable[[int], Edges], period: int, rounds: int = 1) -> Schedule:
    """edges(0), ..., edges(period - 1) in turn. `period` bounds the neighbours that a node ever has."""
    check_range("schedule: period", period, 1, MOST_PERIOD)
    return Schedule(n, map(edges, range(period)), rounds)


def hypercube(weights: Sequence[float] | Weights, rounds: int = 1) -> Schedule:
    """Exchange t pairs the nodes whose places in the order of lambda differ in bit t mod log2 n; n a power of two.

    Sorted, partners are alike, and lambda is close to a product over the bits, for which one period of pair means is
    the exact average.
    """
    n = len(weights)
    if n & (n - 1) or not n:
        raise ConfigError(f"topology.schedule=hypercube: {n} nodes are no power of two; matching takes any number")
    order = np.argsort(np.asarray(weights, dtype=np.float64), kind="stable")
    places = np.arange(n)
    bits = [1 << b for b in range(n.bit_length() - 1)]
    period = [np.stack([order[places], order[places ^ bit]], 1)[(places & bit) == 0] for bit in bits]
    return Schedule(n, period or [[]], rounds)


def matching(n: int, seed: int = 0, rounds: int = 1) -> Schedule:
    """Random pairs of all nodes, or all but one if n is odd: 4 log2(n) draws in turn, the same on all ranks."""
    return Schedule(n, _matchings(n, seed), rounds, seed)


def one_peer_exponential_pairs(n: int) -> list[Pairs]:
    """Hops h = 1, 2, 4, ...: nodes i and i + h where floor(i / h) is even; in the next sweep the same, shifted by h.

    A node whose partner would be beyond the last one idles.
    """
    hops = [2**p for p in range((n // 2).bit_length())]
    nodes = np.arange(n)
    period = []
    for shifted, hop in itertools.product((False, True), hops):
        first = nodes[(nodes // hop % 2 == 0) & (nodes + hop < n)]
        pairs = (np.stack([first, first + hop], 1) + hop * shifted) % n
        if not shifted or n > 2 * hop:  # of two blocks the shifted ones are the same pairs
            period.append(pairs)
    return period


def _matchings(n: int, seed: int) -> list[Pairs]:
    """Drawn again until all of them together join all nodes; of two nodes there is one."""
    if n <= 2:
        return [np.arange(n - n % 2, dtype=np.int64).reshape(-1, 2)]
    random = np.random.default_rng(seed)
    while True:
        orders = [random.permutation(n) for _ in range(MATCHINGS * math.ceil(math.log2(n)))]
        period = [order[: n - n % 2].reshape(-1, 2) for order in orders]
        if nx.is_connected(_graph(n, np.concatenate(period))):
            return period


@topology(proposed=True)
def one_peer(
    weights: Sequence[float] | Weights,
    schedule: Annotated[
        str | None,
        Meaning("hypercube or matching; null: hypercube for 2, 4, 8, ... nodes, else the other", choices=KINDS),
    ] = None,
    rounds: Annotated[int, Meaning("exchanges per step", low=1, high=MOST_ROUNDS)] = 1,
    seed: Annotated[int, Meaning("of the matchings, independent of the run's seed", low=0)] = 0,
) -> Schedule:
    """One partner per exchange: the sorted hypercube for n = 2^k nodes, else random matchings."""
    vector = normalise(np.asarray(weights, dtype=np.float64))
    n = vector.size
    kind = schedule or ("matching" if n & (n - 1) else "hypercube")
    check_choice("topology.schedule", kind, KINDS)
    return hypercube(vector, rounds) if kind == "hypercube" else matching(n, seed, rounds)


@topology
def one_peer_exponential(
    n: int, rounds: Annotated[int, Meaning("exchanges per step", low=1, high=MOST_ROUNDS)] = 1
) -> Schedule:
    """One partner per exchange, at hops 1, 2, 4, ... around a circle.

    In the directed form i sends to i + 2^t, hears i - 2^t and takes the plain mean. That keeps sum_i lambda_i theta_i
    only if all lambda are equal, so here the two of a pair hear each other.
    """
    return Schedule(n, one_peer_exponential_pairs(n) or [[]], rounds)


# ---------------------------------------------------------------------------------------------------------- from config


def from_config(config: TopologyConfig, weights: Weights) -> Topology:
    """The graph or the schedule a config asks for, on as many nodes as there are weights."""
    made: Any = make(config, weights)
    if isinstance(made, nx.Graph):
        return graphs.finished(config, weights, made)
    if isinstance(made, list):
        made = Schedule(int(weights.size), made, label=f"topology._target_={config.target}")
    assert isinstance(made, Schedule), "seen by `make`"
    return made


def _graph(n: int, pairs: Pairs) -> nx.Graph:
    graph: nx.Graph = nx.empty_graph(n)
    graph.add_edges_from(pairs.tolist())
    return graph


def _checked(n: int, edges: Edges, label: str) -> Pairs:
    """[edges, 2] without repetition, or a clear error."""
    if isinstance(edges, nx.Graph) and (edges.is_directed() or edges.is_multigraph()):
        raise ConfigError(f"{label}: must be undirected and simple, got {type(edges).__name__}")
    if isinstance(edges, nx.Graph) and set(edges) - set(range(n)):
        raise ConfigError(f"{label}: the nodes must be 0..{max(n - 1, 0)}")
    try:
        flat = list(edges.edges) if isinstance(edges, nx.Graph) else [tuple(map(int, pair)) for pair in edges]
        pairs = np.array(flat, dtype=np.int64).reshape(-1, 2)
    except (TypeError, ValueError):
        raise ConfigError(f"{label}: must be a networkx.Graph or a list of pairs (i, j)") from None
    wrong = pairs[(pairs < 0).any(1) | (pairs >= n).any(1) | (pairs[:, 0] == pairs[:, 1])]
    if len(wrong):
        raise ConfigError(f"{label}: {tuple(wrong[0].tolist())} must join two different nodes from 0 to {n - 1}")
    return np.unique(np.sort(pairs, axis=1), axis=0)
