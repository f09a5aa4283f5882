"""What is trained: this node's data, model and loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dgt.config import Cifar10Config, Config, LeastSquaresConfig, TextConfig
from dgt.data import cifar10
from dgt.data.partition import shard_sizes
from dgt.errors import ConfigError
from dgt.network.weights import Weights
from dgt.problems import custom, images, text
from dgt.problems.base import Problem, ProblemContext
from dgt.problems.least_squares import LeastSquaresProblem

__all__ = ["Problem", "ProblemContext", "check", "data_sizes", "dtype_of", "fetch", "from_config", "stacks_seeds"]


def from_config(
    config: Config, weights: Weights, node: int, seeds: Sequence[int], device: torch.device | str, cache: Path
) -> Problem:
    """Node `node`'s problem; several seeds are stacked, where the problem can do that."""
    context = ProblemContext(node, weights, seeds[0], torch.device(device), dtype_of(config))
    problem = config.problem
    if isinstance(problem, LeastSquaresConfig):
        return LeastSquaresProblem(problem, weights, node, seeds, context.dtype, device)
    assert len(seeds) == 1, "only least squares stacks seeds"
    if isinstance(problem, Cifar10Config):
        return images.ImageClassification(problem, context, _root(problem, cache))
    if isinstance(problem, TextConfig):
        return text.CharacterModel(problem, context)
    return custom.make(problem, context)


def stacks_seeds(config: Config) -> bool:
    """Whether several seeds can be trained in one model."""
    return isinstance(config.problem, LeastSquaresConfig)


def dtype_of(config: Config) -> torch.dtype:
    """Least squares is compared with a closed form, to the last digit; networks are trained in single precision."""
    if config.dtype != "auto":
        return torch.float64 if config.dtype == "float64" else torch.float32
    return torch.float64 if isinstance(config.problem, LeastSquaresConfig) else torch.float32


def check(config: Config, weights: Weights) -> None:
    """Find what can be wrong with a problem before any rank starts: shards, texts, arguments."""
    problem = config.problem
    if isinstance(problem, Cifar10Config):
        shard_sizes(cifar10.TRAIN_SAMPLES, weights, problem.sizes)
    elif isinstance(problem, TextConfig):
        text.check_shards(problem, weights)
    elif not isinstance(problem, LeastSquaresConfig):
        custom.check(problem)


def fetch(config: Config, cache: Path, say: Callable[[str], None]) -> None:
    """Make sure the data is on this host, every byte as its checksum says."""
    problem = config.problem
    if isinstance(problem, Cifar10Config):
        root = _root(problem, cache)
        cifar10.ensure(root, say=say)
        cifar10.verify(cifar10.load(root), root)


def data_sizes(config: Config, nodes: int) -> list[int]:
    """Samples each node holds, for weights=data_size. Least squares: the rows of A_i, which is square."""
    problem = config.problem
    if isinstance(problem, LeastSquaresConfig):
        return [problem.dimension] * nodes
    if isinstance(problem, Cifar10Config):
        return images.data_sizes(problem, nodes, config.seed)
    if isinstance(problem, TextConfig):
        return text.data_sizes(problem, nodes)
    sizes = getattr(custom.resolve(problem.target), "data_sizes", None)
    if sizes is None:
        raise ConfigError(
            f"weights=data_size: {problem.target} does not say how much data nodes have; "
            "give it a static method data_sizes(nodes, **arguments), or choose other weights"
        )
    return [int(size) for size in sizes(nodes, **problem.arguments)]


def _root(problem: Cifar10Config, cache: Path) -> Path:
    return Path(problem.root) if problem.root is not None else cache
