"""Candidates of `dgt plan`: the combinations of graph, algorithm, wire, local steps and strategy that the library takes
and a budget allows, and what each of them sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import networkx as nx

from dgt import problems
from dgt.algorithms.machinery.traffic import check_schedule
from dgt.commands.plan.settings import BudgetConfig
from dgt.commands.plan.variants import Variants
from dgt.commands.simulate.twin import check_rows
from dgt.config import AlgorithmConfig, Config
from dgt.errors import ConfigError
from dgt.network import rounding
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.network.weights import Weights
from dgt.processes.placement import Placement
from dgt.training.setup import network_of


@dataclass(frozen=True, slots=True)
class Traffic:
    """What nodes send to each partner."""

    vectors: int
    """Per exchange."""
    vector_bytes: int
    rounds: int
    """Exchanges one after the other, of a schedule."""
    local_steps: int

    @classmethod
    def of(cls, config: Config, numbers: int, rounds: int = 1) -> Traffic:
        """Of a model of so many numbers."""
        vector = numbers * rounding.bytes_per_number(config.wire, numbers, problems.dtype_of(config).itemsize)
        return cls(len(config.algorithm.kind.messages), round(vector), rounds, config.local_steps)

    @property
    def per_partner(self) -> float:
        """Bytes per step, on average over local steps."""
        return self.vectors * self.vector_bytes * self.rounds / self.local_steps


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One combination."""

    topology: str
    """The graph's name among the candidates."""
    algorithm: str
    """The algorithm's, with the settings that are varied."""
    config: Config
    graph: Topology
    traffic: Traffic

    @property
    def strategy(self) -> str:
        return self.config.strategy.name

    @property
    def system(self) -> tuple[str, str, int, str, int]:
        """What decides how it converges: a narrow wire leaves that as it is."""
        return self.topology, self.algorithm, self.config.local_steps, self.strategy, id(self.graph)

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """Everything but the strategy."""
        return self.topology, self.algorithm, self.config.wire, self.config.local_steps

    @property
    def degree(self) -> int:
        """Most neighbours that any node ever has."""
        return _largest_degree(union_of(self.graph))

    @property
    def mean_degree(self) -> float:
        union = union_of(self.graph)
        return 2 * union.number_of_edges() / union.number_of_nodes()

    @property
    def partners(self) -> int:
        """Most that any node has at an exchange."""
        return _partners(self.graph)

    @property
    def bytes(self) -> float:
        """Per step, by the node with most partners."""
        return self.partners * self.traffic.per_partner

    @property
    def mean_bytes(self) -> float:
        if not isinstance(self.graph, Schedule):
            return self.mean_degree * self.traffic.per_partner
        edges = self.graph.edges_per_step()
        return 2 * sum(edges) / len(edges) / self.graph.size / self.graph.rounds * self.traffic.per_partner


