"""Decentralized optimizers behind the interface of `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.allreduce import AllReduce
from dgt.algorithms.base import DecentralizedOptimizer
from dgt.algorithms.dsgd import DSGD
from dgt.algorithms.gradient_tracking import GradientTracking
from dgt.exchange.network import Network

__all__ = ["DSGD", "AllReduce", "DecentralizedOptimizer", "GradientTracking", "from_name"]


def from_name(
    name: str,
    parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    lr: float,
    network: Network,
    overlap: bool = True,
) -> DecentralizedOptimizer:
    """The optimizer a config asks for."""
    if name == "gradient_tracking":
        return GradientTracking(parameters, lr=lr, network=network, overlap=overlap)
    return {"dsgd": DSGD, "allreduce": AllReduce}[name](parameters, lr=lr, network=network)
