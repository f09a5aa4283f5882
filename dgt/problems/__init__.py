"""What is trained: this node's data, model and loss. One file per problem, found by its name; others by `_target_`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dgt.config import Config
from dgt.errors import ConfigError
from dgt.network.weights import Weights
from dgt.problems import custom
from dgt.problems.base import Problem, ProblemContext

__all__ = [
    "Problem", "ProblemContext", "check", "class_of", "data_sizes", "dtype_of", "fetch", "from_config", "iterations_of",
    "parameter_count", "settings_of", "stacks_seeds",
]  # fmt: skip


def class_of(config: Config) -> type[Problem]:
    """The class of a config's problem, which says what suits it; `Problem` itself where a function makes it."""
    kind = config.problem.kind
    return kind if inspect.isclass(kind) and issubclass(kind, Problem) else Problem


def settings_of(config: Config) -> Any:
    """The problem's `Settings`; a dictionary of arguments where its class declares none."""
    return config.problem.values if class_of(config).Settings is None else config.problem.settings


def from_config(
    config: Config,
    weights: Weights,
    node: int,
    seeds: Sequence[int],
    device: torch.device | str,
    cache: Path,
    part: tuple[int, int] = (0, 1),
) -> Problem:
    """Node `node`'s problem; several seeds are stacked, where the problem can do that.

    weights  of all nodes, [nodes]
    cache    where data sets are kept on this host
    part     which of the node's ranks this is, of how many
    """
    assert len(seeds) == 1 or class_of(config).stacks_seeds, f"problem={config.problem.name} stacks no seeds"
    context = ProblemContext(
        node,
        weights,
        seeds[0],
        torch.device(device),
        dtype_of(config),
        seeds=tuple(seeds),
        cache=cache,
        part=part[0],
        parts=part[1],
    )
    if config.problem.target is not None:
        return custom.make(config.problem, context)
    return class_of(config)(context, **config.problem.values)  # type: ignore[call-arg]


def stacks_seeds(config: Config) -> bool:
    """Whether several seeds can be trained in one model."""
    return class_of(config).stacks_seeds


def dtype_of(config: Config) -> torch.dtype:
    """What a config says, or what suits its problem."""
    if config.dtype != "auto":
        return torch.float64 if config.dtype == "float64" else torch.float32
    return class_of(config).usual_dtype


def check(config: Config, weights: Weights) -> None:
    """Find what can be wrong with a problem before any rank starts: shards, texts, arguments."""
    if config.problem.target is not None:
        custom.check(config.problem)
    kind = class_of(config)
    kind.check_settings(settings_of(config), weights)
    if config.precision == "bf16" and not kind.uses_autograd:
        raise ConfigError(
            f"precision=bf16: problem={config.problem.name} has no forward pass to make in it; leave it out"
        )


def iterations_of(config: Config, nodes: int) -> int:
    """How many there are: those of a config, or as many as its epochs take, rounded up."""
    if config.epochs is None:
        return config.iterations
    steps = class_of(config).steps_per_epoch(settings_of(config), nodes)
    if steps is None:
        raise ConfigError(
            f"epochs={config.epochs}: problem={config.problem.name} does not say how long an epoch is; give iterations"
        )
    return math.ceil(config.epochs * steps)


def fetch(config: Config, cache: Path, say: Callable[[str], None]) -> None:
    """Make sure the data is on this host, every byte as its checksum says."""
    class_of(config).fetch_data(settings_of(config), cache, say)


def data_sizes(config: Config, nodes: int) -> list[int]:
    """Samples each node holds, for weights=data_size."""
    problem = config.problem
    sizes = class_of(config).shard_sizes(settings_of(config), nodes, config.seed)
    told = getattr(problem.kind, "data_sizes", None)  # the form for problems from outside
    if sizes is None and told is not None:
        sizes = told(nodes, **problem.values)
    if sizes is None:
        raise ConfigError(
            f"weights=data_size: {problem.target or problem.name} does not say how much data nodes have; "
            "give it a static method data_sizes(nodes, **arguments), or choose other weights"
        )
    return [int(size) for size in sizes]


def parameter_count(config: Config, weights: Weights, cache: Path) -> int:
    """Parameters of the problem's model, which is made where its class does not say; arguments as of `from_config`."""
    count = class_of(config).parameter_count(settings_of(config))
    if count is not None:
        return count
    flat: list[Any] = list(from_config(config, weights, 0, [config.seed], "cpu", cache).parameters())
    groups = [group["params"] if isinstance(group, dict) else [group] for group in flat]
    return sum(parameter.numel() for group in groups for parameter in group)
