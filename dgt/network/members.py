"""The network of some of its nodes: those that are left after a loss, or that a run is resumed with.

It follows from the whole network and from who is there alone, whatever the order in which nodes were lost: so a run
that is resumed has the same rows, to the last bit, as the one that went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import networkx as nx

from dgt.network.mixing import MixingRow, mixing_row, row_without, strategy
from dgt.network.schedules import Schedule, Topology
from dgt.network.weights import Weights, normalise


@overload
def among(graph: Schedule, weights: Weights, members: Sequence[int]) -> tuple[Schedule, Weights]: ...
@overload
def among(graph: nx.Graph, weights: Weights, members: Sequence[int]) -> tuple[nx.Graph, Weights]: ...
def among(graph: Topology, weights: Weights, members: Sequence[int]) -> tuple[Topology, Weights]:
    """The graph between these nodes, renumbered from 0, or the schedule they go on with; their lambda, scaled anew."""
    if isinstance(graph, Schedule):
        return graph.among(members), normalise(weights[list(members)])
    between = nx.convert_node_labels_to_integers(graph.subgraph(members), ordering="sorted")
    return between, normalise(weights[list(members)])


def row_among(
    graph: nx.Graph, weights: Weights, name: str, laziness: float, members: Sequence[int], node: int
) -> MixingRow:
    """Node's row of the whole network, with the weight of those who are not there on its diagonal; strategy `name`.

    Neighbours are counted as in `among`.
    """
    lambdas = strategy(name, weights).mixing_weights
    told = {j: (float(lambdas[j]), graph.degree[j]) for j in graph[node]}
    row = row_without(mixing_row(float(lambdas[node]), graph.degree[node], told, laziness), set(told) - set(members))
    return MixingRow(row.own, {members.index(j): weight for j, weight in row.neighbours.items()})
