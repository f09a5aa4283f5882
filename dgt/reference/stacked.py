"""The slow twin: the same algorithms on stacked arrays in one process, with the whole sparse W.

Every distributed run can be repeated here and compared number by number. Written straight from the equations:
no flat buffers, no messages, no overlap. Arrays are [nodes, parameters].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy, mixing_matrix, strategy
from dgt.network.weights import Weights

Array = npt.NDArray[np.float64]
StepSize = float | Callable[[int], float | Array]  # alpha, or alpha_t (one number, or one per parameter)


class StackedProblem(Protocol):
    """All nodes at once: the start, the gradients, and the quantities to measure; node axis first."""

    start: Array

    def gradient(self, theta: Array, iteration: int) -> Array: ...

    def measure(self, theta: Array) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class State:
    """After `iteration` updates: theta_t, and the tracker and gradient of the update before, if any."""

    iteration: int
    theta: Array
    tracker: Array | None = None
    gradient: Array | None = None


def gradient_tracking(
    problem: StackedProblem,
    W: scipy.sparse.csr_array,
    plan: Strategy,
    lr: StepSize,
    iterations: int,
    local_steps: int = 1,
    wire: str = "full",
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t Y),  Y' = W Y + G (g' - g),  Y_0 = G g_0; W = I on local steps."""
    theta, G = problem.start, _column(plan.gradient_scale, problem.start)
    mix_theta, mix_tracker = (Plain(W), Plain(W)) if wire == "full" else (Compressed(W, wire), Compressed(W, wire))
    yield State(0, theta)
    gradient = problem.gradient(theta, 0)
    tracker = G * gradient
    for t in range(iterations):
        exchanges = (t + 1) % local_steps == 0
        theta = theta - _at(lr, t) * tracker
        theta = mix_theta(theta) if exchanges else theta
        yield State(t + 1, theta, tracker, gradient)
        if t + 1 < iterations:
            following = problem.gradient(theta, t + 1)
            tracker = (mix_tracker(tracker) if exchanges else tracker) + G * (following - gradient)
            gradient = following


@dataclass(slots=True)
class Plain:
    """v -> W v."""

    W: scipy.sparse.csr_array

    def __call__(self, values: Array) -> Array:
        return mix(self.W, values)


@dataclass(slots=True)
class Compressed:
    """v -> v + W e' - e',  e' = e + Q(v - e): what neighbours hear is rounded to the dtype `wire`."""

    W: scipy.sparse.csr_array
    wire: str
    estimate: Array | float = 0.0

    def __call__(self, values: Array) -> Array:
        self.estimate = self.estimate + _rounded(values - self.estimate, self.wire)
        return values + mix(self.W, self.estimate) - self.estimate


def without(W: scipy.sparse.csr_array, kept: list[int]) -> scipy.sparse.csr_array:
    """W among those who are left: what they gave to the lost goes to their own diagonal."""
    left = W[kept][:, kept].toarray()
    np.fill_diagonal(left, 0.0)
    return scipy.sparse.csr_array(left + np.diag(1.0 - left.sum(1)))


def dsgd(
    problem: StackedProblem, W: scipy.sparse.csr_array, plan: Strategy, lr: StepSize, iterations: int
) -> Iterator[State]:
    """Theta' = W (Theta - alpha G g)."""
    theta, G = problem.start, _column(plan.gradient_scale, problem.start)
    yield State(0, theta)
    for t in range(iterations):
        theta = mix(W, theta - _at(lr, t) * G * problem.gradient(theta, t))
        yield State(t + 1, theta)


def allreduce(
    problem: StackedProblem, weights: Weights, plan: Strategy, lr: StepSize, iterations: int
) -> Iterator[State]:
    """theta' = theta - alpha 1/n sum_i lambda_i g_i from the strategy's average of the starts."""
    everywhere = np.ones_like(_column(weights, problem.start))
    theta = everywhere * _weighted_sum(plan.average_weights, problem.start)
    yield State(0, theta)
    for t in range(iterations):
        theta = theta - _at(lr, t) * _weighted_sum(weights / weights.size, problem.gradient(theta, t))
        yield State(t + 1, theta)


def states(
    algorithm: str,
    problem: StackedProblem,
    graph: nx.Graph,
    weights: Weights,
    strategy_name: str,
    *,
    laziness: float,
    lr: StepSize,
    iterations: int,
    local_steps: int = 1,
    wire: str = "full",
) -> Iterator[State]:
    """Every state of a run, the start included."""
    plan = strategy(strategy_name, weights)
    if algorithm == "allreduce":
        return allreduce(problem, weights, plan, lr, iterations)
    W = mixing_matrix(graph, plan.mixing_weights, laziness)
    if algorithm == "dsgd":
        return dsgd(problem, W, plan, lr, iterations)
    return gradient_tracking(problem, W, plan, lr, iterations, local_steps, wire)


def network_metrics(state: State, problem: StackedProblem, weights: Weights, plan: Strategy) -> dict[str, Any]:
    """What rank 0 would report: means under lambda, network average, consensus, tracking residual, and single nodes."""
    measured = problem.measure(state.theta)
    means = {name: _weighted_sum(weights / weights.size, values) for name, values in measured.items()}
    average = _weighted_sum(plan.average_weights, state.theta)
    deviation = ((state.theta - average) ** 2).sum(-1)
    metrics = {
        "means": means,
        "nodes": {"loss": measured["loss"], "from_average": np.sqrt(deviation)},
        "average": average,
        "consensus": np.sqrt(_weighted_sum(weights / weights.size, deviation)),
    }
    if state.tracker is not None and state.gradient is not None:
        error = state.tracker - _column(plan.gradient_scale, state.gradient) * state.gradient
        metrics["tracking_residual"] = np.linalg.norm(_weighted_sum(plan.average_weights, error), axis=-1)
    return metrics


def mix(W: scipy.sparse.csr_array, theta: Array) -> Array:
    """W theta: what every exchange with the neighbours amounts to; buffers are mixed in the same way."""
    return (W @ theta.reshape(len(theta), -1)).reshape(theta.shape)


def _rounded(values: Array, wire: str) -> Array:
    """To the nearest number of the narrow dtype, ties to even, within its range."""
    if wire == "float16":
        return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # bfloat16: the upper half of a float32
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def _at(lr: StepSize, iteration: int) -> float | Array:
    return lr(iteration) if callable(lr) else lr


def _column(vector: Weights, like: Array) -> Array:
    return vector.reshape(-1, *[1] * (like.ndim - 1))


def _weighted_sum(weights: Weights, values: Array) -> Array:
    return np.tensordot(weights, values, axes=1)
