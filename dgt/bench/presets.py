"""The models benchmarks run on, from all latency to all arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from dgt.models import resnet18


@dataclass(slots=True)
class Workload:
    """A model and one forward and backward pass on fixed random data."""

    model: nn.Module
    backward: Callable[[nn.Module], None]


def workload(preset: str, batch: int, seed: int, device: torch.device) -> Workload:
    """`logistic` (650 parameters), `mlp` (1.05 million), `resnet18` (11.2 million), `sleep` (mlp-sized, no compute)."""
    torch.manual_seed(seed)
    if preset == "logistic":
        return _classifier(nn.Linear(64, 10), torch.randn(batch, 64), device)
    if preset == "resnet18":
        return _classifier(resnet18(), torch.randn(batch, 3, 32, 32), device)
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)]
    mlp = nn.Sequential(*layers)
    if preset == "mlp":
        return _classifier(mlp, torch.randn(batch, 512), device)
    return _sleeper(mlp, batch / 1000)


def _classifier(model: nn.Module, inputs: torch.Tensor, device: torch.device) -> Workload:
    targets = torch.randint(0, 10, (len(inputs),)).to(device)
    inputs = inputs.to(device)

    def backward(model: nn.Module) -> None:
        nn.functional.cross_entropy(model(inputs), targets).backward()

    return Workload(model.to(device), backward)


def _sleeper(model: nn.Module, seconds: float) -> Workload:
    """Compute that takes time and no core, as on a GPU: gradients appear after a sleep."""
    gradients = [1e-3 * torch.randn_like(parameter) for parameter in model.parameters()]

    def backward(model: nn.Module) -> None:
        time.sleep(seconds)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient

    return Workload(model, backward)
