"""Decentralized optimizers behind the interface of `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.allreduce import AllReduce
from dgt.algorithms.dsgd import DSGD
from dgt.algorithms.gradient_tracking import GradientTracking
from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer
from dgt.config import Config
from dgt.exchange.network import Network

__all__ = ["DSGD", "AllReduce", "DecentralizedOptimizer", "GradientTracking", "from_config"]


def from_config(
    config: Config,
    parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    model: torch.nn.Module,
    network: Network,
) -> DecentralizedOptimizer:
    """The optimizer a config asks for."""
    if config.algorithm.name == "gradient_tracking":
        return GradientTracking(
            parameters,
            lr=config.lr,
            network=network,
            overlap=config.overlap,
            wire=config.wire,
            local_steps=config.local_steps,
            bucket_mb=config.bucket_mb,
            model=model,
        )
    return {"dsgd": DSGD, "allreduce": AllReduce}[config.algorithm.name](parameters, lr=config.lr, network=network)
