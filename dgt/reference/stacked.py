"""What the twins share: stacked arrays [nodes, parameters], the state after an update, and mixing with the whole W."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy
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
    """After `iteration` updates: theta_t, and of the update before tracker and gradient, or correction, if any."""

    iteration: int
    theta: Array
    tracker: Array | None = None
    gradient: Array | None = None
    correction: Array | None = None
    """What sums to zero under pi by itself."""


def mix(W: scipy.sparse.csr_array, theta: Array) -> Array:
    """W theta: what every exchange with the neighbours amounts to; buffers are mixed in the same way."""
    return (W @ theta.reshape(len(theta), -1)).reshape(theta.shape)


def network_metrics(state: State, problem: StackedProblem, weights: Weights, plan: Strategy) -> dict[str, Any]:
    """What rank 0 would report: means under lambda, network average, consensus, tracking residual, and single nodes."""
    measured = problem.measure(state.theta)
    means = {name: weighted_sum(weights / weights.size, values) for name, values in measured.items()}
    average = weighted_sum(plan.average_weights, state.theta)
    deviation = ((state.theta - average) ** 2).sum(-1)
    metrics = {
        "means": means,
        "nodes": {"loss": measured["loss"], "from_average": np.sqrt(deviation)},
        "average": average,
        "consensus": np.sqrt(weighted_sum(weights / weights.size, deviation)),
    }
    error = state.correction
    if state.tracker is not None and state.gradient is not None:
        error = state.tracker - column(plan.gradient_scale, state.gradient) * state.gradient
    if error is not None:
        metrics["tracking_residual"] = np.linalg.norm(weighted_sum(plan.average_weights, error), axis=-1)
    return metrics


def at(lr: StepSize, iteration: int) -> float | Array:
    return lr(iteration) if callable(lr) else lr


def column(vector: npt.NDArray[Any], like: Array) -> npt.NDArray[Any]:
    return vector.reshape(-1, *[1] * (like.ndim - 1))


def weighted_sum(weights: Weights, values: Array) -> Array:
    return np.tensordot(weights, values, axes=1)
