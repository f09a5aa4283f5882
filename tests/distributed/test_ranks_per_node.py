"""Nodes of several ranks: what they train is the run of one rank per node whose gradients are the nodes' means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import dgt
from dgt import reference
from dgt.algorithms import DecentralizedOptimizer
from dgt.exchange.shares import BLOCK
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.network.weights import normalise
from dgt.processes.node import Node
from dgt.reference.wire import Wire

pytestmark = pytest.mark.timeout(180)

SHAPES = ((7,), (3, 5))
STEPS = 10


def run_grouped(job: Any, nodes: int, ranks: int, timeout: float = 30.0) -> dict[int, Any]:
    """The job on `nodes` nodes of `ranks` ranks each."""
    return start_ranks(job, nodes * ranks, JoinOptions(device="cpu", timeout=timeout, ranks_per_node=ranks))


class Quadratics:
    """F_i = 1/k sum_l 1/2 (theta - c_il)' A_il (theta - c_il), A_il diagonal: every rank l of node i has a part."""

    def __init__(self, nodes: int, ranks: int, noise: float = 0.5, numbers: int = 22) -> None:
        draw = np.random.default_rng(numbers)
        self.shape, self.noise = (nodes, ranks, numbers), noise
        self.curvature = draw.uniform(0.5, 2.0, self.shape)
        self.center = draw.normal(size=self.shape)
        self.start = draw.normal(size=(nodes, numbers))

    def parts(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        """The gradients of all ranks [nodes, ranks, numbers] at their nodes' theta [nodes, numbers]."""
        drawn = np.random.default_rng([iteration, 7]).normal(size=self.shape)
        return self.curvature * (theta[:, None] - self.center) + self.noise * drawn

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        return self.parts(theta, iteration).mean(1)

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}

    def optimum(self, weights: np.ndarray) -> np.ndarray:
        curvature = self.curvature.mean(1)
        pull = (self.curvature * self.center).mean(1)
        return (weights @ pull) / (weights @ curvature)


