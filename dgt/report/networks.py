"""The network of a run, from its files: number of nodes, weights, graph, mixing matrix."""

from __future__ import annotations

import networkx as nx
import numpy as np

from dgt.config import TopologyConfig, WeightsConfig
from dgt.config.checks import build
from dgt.network import graphs, weights
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import Weights
from dgt.runs.record import network_record
from dgt.runs.run import Record, Run

MOST_NODES = 10_000_000  # bound for a config of unknown origin: one number per node is allocated
MOST_TRIES = 1000  # random draws until a graph is connected, which may never happen


def nodes_of(run: Run) -> int | None:
    """The number of nodes; None if no file says it."""
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
        drawn = config.name in ("uniform", "lognormal")
        if config.name == "data_size" or (drawn and not (isinstance(nodes, int) and nodes <= MOST_NODES)):
            return None
        return weights.from_config(config, nodes)
    except (ValueError, TypeError):
        return None


def graph_of(run: Run) -> tuple[Weights, nx.Graph] | None:
    """The weights and the graph the run started on, as recorded or as its config names them; None if not known, or if
    it was a schedule, which has no spectral gap."""
    recorded = run.networks[0] if run.networks else {}
    if recorded.get("schedule"):
        return None
    if recorded.get("edges"):
        graph = nx.empty_graph(len(recorded["nodes"]))
        graph.add_edges_from(recorded["edges"])
        return np.array(recorded["weights"], dtype=np.float64), graph
    found, section = weights_of(run), run.section("topology")
    if found is None or section is None or "_target_" in section:  # nothing that a file names is imported
        return None
    try:
        config = TopologyConfig.from_dict(section)
        bounded = {"tries": min(config.tries, MOST_TRIES)} if "tries" in config.values else {}
        return found, graphs.from_config(config.replace(**bounded), found)
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
