"""The interface between a problem and the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch


class Problem(Protocol):
    """One node's share of the global loss F = 1/n sum_i lambda_i F_i.

    `copies` independent problems may be stacked in one model (the same network, several seeds): every metric
    then has one value per copy, and the flat parameters split evenly into the copies.
    """

    model: torch.nn.Module
    copies: int

    def backward(self, iteration: int) -> None:
        """Leave the stochastic gradient of F_i at the model's parameters in their `.grad`."""
        ...

    def measure(self) -> dict[str, np.ndarray]:
        """This node's quantities whose lambda-weighted mean over the network is wanted, each [copies, ...]."""
        ...

    def summarise(self, means: Mapping[str, np.ndarray], average: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics [copies] from the network's means and its average parameters [copies, parameters]."""
        ...
