"""The twin as a command: files like a real run's, sizes no machine has ranks for, one line for what it cannot do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from dgt.commands.simulate.twin import check, evaluations, simulate, traffic
from dgt.config.compose import compose
from dgt.errors import AlarmError, ConfigError
from dgt.network import graphs, weights
from dgt.problems import least_squares
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings
from dgt.processes.placement import Placement
from dgt.training.setup import network_of


def test_a_simulated_run_directory_is_like_a_real_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["weights=[1,2,3]", "iterations=7", "eval_every=2", f"run_dir={tmp_path / 'run'}"]
    summary = simulate(compose(overrides), "json")
    assert json.loads(capsys.readouterr().out) == summary
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "network.json",
        "nodes.jsonl",
        "summary.json",
    ]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == [0, 2, 4, 6, 7]
    assert list(records[-1]) == [
        "iteration", "loss", "grad_norm", "distance", "consensus", "tracking_residual", "seconds", "evaluation_share",
        "bytes_sent",
    ]  # fmt: skip
    assert "tracking_residual" not in records[0]
    assert summary["simulated"] is True
    assert summary["final"] == records[-1]


def test_five_thousand_nodes_reach_the_optimum_of_the_weighted_problem() -> None:
    """Blocks of nodes, sparse products: nothing here depends on the number of nodes being small."""
    config = compose(
        [
            "weights=lognormal",
            "nodes=5000",
            "topology=exponential",
            "problem.noise=0",
            "iterations=150",
            "eval_every=75",
        ]
    )
    node_weights, graph = network_of(config, Placement("alone"))
    (_, start), _, (_, last) = evaluations(config, node_weights, graph, [0])
    assert last.metrics["distance"][0] < 1e-3 * start.metrics["distance"][0]
    assert last.metrics["tracking_residual"][0] < 1e-12


@pytest.mark.parametrize("nodes", [range(0, 1), range(1500, 1501), range(1000, 2100)])
def test_a_nodes_numbers_do_not_depend_on_who_is_drawn_with_it(nodes: range) -> None:
    config, seeds = LeastSquaresSettings(dimension=3), [0, 5]
    everyone, some = LeastSquares(config, seeds, range(2500)), LeastSquares(config, seeds, nodes)
    for name in ("curvature", "center", "start"):
        assert np.array_equal(getattr(some, name), getattr(everyone, name)[nodes.start : nodes.stop])
    assert np.array_equal(some.noise(20), everyone.noise(20)[nodes.start : nodes.stop])
    assert len(np.unique(everyone.noise(20))) == 2500 * 2 * 3


def test_noise_is_drawn_as_before_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LeastSquaresSettings()
    monkeypatch.setattr(least_squares, "BLOCK", 7)
    blocks = LeastSquares(config, [3], range(40)).noise(17)
    whole = least_squares.gaussians(3, least_squares.NOISE, 1, range(40), 160)[:, 10:20]
    assert np.array_equal(blocks[:, 0], whole)


def test_traffic_is_that_of_the_messages() -> None:
    """Node pairs x (z and y) x dimension x 8 bytes per step, and 16 bytes per neighbour before the first."""
    ends, config = 2 * 16, compose(["weights=A", "topology=ring", "local_steps=3"])
    sent = traffic(config, graphs.ring(16))
    (whole,) = sent.exchanges
    assert [sent.after(t) for t in (0, 2, 3, 300)] == [ends * 16 + k * ends * 2 * 10 * 8 for k in (0, 0, 1, 100)]
    assert traffic(dataclasses.replace(config, wire="bfloat16"), graphs.ring(16)).exchanges == [whole / 4]
    int8 = traffic(dataclasses.replace(config, wire="int8"), graphs.ring(16), copies=13)
    assert int8.exchanges == [ends * 2 * 2 * 132], "130 numbers are two groups"
    assert traffic(compose(["algorithm=dsgd"]), graphs.ring(16)).exchanges == [whole / 2]
    assert traffic(compose(["algorithm=allreduce"]), graphs.ring(16)).exchanges == [16 * (2 * 15 * 80 // 16)]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("problem=cifar10", "problem=cifar10: dgt simulate knows least squares only"),
        ("chaos=kill", "chaos=kill: for the ranks of dgt train"),
        ("placement=graph", "placement=graph: for the ranks of dgt train"),
        ("resume=somewhere", "resume=somewhere: for the ranks"),
        ("on_peer_loss=continue", "on_peer_loss=continue: for the ranks"),
        ("checkpoint.every=5", "checkpoint: dgt simulate writes none"),
        ("dtype=float32", "dtype=float32: dgt simulate computes in float64"),
        ("device=cuda", "device=cuda: dgt simulate computes on the CPU"),
        ("precision=bf16", "precision=bf16: for the ranks of dgt train"),
        ("epochs=3", "epochs=3: problem=least_squares does not say how long an epoch is"),
    ],
)
def test_what_only_ranks_can_do_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(compose([override]))


def test_a_schedule_that_moves_momentum_is_for_ranks() -> None:
    check(compose(["schedule=onecycle"]))
    for algorithm in ("algorithm.momentum=0.9", "algorithm.base=adam"):
        with pytest.raises(ConfigError, match="schedule=onecycle: it moves momentum too"):
            check(compose(["schedule=onecycle", algorithm]))


@pytest.mark.parametrize("topology", ["complete", "geometric", "erdos_renyi"])
def test_graphs_that_would_fill_the_memory_are_refused_before_they_are_drawn(topology: str) -> None:
    dense = ["topology.probability=0.5"] if topology == "erdos_renyi" else []
    with pytest.raises(ConfigError, match=rf"topology={topology}: about \S+ edges on 100000 nodes, at most 5e\+06"):
        check(compose([f"topology={topology}", "weights=uniform", "nodes=100000", *dense]))


def test_a_diverging_run_ends_with_what_to_do(tmp_path: Path) -> None:
    config = compose(["weights=A", "lr=0.5", f"run_dir={tmp_path}"])
    with pytest.raises(AlarmError, match=r"lr=0.5 is too large for this problem; theory: below 1/beta"):
        simulate(config, "nothing")
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") >= 1


def test_lognormal_weights_fit_any_number_of_nodes() -> None:
    drawn = weights.lognormal(4000, spread=0.7, seed=3)
    assert drawn.sum() == pytest.approx(4000)
    assert np.log(drawn).std() == pytest.approx(0.7, rel=0.05)
    assert np.array_equal(drawn, weights.lognormal(4000, spread=0.7, seed=3))
    assert not np.array_equal(drawn, weights.lognormal(4000, spread=0.7, seed=4))
    config = compose(["weights=lognormal", "weights.spread=0.7", "weights.seed=3", "nodes=4000"])
    found, graph = network_of(config, Placement("alone"))
    assert np.array_equal(found, drawn)
    assert nx.number_of_nodes(graph) == 4000
    with pytest.raises(ConfigError, match=r"weights.spread=-1.0: must be at least 0"):
        compose(["weights=lognormal", "weights.spread=-1"])
