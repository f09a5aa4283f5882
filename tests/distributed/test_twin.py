"""Real ranks against the single-process twin, number by number, at every evaluation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dgt.commands.simulate.twin import evaluations
from dgt.config import (
    STRATEGIES,
    WIRES,
    AlgorithmConfig,
    Config,
    ProblemConfig,
    TopologyConfig,
    WeightsConfig,
    registry,
)
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training.guard import Guard
from dgt.training.setup import network_of
from dgt.training.trainer import train
from tests.distributed.ranks import run_ranks

TOPOLOGIES = [
    "ring",
    "grid",
    "torus",
    "exponential",
    "erdos_renyi",
    "geometric",
    "complete",
    "star",
    "tailored",
    "file",
]
PAPER_A = [0.3, 0.8, 1.0, 0.9, 0.7, 1.0, 2, 2.2, 1.2, 1.4, 0.8, 0.5, 1.5, 0.6, 0.6, 0.5]

Record = tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]  # iteration, the network's metrics, the nodes'


@dataclass
class TrainAll:
    """Several runs on the same ranks; rank 0 returns every run's records."""

    configs: list[Config]
    seeds: list[int] | None = None
    records: list[list[Record]] = field(default_factory=list)

    def run(self, node: Node) -> list[list[Record]]:
        for config in self.configs:
            weights, drawn = network_of(config, node.placement, as_drawn=True)
            rows: list[Record] = []
            guard = Guard(lambda t, metrics, nodes, rows=rows: rows.append((t, metrics, nodes)))
            train(config, node, weights, drawn, guard, self.seeds)
            self.records.append(rows)
        return self.records


def twin(config: Config, seeds: list[int] | None = None) -> list[Record]:
    """The same run in this process."""
    weights, graph = network_of(config, Placement("alone"))
    every = evaluations(config, weights, graph, seeds or [config.seed])
    return [(iteration, measured.metrics, measured.nodes) for iteration, measured in every]


def assert_same(records: list[Record], expected: list[Record], config: Config) -> None:
    assert [t for t, *_ in records] == [t for t, *_ in expected]
    for (t, ours, our_nodes), (_, theirs, their_nodes) in zip(records, expected, strict=True):
        assert set(theirs) == set(ours) - {"seconds", "evaluation_share"}
        assert (theirs["bytes_sent"] == ours["bytes_sent"]).all(), (t, config)
        for name in set(theirs) - {"bytes_sent"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-12, abs=1e-10), (t, name, config)
        assert set(our_nodes) - {"waited"} == set(their_nodes)
        for name, values in their_nodes.items():
            assert our_nodes[name] == pytest.approx(values, rel=1e-12, abs=1e-10), (t, name, config)
        if "tracking_residual" in ours:
            assert ours["tracking_residual"].max() < 1e-10


def config_for(topology: str, nodes: int, path: str, **changes: Any) -> Config:
    """Noise on, uneven weights, a few iterations evaluated one by one."""
    settings = TopologyConfig(name=topology, path=path if topology == "file" else None, radius=0.6)
    base = {
        "topology": settings,
        "weights": WeightsConfig(name="list", values=PAPER_A[:nodes]),
        "iterations": 8,
        "eval_every": 1,
        "seed": 3,
    }
    groups = {
        "strategy": {"name": changes.pop("strategy", "II")},
        "algorithm": {"name": changes.pop("algorithm", "gradient_tracking")},
    }
    return dataclasses.replace(Config.from_dict(groups), **{**base, **changes})


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("nodes", "transport"), [(1, "auto"), (2, "auto"), (5, "auto"), (5, "messages"), (16, "auto")])
def test_ranks_equal_twin_for_every_topology_strategy_and_algorithm(nodes: int, transport: str, tmp_path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("".join(f"{i} {i // 2}\n" for i in range(1, nodes)))  # a binary tree
    configs = [
        config_for(topology, nodes, str(edges), strategy=strategy_name, algorithm=algorithm, transport=transport)
        for topology in TOPOLOGIES
        for strategy_name in STRATEGIES
        for algorithm in registry.names("algorithm")
    ]
    records = run_ranks(TrainAll(configs), nodes)[0]
    assert len(records) == len(configs) == 20 * len(registry.names("algorithm")) >= 60
    for config, rows in zip(configs, records, strict=True):
        assert_same(rows, twin(config), config)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["auto", "messages"])
@pytest.mark.parametrize("overlap", [True, False])
def test_two_messages_per_step_equal_the_twin_with_overlap_on_and_off(overlap: bool, transport: str) -> None:
    """Models above 64 KiB send parameters and tracker apart; the tracker travels during the next gradient."""
    wide = ProblemConfig(dimension=5000)
    configs = [
        config_for(
            "exponential", 5, "", strategy=name, problem=wide, overlap=overlap, iterations=6, transport=transport
        )
        for name in STRATEGIES
    ]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        assert_same(rows, twin(config), config)


WIDE = ProblemConfig(dimension=5000)  # in a stream per vector, not in one message
TRAFFIC = (
    {"wire": "bfloat16"},
    {"wire": "float16", "overlap": False},
    {"local_steps": 3},
    {"wire": "bfloat16", "local_steps": 2, "problem": WIDE},
    {"local_steps": 4, "problem": WIDE},
    {"wire": "int8"},
    {"wire": "int4", "local_steps": 2, "problem": WIDE},
)


