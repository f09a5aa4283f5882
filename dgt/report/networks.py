"""The network a run was on, from its files: how many nodes, which weights, which graph, who mixes with whom."""

from __future__ import annotations

import networkx as nx
import numpy as np

from dgt.checks import build
from dgt.config import TopologyConfig, WeightsConfig
from dgt.network import graphs, weights
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.record import network_record
from dgt.network.weights import Weights
from dgt.report.runs import Record, Run


def nodes_of(run: Run) -> int | None:
    """How many nodes; None where nobody wrote it."""
    told = run.config.get("nodes") or run.summary.get("nodes")
    if isinstance(told, int):
        return told
    found = weights_of(run)
    return None if found is None else int(found.size)


def weights_of(run: Run) -> Weights | None:
    """The weights a config names; None where they come from elsewhere (data, a file that is gone)."""
    section = run.section("weights")
    if section is None:
        return None
    try:
        config = build(WeightsConfig, section, "weights.")
        nodes = run.config.get("nodes") or run.summary.get("nodes")
        return (
            None
            if config.name == "data_size" or (config.name == "uniform" and not nodes)
            else weights.from_config(config, nodes)
        )
    except (ValueError, TypeError):
        return None


def graph_of(run: Run) -> tuple[Weights, nx.Graph] | None:
    """The weights and the graph the run started on, as recorded or as its config names them; None if not known."""
    recorded = run.networks[0] if run.networks else {}
    if recorded.get("edges"):
        graph = nx.empty_graph(len(recorded["nodes"]))
        graph.add_edges_from(recorded["edges"])
        return np.array(recorded["weights"], dtype=np.float64), graph
    found, section = weights_of(run), run.section("topology")
    if found is None or section is None:
        return None
    try:
        return found, graphs.from_config(build(TopologyConfig, section, "topology."), found)
    except (ValueError, TypeError):
        return None


def record_of(run: Run, most: int) -> Record | None:
    """The network as config.yaml names it, in the form of network.json; None if not known, or larger than that."""
    if (nodes_of(run) or most) > most or (found := graph_of(run)) is None:
        return None
    own, graph = found
    try:
        mixing_weights = strategy(run.choice("strategy"), own).mixing_weights
        return network_record(0, own, mixing_matrix(graph, mixing_weights, float(run.config["laziness"])))
    except (KeyError, ValueError, TypeError):
        return None
