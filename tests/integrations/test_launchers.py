"""Accelerate reads torchrun's variables, without a GPU only if it is told cpu=True."""

from __future__ import annotations

import os

import pytest
import torch

import dgt
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(120)


class Unseen:
    def run(self, node: Node) -> str:
        from dgt.integrations.accelerate import NodeAccelerator

        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        optimizer = dgt.GradientTracking(torch.nn.Linear(1, 1).parameters(), lr=0.1, network=network)
        with pytest.raises(dgt.ConfigError) as caught:
            NodeAccelerator(cpu=True).prepare(optimizer)
        return str(caught.value)


def test_ranks_that_accelerate_does_not_see_are_refused() -> None:
    pytest.importorskip("accelerate")
    for words in run_ranks(Unseen(), 2).values():
        assert words.startswith("NodeAccelerator: Accelerate sees 1 rank of 2")
        assert "cpu=True" in words