def supported(algorithm: str, changes: dict[str, Any]) -> bool:
    return {"wire", "local_steps"} & changes.keys() <= registry.find("algorithm", algorithm).supports


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_narrow_wires_and_local_steps_equal_the_twin(transport: str) -> None:
    """The invariant holds to rounding errors of the full dtype, whatever goes over the wire and however rarely."""
    configs = [
        config_for(
            "exponential", 5, "", algorithm=algorithm, strategy=name, transport=transport, iterations=14, **changes
        )
        for algorithm in registry.names("algorithm")
        for name in STRATEGIES
        for changes in TRAFFIC
        if supported(algorithm, changes)
    ]
    assert len(configs) >= 20
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        assert_same(rows, twin(config), config)
    full, *narrow = (config_for("exponential", 5, "", wire=wire, problem=WIDE, iterations=2) for wire in WIRES)
    handshake = 5 * 4 * 16
    sent, *less = (rows[-1][1]["bytes_sent"][0] - handshake for rows in run_ranks(TrainAll([full, *narrow]), 5)[0])
    groups = 40  # of 128 numbers, two scales and 128 codes
    assert [each / sent for each in less] == [1 / 4, 1 / 4, groups * 132 / 40_000, groups * 68 / 40_000]


DESCENTS: tuple[dict[str, Any], ...] = (
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"base": "adam", "base_options": {"amsgrad": True}},
    {"base": "adamw", "base_options": {"betas": [0.8, 0.99], "weight_decay": 0.1}},
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_momentum_and_bases_equal_the_twin(transport: str) -> None:
    """Small models and large ones, several seeds in one model, narrow wire: every metric at every iteration."""
    tracked = [
        (descent, on)
        for descent in DESCENTS
        for on in (("mixed", "together", "predicted", "own") if "base" in descent else ("mixed",))
    ]
    settings = [("gradient_tracking", {**descent, "base_form": on}) for descent, on in tracked]
    settings += [(name, descent) for name in ("dsgd", "allreduce") for descent in DESCENTS[1:3]]
    configs = [
        config_for("exponential", 5, "", strategy=name, transport=transport, **changes)
        for name in STRATEGIES
        for changes in ({}, {"wire": "bfloat16", "local_steps": 2, "problem": WIDE})
    ]
    configs = [
        dataclasses.replace(config, algorithm=AlgorithmConfig(name=algorithm, **values))
        for config in configs
        for algorithm, values in settings
        if algorithm != "allreduce" or config.wire == "full"
    ]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        assert_same(rows, twin(config), config)
    for config, rows in zip(configs[:4], run_ranks(TrainAll(configs[:4], seeds=[0, 4]), 5)[0], strict=True):
        assert_same(rows, twin(config, [0, 4]), config)


@pytest.mark.timeout(120)
def test_large_models_are_measured_by_sums_across_ranks() -> None:
    """Above 1 MiB nothing is gathered on rank 0; the metrics are the same."""
    huge = ProblemConfig(dimension=50_000)
    configs = [config_for("ring", 5, "", strategy=name, problem=huge, iterations=3) for name in STRATEGIES]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        assert_same(rows, twin(config), config)


@pytest.mark.timeout(120)
def test_seeds_side_by_side_are_the_separate_runs() -> None:
    config = config_for("grid", 5, "")
    together = run_ranks(TrainAll([config], seeds=[0, 4, 7]), 5)[0][0]
    assert_same(together, twin(config, [0, 4, 7]), config)
    for k, seed in enumerate([0, 4, 7]):
        for (_, many, _), (_, one, _) in zip(together, twin(dataclasses.replace(config, seed=seed)), strict=True):
            assert many["grad_norm"][k] == pytest.approx(one["grad_norm"][0], rel=1e-12)


@pytest.mark.timeout(120)
def test_noise_free_ranks_reach_the_closed_form_optimum() -> None:
    exact = ProblemConfig(noise=0.0)
    configs = [
        config_for("tailored", 5, "", strategy=name, problem=exact, iterations=900, eval_every=100, lr=0.05, **changes)
        for name in STRATEGIES
        for changes in ({}, *({"wire": wire} for wire in WIRES[1:]), {"local_steps": 2})
    ]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        near = 1e-6 if config.wire == "float16" else 1e-8  # changes below 3e-8 are zero in float16
        assert rows[-1][1]["distance"][0] < near
        assert rows[-1][1]["grad_norm"][0] < near
        assert rows[-1][1]["consensus"][0] < near


@pytest.mark.timeout(120)
def test_with_uniform_weights_the_strategies_coincide_to_the_last_bit() -> None:
    ones = WeightsConfig(name="list", values=[1.0] * 5)
    configs = [config_for("grid", 5, "", strategy=name, weights=ones) for name in STRATEGIES]
    one, two = run_ranks(TrainAll(configs), 5)[0]
    for (_, first, _), (_, second, _) in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "distance", "consensus"):
            assert np.array_equal(first[name], second[name])
