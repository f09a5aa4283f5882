"""What a step costs besides arithmetic: host synchronisations, as torch's own debug mode sees them, and bytes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

import dgt
from dgt.processes.node import Node

WIDTH, LAYERS = 512, 4
STEPS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one step on this rank.

    synchronisations   calls in which the host waited for the GPU, by line
    buffers            bytes of the optimizer and gradients, in multiples of the parameters
    """

    what: str
    synchronisations: dict[str, int]
    buffers: float


CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gradient tracking", {}),
    ("gradient tracking, buckets", {"bucket_mb": 1.0}),
    ("gradient tracking, bfloat16", {"wire": "bfloat16"}),
)


def costs(node: Node) -> list[Cost]:
    """Of a few optimizers, on the exponential graph."""
    return [_cost(node, what, options) for what, options in CASES]


def _cost(node: Node, what: str, options: dict[str, Any]) -> Cost:
    network = dgt.Network(node, dgt.graphs.exponential(node.size), [1.0] * node.size)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    before = torch.cuda.memory_allocated(node.device)
    model = torch.nn.Sequential(*layers).to(node.device)
    size = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.01, network=network, model=model, **options)
    x = torch.ones(2, WIDTH, device=node.device)
    found: dict[str, int] = {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
        found = {}
        for each in caught:
            place = f"{each.filename.rpartition('dgt/')[2]}:{each.lineno}"
            found[place] = found.get(place, 0) + 1
    torch.cuda.synchronize(node.device)
    used = torch.cuda.memory_allocated(node.device) - before
    optimizer.close()
    return Cost(what, found, round(used / size, 2))
