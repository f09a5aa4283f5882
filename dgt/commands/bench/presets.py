"""The models benchmarks run on, from all latency to all arithmetic."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dgt.models import resnet18

PRESETS = ("least_squares", "logistic", "mlp", "resnet18", "vector", "sleep", "jitter", "links")
WITHOUT_BATCH = ("least_squares", "vector", "jitter", "links")
SIZES = {"vector": 100_000, "jitter": 100_000, "links": 2_621_440}  # of presets whose size can be chosen
# of some presets, the variants that have something to tell there
MEASURED = {
    "jitter": ["compute", "ddp", "ddp_local", "shared", "exponential", "local_steps"],
    "links": ["ddp", "ddp_bfloat16", "ddp_local", "messages", "shared", "bfloat16", "local_steps"],
}
STEPS = {"jitter": 60}  # where a round of fewer would mostly measure its end, at which the slowest rank is waited for
SLEEPING_LAYERS = 4
SHORTEST, MEAN_BEYOND = 0.010, 0.020  # seconds that a step of preset jitter sleeps


@dataclass(slots=True)
class Workload:
    """A model and one forward and backward pass on fixed random data."""

    model: nn.Module
    backward: Callable[[nn.Module], None]


def workload(preset: str, batch: int, size: int, seed: int, device: torch.device) -> Workload:
    """One of `PRESETS` with fixed random data of this rank.

    least_squares  10 parameters
    logistic       650
    mlp            1.05 million
    resnet18       11.2 million
    vector         `size`, and hardly any compute
    sleep          1.05 million; compute takes `batch` milliseconds and no core, as on a GPU
    jitter         `size`; compute sleeps 10 ms and an exponential time of mean 20 ms, another on every rank and step
    links          `size`, and hardly any compute
    """
    torch.manual_seed(seed)
    if preset == "least_squares":
        return _vector(Linear(10, device), device)
    if preset in ("vector", "links"):
        return _vector(Linear(size, device), device)
    if preset == "jitter":
        return _vector(Jittery(size, seed, device), device)
    if preset == "logistic":
        return _classifier(nn.Linear(64, 10), torch.randn(batch, 64), device)
    if preset == "resnet18":
        return _classifier(resnet18(), torch.randn(batch, 3, 32, 32), device)
    if preset == "sleep":
        layers = [Sleeper(1024, 256, batch / 1000 / SLEEPING_LAYERS, device) for _ in range(SLEEPING_LAYERS)]
        return _vector(nn.Sequential(*layers), device)
    layers_ = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)]
    return _classifier(nn.Sequential(*layers_), torch.randn(batch, 512), device)


def _classifier(model: nn.Module, inputs: torch.Tensor, device: torch.device) -> Workload:
    targets = torch.randint(0, 10, (len(inputs),)).to(device)
    inputs = inputs.to(device)

    def backward(model: nn.Module) -> None:
        nn.functional.cross_entropy(model(inputs), targets).backward()

    return Workload(model.to(device), backward)


def _vector(model: nn.Module, device: torch.device) -> Workload:
    one = torch.ones(1, device=device)
    return Workload(model.to(device), lambda model: model(one).sum().backward())


class Linear(nn.Module):
    """theta -> c theta. c is data, not part of the model: no buffer, which DDP would broadcast before every forward."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(size))
        self.slope = (1e-3 * torch.randn(size)).to(device)

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        return one * torch.dot(self.theta, self.slope)


class Jittery(Linear):
    """Sleeps a random time in every forward; copies of it, one per variant, sleep the same times."""

    def __init__(self, size: int, seed: int, device: torch.device) -> None:
        super().__init__(size, device)
        self.draw = random.Random(seed)

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        time.sleep(SHORTEST + self.draw.expovariate(1 / MEAN_BEYOND))
        return super().forward(one)


class Sleeper(nn.Module):
    """A layer whose forward takes a third of its time, its backward two thirds, and neither a core.

    Its gradient is a constant, and no buffer, as in `Linear`.
    """

    def __init__(self, rows: int, columns: int, seconds: float, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))
        self.gradient = (1e-3 * torch.randn(rows, columns)).to(device)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Asleep.apply(x.requires_grad_(), self.weight, self.gradient, self.seconds)
        return result


class _Asleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        time.sleep(seconds / 3)
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        time.sleep(2 * ctx.seconds / 3)
        return upstream[0], ctx.gradient, None, None
