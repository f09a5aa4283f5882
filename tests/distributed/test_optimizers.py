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

STEPS = 500
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


@dataclass
class OtherOrders:
    """Rank 0 alone reads the parameters, and each rank leaves out layers of its own choice."""

    form: str

    def run(self, node: Node) -> list[float]:
        torch.manual_seed(0)
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0, 2.0, 3.0])
        layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
        optimizer = dgt.GradientTracking(
            layers.parameters(), 0.01, network, base="adamw", base_form=self.form, bucket_mb=1e-5, model=layers
        )
        for step in range(12):
            x = torch.ones(2, 4)
            optimizer.zero_grad()
            for number, layer in enumerate(layers):
                x = x if (number + step + node.rank) % 3 == 0 else layer(x)
            x.square().sum().backward()
            optimizer.step()
            if node.is_main and step % 2:
                layers.state_dict()
        optimizer.drain()
        return torch.nn.utils.parameters_to_vector(layers.parameters()).tolist()


@pytest.mark.parametrize("form", ["mixed", "together", "predicted"])
def test_ranks_may_ask_for_buckets_in_any_order(form: str) -> None:
    """In form mixed z leaves when y is there: two ranks that waited for different buckets waited for each other."""
    found = run_ranks(OtherOrders(form), 3)
    assert all(abs(value) < 10 for values in found.values() for value in values)
