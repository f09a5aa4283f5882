"""Clipping, and the lr and momentum that parameter groups have at an iteration."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dgt.config.compose import compose
from dgt.reference.clipped import Clipped
from dgt.training import schedules
from dgt.training.stepping import Stepping, clip_each


def test_every_copy_is_clipped_as_torch_does_it() -> None:
    torch.manual_seed(0)
    whole = torch.randn(3, 10) * torch.tensor([[0.01], [1.0], [100.0]])
    parts = [whole.reshape(-1)[:12].clone().view(3, 4), whole.reshape(-1)[12:].clone()]
    clip_each([parts[0], None, parts[1]], 2.0, copies=3)
    for copy, row in zip(torch.cat([part.reshape(-1) for part in parts]).view(3, 10), whole, strict=True):
        alone = torch.nn.Parameter(torch.zeros(10))
        alone.grad = row.clone()
        torch.nn.utils.clip_grad_norm_([alone], 2.0)
        assert torch.allclose(copy, alone.grad)


def test_the_twins_gradient_is_clipped_alike() -> None:
    gradient = np.random.default_rng(0).normal(size=(4, 2, 5)) * 10.0 ** np.arange(-2, 2)[:, None, None]
    problem: Any = SimpleNamespace(start=gradient, gradient=lambda theta, t: gradient)
    ours = torch.from_numpy(gradient.copy())
    clip_each([ours], 1.5, copies=8)
    assert Clipped(problem, 1.5).gradient(gradient, 0) == pytest.approx(ours.numpy(), rel=1e-12)
    assert Clipped(problem, None).gradient(gradient, 0) is gradient


def stepping(groups: list[dict[str, Any]], *overrides: str) -> Stepping:
    config = compose(["iterations=40", *overrides])
    optimizer: Any = SimpleNamespace(param_groups=groups, flat=SimpleNamespace(parameters=[]))
    return Stepping(config, SimpleNamespace(copies=1), optimizer, torch.device("cpu"))  # type: ignore[arg-type]


def test_groups_keep_the_ratio_of_their_lrs() -> None:
    groups = [{"lr": 0.2}, {"lr": 0.05}]
    half = stepping(groups, "schedule=cosine")
    half.set_lr(20)
    assert [group["lr"] for group in groups] == [pytest.approx(0.1), pytest.approx(0.025)]
    half.set_lr(0)
    assert [group["lr"] for group in groups] == [0.2, 0.05]


def test_a_constant_schedule_leaves_the_groups_alone() -> None:
    groups = [{"lr": 0.2, "momentum": 0.9}]
    stepping(groups).set_lr(7)
    assert groups == [{"lr": 0.2, "momentum": 0.9}]


def test_one_cycle_moves_momentum_where_there_is_any() -> None:
    groups = [{"lr": 1.0, "momentum": 0.9}, {"lr": 1.0, "momentum": 0.0}, {"lr": 1.0, "betas": (0.9, 0.999)}]
    stepping(groups, "schedule=onecycle").set_lr(0)
    assert [groups[0]["momentum"], groups[1]["momentum"], groups[2]["betas"]] == [0.95, 0.0, (0.95, 0.999)]
    stepping(groups, "schedule=onecycle", "schedule.peak_at=0.5").set_lr(19)
    assert groups[0]["momentum"] == pytest.approx(0.85)


def test_torch_moves_the_first_of_betas_alike() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 40)
    found = schedules.of(compose(["iterations=40", "schedule=onecycle"]))
    assert math.isclose(optimizer.param_groups[0]["betas"][0], found.momentum(0) or 0)
