"""Adjacency matrices of tailored graphs, as in the paper, with weights and degrees along the edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from dgt.config import TopologyConfig
from dgt.network import graphs
from dgt.network.weights import PAPER, Weights, named
from dgt.report import style
from dgt.report.networks import graph_of, nodes_of
from dgt.runs.run import Run

Networks = Mapping[str, tuple[Weights, nx.Graph]]  # name of the weights -> weights and the graph drawn for them
MOST = 256  # nodes; blocks of larger networks would be too small to see
SQUARE = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def papers(topology: TopologyConfig) -> Networks:
    """The four tailored graphs of the paper's weights."""
    return {name: (named(name), graphs.from_config(topology, named(name))) for name in PAPER}


def of_runs(runs: Sequence[Run]) -> Networks:
    """The tailored graphs these runs were on, each once; large ones are left out."""
    found: dict[str, tuple[Weights, nx.Graph]] = {}
    for run in runs:
        name = run.choice("weights")
        if run.choice("topology") != "tailored" or name in found or (nodes_of(run) or MOST) > MOST:
            continue
        if (network := graph_of(run)) is not None:
            found[name] = network
    return found


def write(networks: Networks, stem: str | Path) -> list[Path]:
    """All matrices in one figure; no file if there are none."""
    if not networks:
        return []
    abreast = min(4, len(networks))
    down = -(-len(networks) // abreast)
    width = style.PAGE if abreast > 2 else style.COLUMN
    with style.applied():
        figure = style.figure(width, width / abreast * down * 1.08 + 0.2)
        axes = figure.subplots(down, abreast, squeeze=False)
        for panel in axes.flat[len(networks) :]:
            panel.set_visible(False)
        for panel, (name, (weights, graph)) in zip(axes.flat, networks.items(), strict=False):
            adjacency(panel, name, weights, graph)
        note = r"blue: an edge; above $\lambda_i$, right the degree of node $i$"
        figure.supxlabel(note, fontsize=7, color=style.GREY)
        return style.save(figure, Path(stem))


def adjacency(panel: Axes, name: str, weights: Weights, graph: nx.Graph) -> None:
    """Block (i, j) is blue if i and j are neighbours."""
    n = int(weights.size)
    pairs = [pair for i, j in graph.edges for pair in ((i, j), (j, i))]
    both_ways = np.array(pairs).reshape(-1, 2)  # shape (0, 2) for a graph without edges
    corners = both_ways[:, None, :] + 0.46 * SQUARE  # [blocks, 4 corners, column and row]
    panel.add_collection(PolyCollection(list(corners), facecolor=style.BLUE, edgecolor="none"))
    panel.set_xlim(-0.5, n - 0.5)
    panel.set_ylim(n - 0.5, -0.5)  # node 0 on top, as in a matrix
    panel.set_aspect("equal")
    panel.spines[:].set_visible(True)
    ticks = [0, n // 4, n // 2, 3 * n // 4, n - 1] if n > 4 else range(n)
    panel.set_xticks(ticks)
    panel.set_yticks(ticks)
    nodes = np.arange(n)
    above = panel.inset_axes((0.0, 1.02, 1.0, 0.14), sharex=panel)
    above.bar(nodes, weights, width=0.8, color=style.VERMILLION)
    right = panel.inset_axes((1.02, 0.0, 0.14, 1.0), sharey=panel)
    right.barh(nodes, [graph.degree[node] for node in range(n)], height=0.8, color=style.GREY)
    for strip in (above, right):
        strip.axis("off")
    above.set_title(_title(name, graph))


def _title(name: str, graph: nx.Graph) -> str:
    symbol = rf"$\mathcal{{G}}_{{\lambda_{name}}}$" if name in PAPER else f"tailored, {style.plain(name)}"
    return f"{symbol}, {graph.number_of_nodes()} nodes"
