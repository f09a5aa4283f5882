"""Between hosts a long vector travels in parts: the numbers are those of one part, bit by bit, and states fit both."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dgt
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = [pytest.mark.timeout(240), pytest.mark.heavy]

SIZES = [700_001, 3, 600_000]  # three parts, cut within parameters
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "tracking": (dgt.GradientTracking, {"momentum": 0.9}),
    "AdamW": (dgt.GradientTracking, {"base": torch.optim.AdamW}),
    "together": (dgt.GradientTracking, {"base": torch.optim.AdamW, "base_form": "together"}),
    "one partner": (dgt.GradientTracking, {}),
    "int8": (dgt.GradientTracking, {"wire": "int8"}),
    "local steps": (dgt.GradientTracking, {"local_steps": 2}),
    "exact diffusion": (dgt.ExactDiffusion, {}),
    "EXTRA": (dgt.ExactDiffusion, {"form": "extra"}),
    "int4": (dgt.ExactDiffusion, {"wire": "int4"}),
    "dsgd": (dgt.DSGD, {}),
}
STEPS = 5


class Far(dgt.Network):
    """As if ranks were on several hosts."""

    spans_hosts = True


class Loop:
    """A model and its optimizer on one transport; the gradient pulls every node elsewhere."""

    def __init__(self, node: Node, case: str, transport: str) -> None:
        algorithm, settings = CASES[case]
        weights = [1.0 + k for k in range(node.size)]
        graph = dgt.schedules.one_peer(weights) if case == "one partner" else dgt.graphs.ring(node.size)
        kind = Far if transport == "messages" else dgt.Network
        network = kind(node, graph, weights, laziness=0.35, transport=transport)
        draw = torch.Generator().manual_seed(node.rank)
        self.targets = [torch.randn(size, generator=draw) for size in SIZES]
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
        self.optimizer = algorithm(self.parameters, lr=0.05, network=network, **settings)

    def steps(self, number: int) -> None:
        for _ in range(number):
            for parameter, target in zip(self.parameters, self.targets, strict=True):
                parameter.grad = parameter.detach() - target
            self.optimizer.step()

    def load(self, other: Loop) -> None:
        for own, theirs in zip(self.parameters, other.parameters, strict=True):
            own.data.copy_(theirs.detach())
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))

    @property
    def values(self) -> torch.Tensor:
        self.optimizer.drain()
        return torch.cat([parameter.detach() for parameter in self.parameters])


class BothWays:
    """Per case: how many parts; whether memory and messages agree after all steps; whether each goes on with the
    other's state as the other one does."""

    def run(self, node: Node) -> dict[str, tuple[int, bool, bool]]:
        return {case: self._of(node, case) for case in CASES}

    def _of(self, node: Node, case: str) -> tuple[int, bool, bool]:
        near, far = Loop(node, case, "auto"), Loop(node, case, "messages")
        for loop in (near, far):
            loop.steps(STEPS)
        same = torch.equal(near.values, far.values)
        resumed = [Loop(node, case, "messages"), Loop(node, case, "auto")]
        for loop, before in zip(resumed, (near, far), strict=True):
            loop.load(before)
        for loop in (near, far, *resumed):
            loop.steps(STEPS)
        goes_on = all(torch.equal(loop.values, near.values) for loop in (far, *resumed))
        parts = len(far.optimizer.buckets)
        for loop in (near, far, *resumed):
            loop.optimizer.close()
        return parts, same, goes_on


def test_parts_give_the_numbers_of_the_whole() -> None:
    for found in run_ranks(BothWays(), 4).values():
        assert found == dict.fromkeys(CASES, (3, True, True))
