"""A user's own loop among wrappers, process groups and errors of others, on real ranks."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dgt
from dgt.processes.node import Node
from tests.distributed.ranks import DGT, command, run_ranks

pytestmark = pytest.mark.timeout(120)

WEIGHTS = [3.0, 1.0]  # the weighted optimum of 1 and 4 is 1.75; without weights 2.5


class Offset(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.offset - x).square().sum() / 2


def ring(node: Node) -> dgt.Network:
    return dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)


def shard(model: torch.nn.Module, node: Node) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh  # only here: it takes a second
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (node.size,)))
    return model


def fit(node: Node, model: torch.nn.Module, optimizer: Any, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([1.0, 4.0][node.rank])).backward()
        optimizer.step()


@dataclass
class Wrapped:
    """DDP averages gradients before dgt sees them, as Accelerate's prepare(model) or a Trainer wrap the model in it."""

    def run(self, node: Node) -> dict[str, str]:
        network = ring(node)
        tries = (self.before, self.after, self.given, self.by_subclass, self.fully_sharded, self.sharded_later)
        said = {attempt.__name__: self.trouble(attempt, node, network) for attempt in tries}
        model = Offset()
        DistributedDataParallel(model)  # nobody refers to it
        teacher = DistributedDataParallel(Offset())  # another model
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.2, network=network)
        fit(node, model, optimizer, 200)
        assert teacher.module is not model
        return said | {"unwrapped": f"{model.offset.item():.3f}"}

    def trouble(self, attempt: Callable[[Node, dgt.Network], None], node: Node, network: dgt.Network) -> str:
        with pytest.raises(dgt.ConfigError) as caught:
            attempt(node, network)
        return str(caught.value)

    def before(self, node: Node, network: dgt.Network) -> None:
        model = DistributedDataParallel(Offset())
        dgt.GradientTracking(model.parameters(), lr=0.2, network=network)

    def after(self, node: Node, network: dgt.Network) -> None:
        model = Offset()
        optimizer = dgt.DSGD(model.parameters(), lr=0.2, network=network)
        fit(node, model, optimizer)
        wrapped = DistributedDataParallel(model)
        fit(node, wrapped, optimizer)

    def given(self, node: Node, network: dgt.Network) -> None:
        model = Offset()
        dgt.GradientTracking(
            model.parameters(), lr=0.2, network=network, bucket_mb=1, model=DistributedDataParallel(model)
        )

    def by_subclass(self, node: Node, network: dgt.Network) -> None:
        class Mine(DistributedDataParallel):
            pass

        model = Mine(Offset())
        dgt.AllReduce(model.parameters(), lr=0.2, network=network)

    def fully_sharded(self, node: Node, network: dgt.Network) -> None:
        model = shard(torch.nn.Linear(4, 4), node)
        dgt.GradientTracking(model.parameters(), lr=0.2, network=network)

    def sharded_later(self, node: Node, network: dgt.Network) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.2, network=network)
        shard(model, node)(torch.ones(4)).sum().backward()
        optimizer.step()


def test_a_model_wrapped_in_ddp_or_fsdp_is_refused() -> None:
    """It converged to 2.5, as if all nodes counted the same."""
    for said in run_ranks(Wrapped(), 2).values():
        assert said.pop("unwrapped") == "1.750"
        names = {
            attempt: words.partition("the model is wrapped in ")[2].split(",")[0] for attempt, words in said.items()
        }
        ddp = "DistributedDataParallel"
        assert names == {
            "before": ddp, "after": ddp, "given": ddp, "by_subclass": "Mine",
            "fully_sharded": "FSDP", "sharded_later": "FSDP",
        }  # fmt: skip
        assert all("dgt.integrations has an Accelerator" in words for words in said.values())


