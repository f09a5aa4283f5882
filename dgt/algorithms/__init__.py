"""Decentralized optimizers behind the interface of `torch.optim.Optimizer`: one module per algorithm.

A module `x.py` here with `ALGORITHM = TheClass` is the choice `algorithm=x` (`config/registry.py` finds it);
`machinery/` is what they share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.allreduce import AllReduce
from dgt.algorithms.dsgd import DSGD
from dgt.algorithms.exact_diffusion import ExactDiffusion
from dgt.algorithms.gradient_tracking import GradientTracking
from dgt.algorithms.machinery import DecentralizedOptimizer, Message, NeighbourOptimizer, Views
from dgt.config import Config
from dgt.errors import ConfigError
from dgt.exchange.network import Network

__all__ = [
    "DSGD", "AllReduce", "DecentralizedOptimizer", "ExactDiffusion", "GradientTracking", "Message",
    "NeighbourOptimizer", "Views", "from_config",
]  # fmt: skip


def from_config(
    config: Config,
    parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    model: torch.nn.Module,
    network: Network,
) -> DecentralizedOptimizer:
    """The optimizer a config asks for.

    parameters  what is trained, or parameter groups
    model       whose parameters they are, for the hooks of `bucket_mb`
    """
    kind: type[DecentralizedOptimizer] = config.algorithm.kind
    given: list[Any] = list(parameters)
    options = config.algorithm.values.get("base_options") or {}
    if "weight_decay" in options and any(isinstance(group, dict) and "weight_decay" in group for group in given):
        raise ConfigError(
            f"algorithm.base_options: problem={config.problem.name} says which weights decay, and by how much: give "
            f"problem.weight_decay={options['weight_decay']} in place of weight_decay there"
        )
    return kind(
        given,
        lr=config.lr,
        network=network,
        overlap=config.overlap,
        wire=config.wire,
        local_steps=config.local_steps,
        bucket_mb=config.bucket_mb,
        model=model,
        **dataclasses.asdict(config.algorithm.settings),
    )
