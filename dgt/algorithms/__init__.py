"""Decentralized optimizers behind the interface of `torch.optim.Optimizer`: one module per algorithm.

A module `x.py` here with `ALGORITHM = TheClass` is the choice `algorithm=x`; `machinery/` is what they share.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.allreduce import AllReduce
from dgt.algorithms.dsgd import DSGD
from dgt.algorithms.gradient_tracking import GradientTracking
from dgt.algorithms.machinery import DecentralizedOptimizer, Message, NeighbourOptimizer, Views
from dgt.config import Config
from dgt.config.checks import check_choice
from dgt.exchange.network import Network

__all__ = [
    "DSGD", "AllReduce", "DecentralizedOptimizer", "GradientTracking", "Message", "NeighbourOptimizer", "Views",
    "chosen", "from_config", "named", "names", "settings_of",
]  # fmt: skip


def names() -> list[str]:
    """The algorithms that can be chosen by name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def named(name: str) -> type[DecentralizedOptimizer]:
    """The class that `algorithm=name` chooses."""
    check_choice("algorithm", name, names())
    found: type[DecentralizedOptimizer] = importlib.import_module(f"{__name__}.{name}").ALGORITHM
    return found


def chosen(config: Config) -> type[DecentralizedOptimizer]:
    """The class of a config's algorithm."""
    return named(config.algorithm.name)


def settings_of(config: Config) -> dict[str, Any]:
    """A config's hyperparameters of the algorithm, by the names in its `Settings`."""
    own = dataclasses.fields(chosen(config).Settings)
    return {field.name: getattr(config.algorithm, field.name) for field in own}


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
    return chosen(config)(
        parameters,
        lr=config.lr,
        network=network,
        overlap=config.overlap,
        wire=config.wire,
        local_steps=config.local_steps,
        bucket_mb=config.bucket_mb,
        model=model,
        **settings_of(config),
    )
