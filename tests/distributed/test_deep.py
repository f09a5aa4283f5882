"""Neural networks on real ranks: against the twin at every step, their metrics, and what ends a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgt
from dgt import algorithms, problems, reference
from dgt.config import Config
from dgt.config.compose import compose
from dgt.data import cifar10
from dgt.errors import LaunchError
from dgt.network.mixing import mixing_matrix, strategy
from dgt.problems import Problem
from dgt.processes.environment import cache_dir
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training.guard import Guard
from dgt.training.setup import network_of
from dgt.training.trainer import train
from tests.distributed.conftest import Said
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(240)

STEPS = 20
CNN = ["problem=cifar10", "problem.model=cnn", "problem.batch=16", "problem.test_samples=200", "weights=[3,1,2,0.5]"]


def parameter_vector(problem: Problem) -> np.ndarray:
    groups: Any = problem.parameters()
    return torch.cat([p.detach().flatten() for group in groups for p in group["params"]]).double().numpy()


def buffer_vector(problem: Problem) -> np.ndarray:
    floating = [buffer.flatten().double() for buffer in problem.model.buffers() if buffer.is_floating_point()]
    return torch.cat(floating).numpy() if floating else np.zeros(0)


@dataclass
class Trace:
    """Parameters and buffers of a node after every step, in the trainer's own order of calls."""

    config: Config

    def run(self, node: Node) -> list[tuple[np.ndarray, np.ndarray]]:
        config = self.config
        weights, graph = network_of(config, node.placement)
        network = dgt.Network(node, graph, weights, config.strategy.name)
        problem = problems.from_config(config, weights, node.rank, [config.seed], "cpu", cache_dir())
        optimizer = algorithms.from_config(config, problem.parameters(), problem.model, network)
        buffers = dgt.MixedBuffers(problem.model, network)
        trace = []
        for t in range(STEPS):
            optimizer.zero_grad()
            problem.backward(t)
            optimizer.step()
            if problem.mixes_buffers:
                buffers.mix()
            trace.append((parameter_vector(problem), buffer_vector(problem)))
        return trace


class Stacked:
    """All nodes' problems in this process, behind the twin's interface."""

    def __init__(self, config: Config) -> None:
        weights, self.graph = network_of(config, Placement("alone"))
        self.nodes = [
            problems.from_config(config, weights, node, [config.seed], "cpu", cache_dir())
            for node in range(weights.size)
        ]
        self.start = np.stack([parameter_vector(problem) for problem in self.nodes])
        self.plan = strategy(config.strategy.name, weights)
        self.W = mixing_matrix(self.graph, self.plan.mixing_weights)

    def gradient(self, theta: np.ndarray, t: int) -> np.ndarray:
        rows = []
        for row, problem in zip(theta, self.nodes, strict=True):
            groups: Any = problem.parameters()
            listed = [p for group in groups for p in group["params"]]
            torch.nn.utils.vector_to_parameters(torch.from_numpy(row).to(listed[0].dtype), listed)
            problem.model.zero_grad()
            problem.backward(t)
            pieces = [
                (p.grad.double() + group["weight_decay"] * p.detach().double()).flatten()
                for group in groups
                for p in group["params"]
            ]
            rows.append(torch.cat(pieces).numpy())
        self.mix_buffers()
        return np.stack(rows)

    def mix_buffers(self) -> None:
        if not self.nodes[0].mixes_buffers:
            return
        mixed = reference.mix(self.W, np.stack([buffer_vector(problem) for problem in self.nodes]))
        for row, problem in zip(mixed, self.nodes, strict=True):
            floating = [buffer for buffer in problem.model.buffers() if buffer.is_floating_point()]
            for buffer, piece in zip(
                floating, np.split(row, np.cumsum([b.numel() for b in floating])[:-1]), strict=True
            ):
                buffer.copy_(torch.from_numpy(piece).view_as(buffer))

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize(
    ("tolerance", "settings"),
    [
        # rounding in float32 flips a maximum or a ReLU here and there, and gradients jump: many samples, small steps
        (1e-5, ["strategy=I", "lr=0.001", "problem.batch=64"]),
        (1e-5, ["strategy=II", "lr=0.001", "problem.batch=64"]),
        (1e-9, ["strategy=II", "lr=0.05", "dtype=float64", "problem.buffers=mixed"]),
        (1e-9, ["strategy=I", "lr=0.05", "dtype=float64", "problem.norm=group", "problem.partition=dirichlet"]),
        (1e-9, ["strategy=II", "lr=0.05", "dtype=float64", "topology=star", "problem.sizes=[1,2,3,0.0005]"]),
    ],
)
def test_a_small_cnn_on_ranks_equals_the_twin(tolerance: float, settings: list[str], data_root: Path) -> None:
    config = compose([*CNN, *settings])
    traces = run_ranks(Trace(config), 4)
    torch.set_num_threads(1)  # as on the ranks
    stacked = Stacked(config)
    states = reference.gradient_tracking(stacked, stacked.W, stacked.plan, config.lr, STEPS)
    next(states)
    for t, state in enumerate(states):
        for node, problem in enumerate(stacked.nodes):
            parameters, buffers = traces[node][t]
            assert np.abs(parameters - state.theta[node]).max() < tolerance, (t, node)
            assert np.abs(buffers - buffer_vector(problem)).max(initial=0) < 10 * tolerance, (t, node)
    assert np.abs(state.theta - stacked.start).max() > 1e-3  # it went somewhere


