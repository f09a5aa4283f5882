"""A model that FSDP2 divides among the ranks of a node: the same run as where dgt does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import dgt
from dgt.errors import ConfigError
from dgt.processes.node import Node
from tests.distributed.test_groups_in_own_loops import batch, net
from tests.distributed.test_ranks_per_node import run_grouped

pytestmark = [pytest.mark.timeout(180), pytest.mark.heavy]

STEPS = 8
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (dgt.GradientTracking, {"momentum": 0.9}),
    (dgt.GradientTracking, {"base": torch.optim.AdamW, "weight_decay": 0.1}),
    (dgt.ExactDiffusion, {"local_steps": 2}),
    (dgt.AllReduce, {}),
]


@dataclass
class Both:
    """Of every algorithm a model that dgt divides, and a copy that FSDP divides."""

    folder: str

    def run(self, node: Node) -> list[dict[str, Any]]:
        self._refused(node)
        return [self._trained(node, *kind, f"{self.folder}/{number}.pt") for number, kind in enumerate(KINDS)]

    def _trained(self, node: Node, algorithm: Any, options: dict[str, Any], file: str) -> dict[str, Any]:
        from torch.distributed.fsdp import fully_shard

        thetas, averages, states = [], [], []
        for divides in (False, True):
            network = dgt.Network(node, nx.path_graph(node.size), [1.0, 2.0], laziness=algorithm.usual_laziness)
            model = net()
            if divides:
                fully_shard(model[0], mesh=node.local.mesh())
                fully_shard(model, mesh=node.local.mesh())
            optimizer = algorithm(model.parameters(), lr=0.02, network=network, **options)
            state: Any = None
            for step in range(STEPS):
                if step == STEPS // 2:
                    state = optimizer.state_dict()
                elif step == STEPS - 2 and divides:  # back to the middle, and the same steps again
                    optimizer.load_state_dict(state)
                    for again in range(STEPS // 2, STEPS - 2):
                        self._step(model, optimizer, node, again)
                self._step(model, optimizer, node, step)
            optimizer.drain()
            network.save_average(file, model)
            averages.append(torch.load(file, weights_only=True) if node.is_main else {})
            thetas.append([_whole(parameter) for parameter in model.parameters()])
            states.append(network.bytes_sent)
        return {"theta": thetas, "average": averages, "bytes": states}

    def _refused(self, node: Node) -> None:
        """A model that is divided among the ranks of several nodes."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model, network = net(), dgt.Network(node, nx.path_graph(node.size), [1.0] * node.size)
        fully_shard(model, mesh=init_device_mesh("cpu", (node.world.size,)))
        with pytest.raises(ConfigError, match=r"divided among the ranks \[0, 1, 2, 3\].*mesh=node.local.mesh"):
            dgt.GradientTracking(model.parameters(), lr=0.1, network=network)

    def _step(self, model: Any, optimizer: Any, node: Node, step: int) -> None:
        x, y = batch(node.world.rank, step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.clip_grad_norm_(0.5)
        optimizer.step()


def _whole(parameter: Any) -> torch.Tensor:
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach().clone()


def test_fsdp_within_nodes_trains_the_same_model(tmp_path: Path) -> None:
    for rank, kinds in run_grouped(Both(str(tmp_path)), 2, 2).items():
        for found in kinds:
            for ours, theirs in zip(*found["theta"], strict=True):
                torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-12)
            for name in found["average"][0] if rank == 0 else ():
                torch.testing.assert_close(found["average"][1][name], found["average"][0][name], rtol=0, atol=1e-12)
