"""The paper's table of spectral gaps, recomputed: `dgt gaps`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dgt.config import TopologyConfig
from dgt.network import graphs, topologies
from dgt.network.optimal import optimal_weights
from dgt.network.spectral import spectral_gap
from dgt.network.weights import named, uniform

# Table "Spectral gaps across different network sizes, weights, and topologies", laziness 0.3:
# (topology, nodes, weights) -> printed gap, weights "uniform" for W^ds; "tailored:A" is the graph drawn for A.
PUBLISHED: dict[tuple[str, int, str], str] = {
    ("ring", 16, "A"): "0.034", ("ring", 16, "uniform"): "0.053", ("ring", 16, "B"): "0.027",
    ("ring", 32, "C"): "0.004", ("ring", 32, "uniform"): "0.013",
    ("ring", 64, "D"): "0.0009", ("ring", 64, "uniform"): "0.0034",
    ("grid", 16, "A"): "0.075", ("grid", 16, "uniform"): "0.119", ("grid", 16, "B"): "0.086",
    ("grid", 32, "C"): "0.014", ("grid", 32, "uniform"): "0.031",
    ("grid", 64, "D"): "0.0095", ("grid", 64, "uniform"): "0.0288",
    ("exponential", 16, "A"): "0.248", ("exponential", 16, "uniform"): "0.400", ("exponential", 16, "B"): "0.202",
    ("exponential", 32, "C"): "0.112", ("exponential", 32, "uniform"): "0.311",
    ("exponential", 64, "D"): "0.0735", ("exponential", 64, "uniform"): "0.2545",
    ("tailored:A", 16, "A"): "0.311", ("tailored:A", 16, "uniform"): "0.108",
    ("tailored:B", 16, "B"): "0.293", ("tailored:B", 16, "uniform"): "0.130",
    ("tailored:C", 32, "C"): "0.343", ("tailored:C", 32, "uniform"): "0.040",
    ("tailored:D", 64, "D"): "0.2921", ("tailored:D", 64, "uniform"): "0.0350",
}  # fmt: skip


def gap_table(laziness: float = 0.3, graph_seed: int = 0, *, optimal: bool = False) -> list[dict[str, Any]]:
    """Every cell of the paper's table, recomputed."""
    return list(gap_rows(laziness, graph_seed, optimal=optimal))


def gap_rows(laziness: float = 0.3, graph_seed: int = 0, *, optimal: bool = False) -> Iterator[dict[str, Any]]:
    """The cells one by one; `tailored_for` names the weights a tailored graph is drawn for.

    Tailored graphs are random: the published ones are one draw, `gap` is that of the draw of `graph_seed`. `optimized`
    is the gap after edges were swapped at the same degrees, as `topology.optimize` does, and `factor` its multiple of
    the published one. `optimal`: the gap of the best weights for the graph (the optimized one), see `optimal.py`.
    """
    for (label, nodes, name), published in PUBLISHED.items():
        topology, _, drawn_for = label.partition(":")
        weights = uniform(nodes) if name == "uniform" else named(name)
        drawn = named(drawn_for) if drawn_for else weights
        config = TopologyConfig(name=topology, seed=graph_seed)
        graph = graphs.from_config(topologies.as_drawn(config), drawn)
        row: dict[str, Any] = {"nodes": nodes, "topology": topology, "weights": name}
        row |= {
            "gap": spectral_gap(graph, weights, laziness),
            "tailored_for": drawn_for or None,
            "published": published,
        }
        if drawn_for:
            graph = graphs.from_config(config, drawn)
            row["optimized"] = spectral_gap(graph, weights, laziness)
            row["factor"] = row["optimized"] / float(published)
        if optimal:
            row["optimal"] = optimal_weights(graph, weights)[1].gap
        yield row