@dataclass
class Train:
    config: Config

    def run(self, node: Node) -> list[tuple[int, dict[str, float]]]:
        records: list[tuple[int, dict[str, float]]] = []
        weights, graph = network_of(self.config, node.placement)

        def record(t: int, metrics: dict[str, np.ndarray], nodes: dict[str, np.ndarray]) -> None:
            records.append((t, {name: float(value[0]) for name, value in metrics.items()}))

        train(self.config, node, weights, graph, Guard(record))
        return records


def test_metrics_are_those_of_the_paper(data_root: Path) -> None:
    """Interval loss and accuracy under lambda, the average model's accuracy, all against the twin."""
    config = compose([*CNN, "lr=0.05", "iterations=6", "eval_every=3", "dtype=float64"])
    weights, _ = network_of(config, Placement("alone"))
    records = run_ranks(Train(config), 4)[0]
    assert [t for t, _ in records] == [3, 6]
    stacked = Stacked(config)
    losses: list[list[float]] = [[] for _ in stacked.nodes]
    for node, problem in enumerate(stacked.nodes):
        plain = problem.backward
        problem.backward = lambda t, node=node, plain=plain: losses[node].append(plain(t))  # type: ignore[method-assign]
    states = list(reference.gradient_tracking(stacked, stacked.W, stacked.plan, config.lr, 6))
    for t, metrics in records:
        interval = [np.mean(node[t - 3 : t]) for node in losses]
        assert metrics["loss"] == pytest.approx(weights @ interval / 4, abs=1e-9)
        assert 0 < metrics["evaluation_share"] < 1
    groups: Any = [problem.parameters() for problem in stacked.nodes]
    accuracies = []
    for node, problem in enumerate(stacked.nodes):
        listed = [p for group in groups[node] for p in group["params"]]
        torch.nn.utils.vector_to_parameters(torch.from_numpy(states[-1].theta[node]).to(listed[0].dtype), listed)
        accuracies.append(problem.measure()["accuracy"])
    final = records[-1][1]
    assert final["accuracy"] == pytest.approx(weights @ accuracies / 4, abs=1e-9)
    average = stacked.nodes[0]
    listed = [p for group in groups[0] for p in group["params"]]
    mean = (stacked.plan.average_weights[:, None] * states[-1].theta).sum(0)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(mean).to(listed[0].dtype), listed)
    buffers = [buffer_vector(problem) for problem in stacked.nodes]
    mean_buffers = torch.from_numpy(stacked.plan.average_weights @ np.stack(buffers))
    floating = [buffer for buffer in average.model.buffers() if buffer.is_floating_point()]
    for buffer, piece in zip(floating, mean_buffers.split([b.numel() for b in floating]), strict=True):
        buffer.copy_(piece.view_as(buffer))
    assert final["average_accuracy"] == pytest.approx(average.measure()["accuracy"], abs=1e-9)
    parts = [average.measure_average(part, 4)["average_accuracy"] for part in range(4)]
    assert sum(parts) == pytest.approx(average.measure()["accuracy"])


