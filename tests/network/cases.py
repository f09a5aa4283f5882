"""An algorithm on a network, to be predicted and to be run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dgt import reference
from dgt.config import TopologyConfig
from dgt.network import schedules, systems, weights
from dgt.network.schedules import Topology
from dgt.network.systems.base import Quadratic, System
from dgt.network.weights import Weights

WEIGHTS = {n: weights.normalise(np.linspace(0.3, 2.2, n)) for n in (7, 8)}
LAZINESS = {"gradient_tracking": 0.3, "exact_diffusion": 0.35, "dsgd": 0.3}


@dataclass
class Case:
    """An algorithm on a network, to be predicted and to be run."""

    algorithm: str
    topology: str = "grid"
    strategy: str = "II"
    local_steps: int = 1
    nodes: int = 7
    lr: float = 0.02
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the algorithm, and `rounds` of a schedule."""
    node_weights: Weights | None = None
    seed: int = 0

    def __str__(self) -> str:
        words = [self.algorithm, self.topology, self.strategy, *(f"{key}={it}" for key, it in self.settings.items())]
        return "-".join([*words, *[f"H{self.local_steps}"] * (self.local_steps > 1)])

    @property
    def weights(self) -> Weights:
        return WEIGHTS[self.nodes] if self.node_weights is None else self.node_weights

    @functools.cached_property
    def graph(self) -> Topology:
        rounds = {"rounds": self.settings["rounds"]} if "rounds" in self.settings else {}
        config = TopologyConfig(name=self.topology, seed=self.seed, optimize=False, **rounds)
        return schedules.from_config(config, self.weights)

    @property
    def own_settings(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if key != "rounds"}

    @property
    def system(self) -> System:
        kind = systems.named(self.algorithm)
        assert kind is not None
        return kind.of(
            self.graph, self.weights, self.strategy, LAZINESS[self.algorithm], local_steps=self.local_steps,
            **self.own_settings,
        )  # fmt: skip

    def runs(self, problem: reference.StackedProblem, iterations: int, lr: float = 0.0) -> Iterator[reference.State]:
        return reference.states(
            self.algorithm, problem, self.graph, self.weights, self.strategy, laziness=LAZINESS[self.algorithm],
            lr=lr or self.lr, iterations=iterations, local_steps=self.local_steps, **self.own_settings,
        )  # fmt: skip


def disagreement(case: Case, theta: np.ndarray) -> np.ndarray:
    """sqrt(1/n sum_i lambda_i |theta_i - average|^2), [draws]."""
    average = np.tensordot(case.system.plan.average_weights, theta, 1)
    return np.sqrt(np.tensordot(case.weights / case.nodes, ((theta - average) ** 2).sum(-1), 1))


def distances(case: Case, problem: Any, quadratic: Quadratic, lr: float, iterations: int) -> list[float]:
    optimum = quadratic.optimum(case.weights)
    with np.errstate(all="ignore"):
        return [float(np.linalg.norm(state.theta - optimum)) for state in case.runs(problem, iterations, lr)]
