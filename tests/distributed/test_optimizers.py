"""Optimizers on real ranks: nodes that want 0, 1 and 2, with weights 1, 1 and 10, meet at the weighted mean 1.75."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import dgt
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(180)

STEPS = 1200
RIGHT: list[tuple[float, dict[str, Any]]] = [
    (0.1, {}),
    (0.02, {"momentum": 0.9}),
    (0.02, {"momentum": 0.9, "nesterov": True, "local_steps": 2}),
    (0.05, {"base": "adam"}),
    (0.05, {"base": "adam", "base_options": {"amsgrad": True}, "base_form": "own"}),
    (0.05, {"base": torch.optim.AdamW, "base_options": {"weight_decay": 0.0}, "wire": "bfloat16"}),
    (0.05, {"base": "adam", "base_form": "together"}),
    (0.05, {"base": "adam", "base_form": "predicted"}),
    (0.05, {"base": "nadam"}),
    (0.02, {"base": "rmsprop"}),
    (0.5, {"base": "adagrad"}),
]


@dataclass
class Wishes:
    """Every optimizer in turn, lr falling to zero; returns where each node ends."""

    def run(self, node: Node) -> list[list[float]]:
        ends = []
        for strategy in ("I", "II"):
            for lr, options in RIGHT:
                network = dgt.Network(node, dgt.graphs.star(node.size), [1.0, 1.0, 10.0], strategy)
                theta = torch.nn.Parameter(torch.tensor([float(node.rank)], dtype=torch.float64))
                optimizer = dgt.GradientTracking([theta], lr, network, **options)
                scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-4)
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    (theta - node.rank).square().sum().div(2).backward()
                    optimizer.step()
                    scheduler.step()
                ends.append([theta.item()])
        return ends


def test_every_optimizer_on_the_tracker_ends_at_the_weighted_mean() -> None:
    found = run_ranks(Wishes(), 3)
    for node, ends in found.items():
        for number, (theta,) in enumerate(ends):
            assert theta == pytest.approx(1.75, abs=1e-3), (node, RIGHT[number % len(RIGHT)])
