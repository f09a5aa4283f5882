"""What is trained: this node's data, model and loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgt.config import Config
from dgt.network.weights import Weights
from dgt.problems.base import Problem
from dgt.problems.least_squares import LeastSquaresProblem

__all__ = ["Problem", "data_sizes", "from_config"]


def from_config(
    config: Config, weights: Weights, node: int, seeds: Sequence[int], device: torch.device | str
) -> Problem:
    """Node `node`'s problem, stacked for these seeds."""
    dtype = getattr(torch, config.dtype)
    return LeastSquaresProblem(config.problem, weights, node, seeds, dtype, device)


def data_sizes(config: Config, nodes: int) -> list[int]:
    """Samples each node holds, for weights=data_size. Least squares: the rows of A_i, which is square."""
    return [config.problem.dimension] * nodes