def test_batchnorm_statistics_change_what_is_tested_and_not_what_is_trained(data_root: Path) -> None:
    final = {}
    for buffers in ("local", "mixed", "recalibrated"):
        config = compose([*CNN, "lr=0.05", "iterations=10", "eval_every=10", f"problem.buffers={buffers}"])
        final[buffers] = run_ranks(Train(config), 4)[0][-1][1]
    assert len({metrics["loss"] for metrics in final.values()}) == 1
    assert final["mixed"]["test_loss"] != final["local"]["test_loss"] == final["recalibrated"]["test_loss"]
    # after ten steps, running statistics still remember their start; those measured anew do not
    assert final["recalibrated"]["average_test_loss"] < final["local"]["average_test_loss"] - 0.01


@dataclass
class Recalibrate:
    """Statistics of the averaged model measured on every node's own data, then pooled."""

    def run(self, node: Node) -> dict[str, Any]:
        torch.manual_seed(node.rank)
        model = torch.nn.BatchNorm1d(2)
        data = torch.randn(50, 2) * (1 + node.rank) + 3 * node.rank
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size, "II")
        with network.average(model, lambda: torch.optim.swa_utils.update_bn([data], model)):
            inside = (model.running_mean.clone(), model.running_var.clone())
        return {
            "data": data,
            "inside": inside,
            "after": model.running_mean.clone(),
            "batches": int(model.num_batches_tracked),
        }


def test_recalibrated_statistics_are_those_of_all_data_together() -> None:
    results = run_ranks(Recalibrate(), 4)
    everything = torch.cat([results[node]["data"] for node in range(4)])
    for result in results.values():
        mean, variance = result["inside"]
        torch.testing.assert_close(mean, everything.mean(0))
        torch.testing.assert_close(
            variance, everything.var(0), rtol=0.02, atol=0
        )  # n - 1 of each part, not of the whole
        assert result["after"].tolist() == [0.0, 0.0]  # restored
        assert result["batches"] == 0


class Poisoned(dgt.Problem):
    """Fine until one node's loss is no number."""

    def __init__(self, context: dgt.ProblemContext, node: int, iteration: int) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.bad = (node, iteration)
        self.node = context.node

    def backward(self, iteration: int) -> float:
        loss = self.model(torch.ones(1, 2)).square().mean()
        loss.backward()
        return float("nan") if (self.node, iteration) == self.bad else loss.item()


def test_a_loss_that_is_no_number_names_node_and_iteration() -> None:
    config = compose(
        ["problem=custom", "problem._target_=tests.distributed.test_deep.Poisoned", "problem.node=2",
         "problem.iteration=7", "nodes=4", "weights=uniform", "iterations=20"]
    )  # fmt: skip
    with pytest.raises(LaunchError, match="node 2: the loss is nan at iteration 7"):
        run_ranks(Train(config), 4)


MY_PROBLEM = """
import torch
import dgt


class Spirals(dgt.Problem):
    def __init__(self, context: dgt.ProblemContext, turns: float = 1.0, width: int = 16, activation=None) -> None:
        draw = torch.Generator().manual_seed(1000 * context.seed + context.node)
        arm = torch.randint(0, 2, (64,), generator=draw)
        r = torch.rand(64, generator=draw)
        angle = 6.28 * turns * r + 3.14 * arm
        self.x, self.y = torch.stack([r * angle.cos(), r * angle.sin()], 1).to(context.device), arm.to(context.device)
        torch.manual_seed(context.seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2, width), activation or torch.nn.Tanh(), torch.nn.Linear(width, 2)
        ).to(context.device, context.dtype)

    def backward(self, iteration: int) -> float:
        loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss.item()

    def measure(self) -> dict[str, float]:
        with torch.no_grad():
            return {"accuracy": (self.model(self.x).argmax(1) == self.y).float().mean().item(), "spirality": 3.0}

    @staticmethod
    def data_sizes(nodes: int, turns: float = 1.0, **rest) -> list[int]:
        return [64 + node for node in range(nodes)]
"""


