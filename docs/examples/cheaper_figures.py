"""What an exchange buys: how fast nodes agree per message, and the gradient norm for so many bytes, way by way.

python docs/examples/cheaper_figures.py                                        # weights A to D, ten seeds, Strategy II
python docs/examples/cheaper_figures.py --weights D --seeds 2 --write images   # and images/cheaper.png

No ranks are needed: noisy least squares of the paper on the twins, which give the numbers of ranks. Every way takes the
same steps with the same noise; its bytes are those of a float32 model of a million parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dgt.commands.simulate.twin import evaluations
from dgt.config import Config
from dgt.config.compose import compose
from dgt.network import changing, mixing, rounding
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.processes.placement import Placement
from dgt.report import style
from dgt.report.tables import table
from dgt.training.setup import network_of

Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # MB sent per node, gradient norm
PARAMETERS, NUMBER_BYTES = 1_000_000, 4

GRAPHS = {
    "ring": ["topology=ring"],
    "exponential": ["topology=exponential"],
    "tailored": ["topology=tailored"],
    "one_peer, hypercube": ["topology=one_peer"],
    "one_peer, hypercube, 2 rounds": ["topology=one_peer", "topology.rounds=2"],
    "one_peer, matchings": ["topology=one_peer", "topology.schedule=matching"],
    "one_peer_exponential": ["topology=one_peer_exponential"],
}
WAYS = {
    "gradient tracking, exponential": GRAPHS["exponential"],
    "gradient tracking, ring": GRAPHS["ring"],
    "exact diffusion, exponential": [*GRAPHS["exponential"], "algorithm=exact_diffusion"],
    "exact diffusion, ring": [*GRAPHS["ring"], "algorithm=exact_diffusion"],
    "exact diffusion, ring, int4": [*GRAPHS["ring"], "algorithm=exact_diffusion", "wire=int4"],
    "gradient tracking, one_peer": GRAPHS["one_peer, hypercube"],
}


def messages_for_a_tenth(weights: npt.NDArray[np.float64], graph: Topology, laziness: float) -> float:
    """Vectors that a node sends until disagreement is a tenth, by the second largest eigenvalue of a period of W."""
    n = len(weights)
    matrices = (
        changing.matrices(graph, weights, laziness)
        if isinstance(graph, Schedule)
        else [mixing.mixing_matrix(graph, weights, laziness)]
    )
    period = np.eye(n)
    for W in matrices:
        period = W @ period
    left = np.abs(np.linalg.eigvals(period - np.ones((n, 1)) * weights / n)).max()
    return float(2 * sum(edges_per_step(graph)) / n / -np.log10(left))


def curve(config: Config, seeds: Sequence[int]) -> Curve:
    """Over a run, mean over the seeds."""
    weights, graph = network_of(config, Placement("alone"))
    found = [(step, each.metrics["grad_norm"].mean()) for step, each in evaluations(config, weights, graph, seeds)]
    steps, norms = np.array(found).T
    return steps * megabytes(config, graph), norms


def megabytes(config: Config, graph: Topology) -> float:
    """Sent by a node per step, mean over the nodes and over a period of a schedule."""
    width = rounding.bytes_per_number(config.wire, PARAMETERS, NUMBER_BYTES)
    nodes = union_of(graph).number_of_nodes()
    bytes_of = config.algorithm.kind.bytes_per_exchange
    sent = [bytes_of(nodes, edges, PARAMETERS, NUMBER_BYTES, width) for edges in edges_per_step(graph)]
    return float(np.mean(sent)) / nodes / 1e6


def edges_per_step(graph: Topology) -> list[int]:
    """Of every step until they repeat."""
    return graph.edges_per_step() if isinstance(graph, Schedule) else [graph.number_of_edges()]


def late(values: npt.NDArray[np.float64]) -> float:
    """Mean over the last fifth of the evaluations."""
    return float(values[int(0.8 * len(values)) :].mean())


def figure(messages: dict[str, dict[str, float]], curves: dict[str, Curve], weights: str, folder: Path) -> None:
    with style.applied():
        drawn = style.figure(style.PAGE, 3.2)
        left, right = drawn.subplots(1, 2, width_ratios=[1, 1.25])
        places = np.arange(len(GRAPHS))
        for number, (name, row) in enumerate(messages.items()):
            height = 0.8 / len(messages)
            left.barh(places + (number - (len(messages) - 1) / 2) * height, [row[graph] for graph in GRAPHS],
                      height, label=name, color=style.line(number)["color"])  # fmt: skip
        left.set(
            yticks=places, yticklabels=list(GRAPHS), xscale="log", xlabel="vectors sent for a tenth of the disagreement"
        )
        left.set_xlim(left=1)
        left.invert_yaxis()
        left.legend(title="weights", frameon=False)
        for number, (name, (sent, norms)) in enumerate(curves.items()):
            right.plot(sent[1:], norms[1:], label=name, **style.line(number))
        right.set(xscale="log", yscale="log", xlabel=f"MB sent per node, weights {weights}", ylabel="gradient norm")
        drawn.legend(handles=right.get_lines(), loc="outside lower center", ncols=3, frameon=False)
        for panel in (left, right):
            style.light_grid(panel)
        style.save(drawn, folder / "cheaper")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", default=["A", "B", "C", "D"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--write", type=Path, help="folder for cheaper.png")
    options = parser.parse_args()
    messages, rows, curves = {}, [], {}
    for name in options.weights:
        messages[name] = {}
        for graph, words in GRAPHS.items():
            config = compose([f"weights={name}", *words])
            messages[name][graph] = messages_for_a_tenth(*network_of(config, Placement("alone")), config.laziness)
        for way, words in WAYS.items():
            config = compose([f"weights={name}", f"iterations={options.iterations}", "lr=0.02", *words])
            curves[way] = sent, norms = curve(config, range(options.seeds))
            rows.append({"weights": name, "way": way, "gradient norm": f"{late(norms):.4f}", "MB": f"{sent[-1]:.4g}"})
    print("vectors that a node sends until disagreement is a tenth, Strategy II\n")
    print(table([{"graph": graph} | {name: f"{messages[name][graph]:.1f}" for name in messages} for graph in GRAPHS]))
    print(f"\nafter {options.iterations} iterations, Strategy II, mean of {options.seeds} seeds\n")
    print(table(rows))
    if options.write is not None:
        figure(messages, curves, options.weights[-1], options.write)


if __name__ == "__main__":
    main()