@dataclass(frozen=True)
class Case:
    algorithm: type[DecentralizedOptimizer] = dgt.GradientTracking
    strategy: str = "II"
    lr: float = 0.05
    options: dict[str, Any] = field(default_factory=dict)
    schedule: Callable[[int], Any] | None = None
    numbers: int = 22
    noise: float = 0.5
    steps: int = STEPS
    transport: str = "auto"

    @property
    def laziness(self) -> float:
        return self.algorithm.usual_laziness

    def graph(self, nodes: int) -> Any:
        return nx.path_graph(nodes) if self.schedule is None else self.schedule(nodes)

    def weights(self, nodes: int) -> list[float]:
        return [1.0 + 0.5 * node for node in range(nodes)]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return SHAPES if self.numbers == 22 else ((self.numbers - 11,), (11,))

    def steps_on(self, node: Node) -> Iterator[np.ndarray]:
        """theta of this rank after every step."""
        problem = Quadratics(node.size, node.local.size, self.noise, self.numbers)
        start = torch.from_numpy(problem.start[node.rank]).clone()
        if node.local.rank:
            start.zero_()  # the node's first rank says where it begins
        sizes = [int(np.prod(shape)) for shape in self.shapes()]
        parameters = [
            torch.nn.Parameter(part.view(shape).clone())
            for part, shape in zip(start.split(sizes), self.shapes(), strict=True)
        ]
        network = dgt.Network(
            node, self.graph(node.size), self.weights(node.size), self.strategy, self.laziness, self.transport
        )
        optimizer = self.algorithm(parameters, lr=self.lr, network=network, **self.options)
        for step in range(self.steps):
            optimizer.drain()
            theta = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy().copy()
            yield theta
            everywhere = np.broadcast_to(theta, problem.start.shape)
            gradient = torch.from_numpy(problem.parts(everywhere, step)[node.rank, node.local.rank].copy())
            for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
        yield torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy().copy()

    def twin(self, nodes: int, ranks: int) -> Iterator[np.ndarray]:
        """theta [nodes, numbers] after every step."""
        problem = Quadratics(nodes, ranks, self.noise, self.numbers)
        name = self.algorithm.__module__.rpartition(".")[2]
        weights = normalise(self.weights(nodes))
        options = {key: value for key, value in self.options.items() if key != "overlap"}
        if options.get("wire", "")[:3] == "int":  # every share is rounded for itself
            length = -(-self.numbers // (BLOCK * ranks)) * BLOCK
            options["wire"] = Wire(options["wire"], range(0, self.numbers, length))
        states = reference.states(
            name, problem, self.graph(nodes), weights, self.strategy, laziness=self.laziness, lr=self.lr,
            iterations=self.steps, **options,
        )  # fmt: skip
        return (state.theta for state in states)


@dataclass
class Train:
    cases: list[Case]

    def run(self, node: Node) -> list[np.ndarray]:
        return [np.stack(list(case.steps_on(node))) for case in self.cases]


def assert_equal_twin(cases: list[Case], nodes: int, ranks: int, close: float = 1e-10) -> None:
    """Every rank, at every step: the mates of a node have its parameters, to the last bit."""
    results = run_grouped(Train(cases), nodes, ranks)
    assert len(results) == nodes * ranks
    for number, case in enumerate(cases):
        expected = np.stack(list(case.twin(nodes, ranks)))
        for rank, result in results.items():
            assert np.array_equal(result[number], results[rank // ranks * ranks][number]), (case, rank)
            np.testing.assert_allclose(
                result[number], expected[:, rank // ranks], rtol=0, atol=close, err_msg=str(case)
            )


ADAMW = {"base": "adamw", "base_options": {"weight_decay": 0.1}}
CASES = [
    Case(strategy="I"),
    Case(strategy="II"),
    Case(options={"overlap": False, "momentum": 0.9}, lr=0.01),
    Case(options={"momentum": 0.9, "nesterov": True}, lr=0.01, strategy="I"),
    *(Case(options={**ADAMW, "base_form": form}) for form in ("mixed", "together", "predicted", "own")),
    Case(options={"local_steps": 3}, transport="messages"),
    Case(options={"wire": "bfloat16"}),
    Case(dgt.ExactDiffusion, strategy="I"),
    Case(dgt.ExactDiffusion, options={"form": "extra", "momentum": 0.5}),
    Case(dgt.ExactDiffusion, options={"local_steps": 2}),
    Case(dgt.DSGD),
    Case(dgt.DSGD, strategy="I", options={"momentum": 0.9}, lr=0.01),
    Case(dgt.AllReduce, options={"momentum": 0.9}, lr=0.01),
    Case(dgt.AllReduce, options=ADAMW),
    Case(numbers=5000),
    Case(numbers=5000, options={"wire": "int8"}),
    Case(numbers=5000, options={"wire": "int4", "local_steps": 2}),
]


# on more nodes: neighbours that are not all of them, schedules, and shares that the last rank has less of
FEW = [
    CASES[0],
    CASES[2],
    Case(schedule=dgt.schedules.one_peer_exponential),
    Case(dgt.DSGD, schedule=dgt.schedules.one_peer_exponential, options={"momentum": 0.9}, lr=0.01),
    Case(dgt.ExactDiffusion),
    Case(dgt.AllReduce),
    Case(numbers=5000, options={"wire": "int4"}),
    Case(numbers=5000, transport="messages"),
]


def test_all_algorithms_on_two_nodes_of_two_ranks_equal_the_twin_of_two_nodes() -> None:
    assert_equal_twin(CASES, 2, 2)


@pytest.mark.parametrize(("nodes", "ranks"), [(4, 2), (3, 3), (1, 3)])
def test_shares_of_any_length_equal_the_twin(nodes: int, ranks: int) -> None:
    assert_equal_twin(FEW if nodes > 1 else [CASES[0], Case(dgt.AllReduce)], nodes, ranks)


def test_without_noise_nodes_of_several_ranks_reach_the_weighted_optimum() -> None:
    exact = [
        Case(algorithm, noise=0.0, steps=350, lr=0.3, strategy=name)
        for algorithm, name in ((dgt.GradientTracking, "II"), (dgt.ExactDiffusion, "I"))
    ]
    results = run_grouped(Train(exact), 3, 2)
    for number, case in enumerate(exact):
        optimum = Quadratics(3, 2, 0.0).optimum(normalise(case.weights(3)))
        for result in results.values():
            np.testing.assert_allclose(result[number][-1], optimum, rtol=0, atol=1e-10)