def test_a_problem_from_outside_the_package_trains(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    (tmp_path / "my_problem.py").write_text(MY_PROBLEM)
    (tmp_path / "my_conf" / "problem").mkdir(parents=True)
    (tmp_path / "my_conf" / "problem" / "spirals.yaml").write_text(
        "_target_: my_problem.Spirals\nname: spirals\nwidth: 8\nactivation:\n  _target_: torch.nn.ReLU\n"
    )
    common = ["nodes=3", "weights=data_size", "lr=0.3", "iterations=60", "eval_every=20", "run_dir=run"]
    done = dgt_here("train", "--config-dir", "my_conf", "problem=spirals", "problem.turns=0.2", *common)  # fmt: skip
    assert done.code == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["accuracy"] > 0.8
    assert records[-1]["loss"] < records[1]["loss"]
    assert records[-1]["spirality"] == pytest.approx(3.0)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "_target_: my_problem.Spirals" in config
    assert "turns: 0.2" in config

    direct = ["train", "problem=custom", "problem._target_=my_problem.Spirals"]
    done = dgt_here(*direct, "problem.wdith=3", "nodes=2", "weights=uniform")
    assert done.code == 2
    assert "unexpected keyword argument 'wdith'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = dgt_here("train", "problem=custom", "problem._target_=my_problem.Spiral")
    assert "problem._target_=my_problem.Spiral: cannot import it" in done.stderr
    done = dgt_here("train", "problem=custom")
    assert "problem._target_=my_module.MyProblem" in done.stderr


@pytest.mark.heavy
def test_a_character_transformer_learns(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    overrides = ["iterations=60", "eval_every=30", "problem.width=32", "run_dir=run"]
    done = dgt_here("train", "experiment=text", *overrides)
    assert done.code == 0, done.stderr
    first, last = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1:])
    assert last["test_loss"] < first["test_loss"] < 4.2
    assert last["average_accuracy"] > 0.15


@pytest.mark.heavy
def test_the_cpu_experiment_compares_both_strategies(
    data_root: Path, tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    settings = ["topology=ring", "seeds=2", "iterations=6", "eval_every=3", "problem.test_samples=50"]
    done = dgt_here("compare", "experiment=cifar10_cpu", *settings, "run_dir=run")
    assert done.code == 0, done.stderr
    assert "interval loss, mean of the second half of the iterations" in done.stdout
    rows = (tmp_path / "run" / "compare.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 * 2
    for name in ("compare.png", "compare.pdf", "accuracy.png"):
        assert (tmp_path / "run" / "figures" / name).stat().st_size > 10_000


def test_shards_follow_the_weights_and_the_weights_the_shards(data_root: Path) -> None:
    labels = cifar10.load(data_root).train_y
    config = compose([*CNN, "problem.partition=dirichlet"])
    weights, _ = network_of(config, Placement("alone"))
    sizes = [len(shard) for shard in problems.cifar10.shards(config.problem, labels, weights, 0)]
    assert sizes == (50000 * weights / 4).round().astype(int).tolist()
    for extra in (["problem.sizes=[1,2,5]"], ["problem.partition=dirichlet", "nodes=5"], ["nodes=3"]):
        config = compose(["problem=cifar10", "weights=data_size", *extra])
        weights, _ = network_of(config, Placement("alone"))
        sizes = [len(shard) for shard in problems.cifar10.shards(config.problem, labels, weights, config.seed)]
        assert np.array(sizes) / 50000 == pytest.approx(weights / len(sizes), abs=1e-9)
        assert sizes == problems.data_sizes(config, len(sizes))