@dataclass(slots=True)
class Selection:
    """The candidates that are left, and why others are not."""

    variants: Variants
    budget: BudgetConfig
    weights: Weights
    numbers: int
    """Parameters of the model."""
    found: list[Candidate] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """(graph, algorithm, why): beyond the budget, or not to be drawn."""
    left_out: dict[str, str] = field(default_factory=dict)
    drawn: dict[tuple[str, float], tuple[Config, Topology]] = field(default_factory=dict)
    error: ConfigError | None = None
    """Of the first combination that the library does not take."""

    @property
    def named(self) -> frozenset[str]:
        return self.variants.named

    def add(self, label: str, algorithm: str, config: Config) -> None:
        """The candidates of a combination, one per strategy; or why there are none."""
        if "wire" not in self.named and self._saves_nothing(config):
            return
        most = self._most_partners(config)
        try:
            config, graph = self._drawn(label, config, most)
        except ConfigError as error:
            if "topology" in self.named:
                raise
            self.refused.append((label, algorithm, str(error)))
            return
        rounds = graph.rounds if isinstance(graph, Schedule) else 1
        try:
            if isinstance(graph, Schedule):
                check_schedule(config.algorithm.kind, rounds, {"wire": config.wire, "bucket_mb": config.bucket_mb})
            made = list(self._strategies(config, graph))
        except ConfigError as error:
            self._refuse(error, f"{config.algorithm.name} on {label}", ("topology", "algorithm", "wire"))
            return
        why = self._beyond(label, algorithm, config, graph, most)
        if why:
            self.refused.append((label, algorithm, why))
            return
        traffic = Traffic.of(config, self.numbers, rounds)
        self.found += [Candidate(label, algorithm, each, graph, traffic) for each in made]

    def _saves_nothing(self, config: Config) -> bool:
        """Whether a narrow wire sends as much as none, as it does with a few numbers."""
        full = dataclasses.replace(config, wire="full")
        sent = Traffic.of(config, self.numbers).vector_bytes
        return config.wire != "full" and sent >= Traffic.of(full, self.numbers).vector_bytes

    def _most_partners(self, config: Config) -> float:
        """As many as the budget's bytes are enough for."""
        if self.budget.bytes is None:
            return float("inf")
        return float(self.budget.bytes // Traffic.of(config, self.numbers).per_partner)

    def _drawn(self, label: str, config: Config, most: float) -> tuple[Config, Topology]:
        most = min(most, float("inf") if self.budget.degree is None else float(self.budget.degree))
        if (label, most) not in self.drawn:
            # of an algorithm that takes any network; whether this one does is asked afterwards
            plain = dataclasses.replace(config, algorithm=AlgorithmConfig(), wire="full", bucket_mb=0)
            self.drawn[label, most] = _fitted(plain, most)
        fitted, graph = self.drawn[label, most]
        return dataclasses.replace(config, topology=fitted.topology), graph

    def _strategies(self, config: Config, graph: Topology) -> Iterator[Config]:
        """The config with every strategy that the algorithm takes on this graph."""
        refusals = []
        taken = False
        for name in self.variants.strategies:
            try:
                chosen = dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, name=name))
                check_rows(chosen, self.weights, graph)
            except ConfigError as error:
                refusals.append((name, error))
                continue
            taken = True
            yield chosen
        for name, why in refusals:
            if not taken:
                raise why
            self._refuse(why, f"Strategy {name}, {config.algorithm.name}", ("strategy",))

    def _refuse(self, error: ConfigError, what: str, axes: tuple[str, ...]) -> None:
        """Told where the user has asked for just this; what only came up by itself is no news."""
        self.error = self.error or error
        if self.named.issuperset(axes[:2]) or "wire" in self.named.intersection(axes):
            self.left_out[what] = str(error)

    def _beyond(self, label: str, algorithm: str, config: Config, graph: Topology, most: float) -> str:
        """Why it is not within the budget, or a repetition; nothing if it is neither."""
        degree, partners = _largest_degree(union_of(graph)), _partners(graph)
        if self.budget.degree is not None and degree > self.budget.degree:
            return f"{degree} neighbours, {min(most, self.budget.degree):.0f} allowed"
        if partners > most:
            return f"{partners} neighbours{' at a time' * isinstance(graph, Schedule)}, {most:.0f} allowed"
        if "topology" in self.named or isinstance(graph, Schedule):
            return ""
        others = [each for each in self.found if each.algorithm == algorithm and each.topology != label]
        for other in others:
            if not isinstance(other.graph, Schedule) and nx.utils.graphs_equal(other.graph, graph):
                return f"the same graph as {other.topology}"
        return ""

    def close(self) -> None:
        """Raise if nothing is left; else say of every graph that is out, or of an algorithm on it, why."""
        if not self.found and not self.refused:
            assert self.error is not None, "there was a combination"
            raise self.error
        remaining = {candidate.topology for candidate in self.found}
        pairs = {(candidate.topology, candidate.algorithm) for candidate in self.found}
        for label, algorithm, why in self.refused:
            if label not in remaining:
                self.left_out.setdefault(label, why)
            elif (label, algorithm) not in pairs:
                self.left_out.setdefault(f"{algorithm} on {label}", why)
        if not self.found:
            self._raise_beyond_budget()

    def _raise_beyond_budget(self) -> None:
        why = "; ".join(f"{name}: {words}" for name, words in self.left_out.items())
        by_bytes = self.budget.bytes is not None and " 0 allowed" in why
        what = "budget.bytes" if self.budget.degree is None or by_bytes else "budget.degree"
        value = self.budget.bytes if what == "budget.bytes" else self.budget.degree
        raise ConfigError(f"{what}={value:g}: no graph fits ({why})")


def selected(variants: Variants, budget: BudgetConfig, weights: Weights, numbers: int) -> Selection:
    """All candidates within the budget."""
    selection = Selection(variants, budget, weights, numbers, left_out=dict(variants.left_out))
    for label, algorithm, config in variants.configs():
        selection.add(label, algorithm, config)
    selection.close()
    return selection


def _fitted(config: Config, most: float) -> tuple[Config, Topology]:
    """A config's graph; a tailored one whose average degree is free has as many edges as the budget allows."""
    weights, graph = network_of(config, Placement("alone"), as_drawn=True)  # swaps keep degrees
    if isinstance(graph, Schedule) or config.topology.name != "tailored":
        return config, graph
    free = config.topology.avg_degree is None
    degree = 2 * graph.number_of_edges() / weights.size
    while _largest_degree(graph) > most and degree > 2 and free:
        degree = max(2.0, min(degree - 0.5, degree * most / _largest_degree(graph)))
        config = dataclasses.replace(config, topology=config.topology.replace(avg_degree=round(degree, 2)))
        graph = network_of(config, Placement("alone"), as_drawn=True)[1]
    return config, graph if _largest_degree(graph) > most else network_of(config, Placement("alone"))[1]


def _largest_degree(graph: Topology) -> int:
    return max(degree for _, degree in union_of(graph).degree)


def _partners(graph: Topology) -> int:
    if not isinstance(graph, Schedule):
        return _largest_degree(graph)
    return max(int(graph.degrees(number).max(initial=0)) for number in range(graph.period))
