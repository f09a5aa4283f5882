"""Every algorithm on GPUs that are not there, over a strict nccl: the numbers of the twin, no fault, and few costs.

What is run is what `dgt doctor gpu` runs on real ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import dgt
from dgt.commands.doctor.gpu import loops, runs
from dgt.commands.doctor.gpu.job import GpuJob
from dgt.exchange import transport
from dgt.processes.node import Node
from tests.fake_cuda.ledger import ledger
from tests.fake_cuda.ranks import start_on_fake_gpus

pytestmark = pytest.mark.timeout(240)


def assert_right(job: GpuJob, nodes: int) -> dict[str, Any]:
    found: dict[str, Any] = start_on_fake_gpus(job, nodes, timeout=60)[0]
    expected = dict.fromkeys([*(name for name, _ in job.configs), *job.loops], "right")
    assert {name: case["result"] for name, case in found["cases"].items()} == expected
    assert found["about"]["backend"] == "nccl"
    return found


def test_half_of_the_cases_have_the_numbers_of_the_twin_on_four_gpus(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    job = GpuJob.made(4, str(path))
    job.configs, job.loops = job.configs[::2], job.loops[1::2]
    assert len(job.configs) + len(job.loops) > 20
    found = assert_right(job, 4)
    assert json.loads(path.read_text()) == found


@pytest.mark.heavy
def test_all_cases_have_the_numbers_of_the_twin_on_four_gpus() -> None:
    job = GpuJob.made(4, "")
    assert len(job.configs) == len(runs.CASES)
    assert len(job.loops) == len(loops.LOOPS)
    assert_right(job, 4)


@pytest.mark.heavy
@pytest.mark.parametrize("only", ["topology=exponential", "buckets"])
def test_cases_on_eight_gpus(only: str) -> None:
    assert len(assert_right(GpuJob.made(8, "", only), 8)["cases"]) >= 7


@dataclass
class Costs:
    """A step of a model of many small parameters: kernels, synchronisations and bytes, by the optimizer."""

    cases: dict[str, tuple[str, dict[str, Any]]]
    graph: Any
    most_bytes: int = 2**30
    found: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def run(self, node: Node) -> dict[str, tuple[int, int, float]]:
        transport.MOST_BYTES = self.most_bytes
        network = dgt.Network(node, self.graph, [1.0] * node.size, laziness=0.35)
        for name, (algorithm, options) in self.cases.items():
            self.found[name] = self._of_a_step(network, algorithm, options, torch.randn(2, 40).to(node.device))
        return self.found

    def _of_a_step(self, network: Any, algorithm: str, options: Any, x: torch.Tensor) -> tuple[int, int, float]:
        model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(31))).to(x.device)
        size = sum(parameter.nbytes for parameter in model.parameters())
        before = ledger.living - size
        optimizer = getattr(dgt, algorithm)(model.parameters(), lr=0.01, network=network, model=model, **options)
        for _ in range(3):  # the first makes room for what is checked later
            optimizer.zero_grad()
            loss = model(x).square().mean()
            ledger.start()
            loss.backward()
            del loss
            optimizer.step()
        launches = sum(count for line, count in ledger.launches.items() if line.startswith(("algorithms", "exchange")))
        syncs, used = sum(ledger.syncs.values()), ledger.living - before
        optimizer.drain()
        optimizer.close()
        return launches, syncs, used / size


COSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient tracking": ("GradientTracking", {}),
    "buckets": ("GradientTracking", {"bucket_mb": 0.05}),
    "momentum": ("GradientTracking", {"momentum": 0.9}),
    "adamw": ("GradientTracking", {"base": torch.optim.AdamW, "base_form": "own"}),
    "narrow": ("GradientTracking", {"wire": "bfloat16"}),
    "exact diffusion": ("ExactDiffusion", {}),
    "extra": ("ExactDiffusion", {"form": "extra"}),
    "dsgd": ("DSGD", {}),
    "allreduce": ("AllReduce", {}),
}
CEILINGS = {  # kernels, synchronisations, parameter-sized buffers of a node with 2 neighbours; they may only fall
    "gradient tracking": (16, 2, 7.0),
    "buckets": (75, 2, 7.0),
    "momentum": (17, 2, 8.0),
    "adamw": (20, 2, 10.0),
    "narrow": (36, 2, 16.0),
    "exact diffusion": (16, 1, 6.0),
    "extra": (18, 1, 7.0),
    "dsgd": (9, 1, 5.0),
    "allreduce": (9, 2, 3.0),
}


def test_a_step_costs_few_kernels_synchronisations_and_bytes() -> None:
    """Once there were 206 kernels, 186 of them one per parameter, 7 synchronisations and 10 buffers."""
    found = start_on_fake_gpus(Costs(COSTS, dgt.graphs.ring(4)), 4)[0]
    small = 0.15  # of a model as small as this: heads, alignment
    above = {
        name: (cost, CEILINGS[name])
        for name, cost in found.items()
        if cost[0] > CEILINGS[name][0] or cost[1] > CEILINGS[name][1] or cost[2] > CEILINGS[name][2] + small
    }
    assert not above


@dataclass
class Turns:
    """Loops whose neighbours take turns at two inboxes."""

    names: tuple[str, ...]

    def run(self, node: Node) -> list[str]:
        transport.MOST_BYTES = 0
        return [loops.differences(loop, node) for loop in loops.LOOPS if loop.name in self.names]


def test_numbers_are_the_same_where_neighbours_take_turns() -> None:
    names = ("as always", "buckets", "buckets, AdamW together", "EXTRA, mixed buffers")
    found = start_on_fake_gpus(Turns(names), 5, timeout=20)
    assert found == dict.fromkeys(range(5), [""] * len(names))


@pytest.mark.parametrize(("most_bytes", "inboxes"), [(2**30, 4), (0, 2)])
def test_bytes_grow_with_the_degree_up_to_a_limit_only(most_bytes: int, inboxes: int) -> None:
    """5 + degree; beyond `MOST_BYTES` neighbours take turns: 7, whatever the degree."""
    one = {name: COSTS[name] for name in ("gradient tracking", "dsgd")}
    found = start_on_fake_gpus(Costs(one, dgt.graphs.complete(5), most_bytes), 5)[0]
    assert found["gradient tracking"][2] == pytest.approx(5 + inboxes, abs=0.15)
    assert found["dsgd"][2] == pytest.approx(3 + inboxes, abs=0.15)