@dataclass
class Within:
    """The ranks of the tests have joined already: that group is somebody else's to `dgt.join()`."""

    def run(self, node: Node) -> dict[str, Any]:
        os.environ.pop("RANK")  # what the launcher says does not count
        found: dict[str, Any] = {"rank": [self.train(), self.retry(node)]}
        before = threads()
        found["rank"] += [self.train(), self.train()]
        found["threads"] = threads() - before
        found["group"] = int(node.all_reduce(torch.ones(1)).item())
        found["default"] = dist.get_world_size()
        return found

    def train(self) -> tuple[int, int, float]:
        with dgt.join(device="cpu") as inner:
            model = Offset()
            fit(inner, model, dgt.GradientTracking(model.parameters(), lr=0.2, network=ring(inner)), 200)
            return inner.rank, inner.placement.local_size, round(model.offset.item(), 3)

    def retry(self, node: Node) -> tuple[int, int, float]:
        """Rank 1 fails at its third step, so rank 0 misses it; both try again."""
        with pytest.raises(ValueError if node.rank else dgt.PeerError):
            self.fail()
        return self.train()

    def fail(self) -> None:
        with dgt.join(device="cpu", timeout=20) as inner:
            model = Offset()
            optimizer = dgt.GradientTracking(model.parameters(), lr=0.2, network=ring(inner))
            fit(inner, model, optimizer, 2)
            if inner.rank:
                raise ValueError("a mistake of the user's")
            fit(inner, model, optimizer)


def threads() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


def test_join_uses_a_group_that_is_there_and_works_again_after_an_error() -> None:
    for rank, found in run_ranks(Within(), 2).items():
        assert found["rank"] == [(rank, 2, 1.75)] * 4
        assert (found["group"], found["default"], found["threads"]) == (2, 2, 0)


@dataclass
class NewBuffers:
    """`model.to()` puts other tensors in place of a model's buffers."""

    def run(self, node: Node) -> float:
        model = torch.nn.BatchNorm1d(1)
        buffers = dgt.MixedBuffers(model, dgt.Network(node, dgt.graphs.ring(node.size), [1.0, 1.0]))
        model.double().float()
        model.running_mean.fill_(node.rank)
        for _ in range(60):
            buffers.mix()
        return round(model.running_mean.item(), 3)


def test_buffers_are_mixed_wherever_they_are() -> None:
    assert set(run_ranks(NewBuffers(), 2).values()) == {0.5}


PROBLEM = """
import itertools, torch, dgt

class Shuffled(dgt.Problem):
    def __init__(self, context):
        self.model = torch.nn.Linear(1, 1).to(context.dtype)
        loader = torch.utils.data.DataLoader(torch.arange(8.0).view(8, 1).to(context.dtype), batch_size=2, shuffle=True)
        self.batches = itertools.cycle(loader)

    def backward(self, iteration):
        self.model(next(self.batches)).square().mean().backward()
"""


def test_a_shuffled_loader_that_no_checkpoint_holds_is_said_once(tmp_path: Path) -> None:
    """Such a run resumed with other batches, though a resumed run is promised to be the same bit by bit."""
    (tmp_path / "mine.py").write_text(PROBLEM)
    chosen = ["problem=custom", "problem._target_=mine.Shuffled", "nodes=2", "weights=[1,3]", "iterations=2"]
    process = command([*DGT, "train", *chosen], tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("`batches` is a DataLoader whose place no checkpoint holds") == 1


SCRIPT = """
import torch, dgt
with dgt.join() as node:
    loader = torch.utils.data.DataLoader(range(4), num_workers=1, collate_fn=lambda batch: batch)
    if node.is_main:
        print(list(loader))
"""


def test_dgt_run_starts_workers_as_torchrun_does(tmp_path: Path) -> None:
    """Workers of a DataLoader were started like the ranks: each ran the script once more, and failed to join."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    process = command([*DGT, "run", "-n", "2", "mine.py"], tmp_path)
    assert (process.returncode, process.stdout) == (0, "[[0], [1], [2], [3]]\n"), process.stderr
