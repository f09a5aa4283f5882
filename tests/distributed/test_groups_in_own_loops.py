"""`dgt.join(ranks_per_node=k)` in a user's own loop: what nodes and their ranks know, data, scalers, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import pytest
import torch

import dgt
from dgt.errors import LaunchError
from dgt.processes import environment, join
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks
from tests.distributed.test_ranks_per_node import run_grouped

pytestmark = pytest.mark.timeout(120)


def net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 33), torch.nn.Tanh(), torch.nn.Linear(33, 3)).double()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, generator=draw, dtype=torch.float64)
    return x, x[:, :3].square() + rank


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


DESCENTS: list[tuple[Any, dict[str, Any], Any, dict[str, Any]]] = [
    (dgt.GradientTracking, {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (dgt.GradientTracking, {"base": torch.optim.AdamW}, torch.optim.AdamW, {}),
    (dgt.AllReduce, {"momentum": 0.9, "nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (dgt.DSGD, {"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
]


@dataclass
class BesideDDP:
    """One node: every rank trains a model with dgt, and a copy of it with DDP and torch's optimizer."""

    def run(self, node: Node) -> list[float]:
        return [self._apart(node, *descent) for descent in DESCENTS]

    def _apart(self, node: Node, algorithm: Any, options: dict[str, Any], kind: Any, of_torch: dict[str, Any]) -> float:
        model, other = net(node.local.rank), net()  # the node's first rank says where it begins
        network = dgt.Network(node, nx.empty_graph(1), [1.0])
        ours = algorithm(model.parameters(), lr=0.02, network=network, **options)
        wrapped = torch.nn.parallel.DistributedDataParallel(other)
        theirs = kind(other.parameters(), lr=0.02, **of_torch)
        for step in range(12):
            x, y = batch(node.local.rank, step)
            for each, optimizer in ((model, ours), (wrapped, theirs)):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(each(x), y).backward()
            if step > 6:  # of the node's gradient, which is what DDP's ranks see
                a, b = ours.clip_grad_norm_(0.3), torch.nn.utils.clip_grad_norm_(other.parameters(), 0.3)
                torch.testing.assert_close(a, b)
            ours.step()
            theirs.step()
        return float((flat(model) - flat(other)).abs().max())


@pytest.mark.heavy
def test_one_node_of_two_ranks_is_ddp() -> None:
    for apart in run_grouped(BesideDDP(), 1, 2).values():
        assert max(apart) < 1e-12


@dataclass
class Everything:
    folder: str

    def run(self, node: Node) -> dict[str, Any]:
        network = dgt.Network(node, nx.path_graph(node.size), [1.0, 2.0])
        data = torch.utils.data.TensorDataset(torch.arange(30.0))
        mine = dgt.shard(data, network)
        found = {
            "who": (node.rank, node.size, node.local.rank, node.local.size, node.world.rank, node.world.size),
            "main": node.is_main,
            "gathered": node.all_gather(node.world.rank).tolist(),
            "local": node.local.all_gather(node.world.rank).tolist(),
            "sums": [int(each.all_reduce(1)) for each in (node, node.local, node.world)],
            "mine": sorted(int(sample) for (sample,) in mine),
            "weights": dgt.data_size_weights(mine, node),
            "steps": len(dgt.even_steps([0] * (1 + node.world.rank), node)),
        }
        return found | self._trained(node, network, mine)

    def _trained(self, node: Node, network: dgt.Network, mine: Any) -> dict[str, Any]:
        model = net()
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network, momentum=0.5)
        loader = dgt.ResumableLoader(mine, node, batch_size=3)
        checkpoints = dgt.Checkpoints(self.folder, network, minutes=0, model=model, optimizer=optimizer, loader=loader)
        first = checkpoints.resume()
        for step in range(first, 8):
            (values,) = next(iter(loader))
            optimizer.zero_grad()
            model(values.double()[:1, None].expand(1, 6)).square().sum().backward()
            optimizer.step()
            if step == 4:
                checkpoints.save(step + 1)
        with network.average(model):
            average = flat(model)
        return {"first": first, "theta": flat(model), "average": average, "bytes": network.bytes_sent}


def test_nodes_ranks_data_and_checkpoints(tmp_path: Path) -> None:
    found = run_grouped(Everything(str(tmp_path / "a")), 2, 2)
    assert [found[rank]["who"] for rank in range(4)] == [
        (rank // 2, 2, rank % 2, 2, rank, 4) for rank in range(4)
    ]  # fmt: skip
    assert [found[rank]["main"] for rank in range(4)] == [True, False, False, False]
    assert [found[rank]["gathered"] for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [found[rank]["local"] for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert {str(each["sums"]) for each in found.values()} == {"[2, 2, 4]"}
    assert sorted(sample for each in found.values() for sample in each["mine"]) == list(range(30))
    assert [len(found[rank]["mine"]) for rank in range(4)] == [5, 5, 10, 10]
    assert {str(each["weights"]) for each in found.values()} == {"[10, 20]"}
    assert {each["steps"] for each in found.values()} == {4}
    assert all(torch.equal(each["average"], found[0]["average"]) for each in found.values())
    share = [found[rank]["theta"] * (1 if rank < 2 else 2) / 3 for rank in (0, 2)]
    torch.testing.assert_close(share[0] + share[1], found[0]["average"], rtol=0, atol=1e-12)
    for rank, again in run_grouped(Everything(str(tmp_path / "a")), 2, 2).items():  # from the last checkpoint
        assert again["first"] == 5
        assert torch.equal(again["theta"], found[rank]["theta"])
    with pytest.raises(LaunchError, match=r"world is .*|ranks_per_node is 2 there, 1 here"):
        run_grouped(Everything(str(tmp_path / "a")), 2, 1)


@dataclass
class Sent:
    """Bytes between nodes of one rank, per step, of 100,000 numbers."""

    def run(self, node: Node) -> tuple[float, int]:
        network = dgt.Network(node, nx.cycle_graph(node.size), [1.0] * node.size)
        parameter = torch.nn.Parameter(torch.zeros(99_840))
        optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
        before = network.bytes_sent
        for _ in range(3):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        optimizer.drain()
        state = optimizer.state_dict()["dgt"]
        return (network.bytes_sent - before) / 3, state["rest"].numel()


def test_a_rank_sends_and_keeps_its_share_of_what_one_rank_would() -> None:
    (alone, kept), *_ = run_ranks(Sent(), 3).values()
    for ranks in (2, 3):
        for sent, numbers in run_grouped(Sent(), 3, ranks).values():
            assert (sent * ranks, numbers * ranks) == (alone, kept)


@dataclass
class Overflowing:
    """Rank 1 of node 0 overflows at step 3: node 0 makes that step without a gradient, as a node of one rank does."""

    def run(self, node: Node) -> list[float]:
        network = dgt.Network(node, nx.path_graph(node.size), [1.0] * node.size)
        parameter = torch.nn.Parameter(torch.full((6,), float(node.rank)))
        optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for step in range(6):
            optimizer.zero_grad()
            loss = (parameter - node.rank).square().sum() / 2
            scaler.scale(loss).backward()
            if step == 3 and node.rank == 0 and node.local.rank == node.local.size - 1:
                parameter.grad[0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
        return parameter.tolist()


def test_a_rank_that_overflows_keeps_its_node_out_of_the_step() -> None:
    expected = run_ranks(Overflowing(), 2)
    for rank, values in run_grouped(Overflowing(), 2, 2).items():
        assert values == pytest.approx(expected[rank // 2], abs=1e-6)


@dataclass
class Odd:
    """Parameters that are frozen, unused, of 16 bits with master weights, sparse in their gradient, or replaced."""

    def run(self, node: Node) -> list[torch.Tensor]:
        torch.manual_seed(node.rank)
        model = torch.nn.ParameterDict({str(k): torch.randn(5 + 3 * k) for k in range(5)})
        model["1"].requires_grad_(False)
        model["2"] = torch.nn.Parameter(model["2"].bfloat16())
        network = dgt.Network(node, nx.path_graph(node.size), [1.0] * node.size)
        groups = [{"params": [model["0"], model["1"], model["2"]], "lr": 0.2}, {"params": [model["3"], model["4"]]}]
        optimizer = dgt.GradientTracking(groups, lr=0.1, network=network, weight_decay=0.01)
        for step in range(8):
            for name in ("0", "2", "4"):
                model[name].grad = (model[name].detach() - node.rank).to(model[name].dtype)
            model["0"].grad = model["0"].grad.to_sparse()
            if step == 4:
                model["4"].data = model["4"].data.clone().mul_(2)
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.values()]


def test_odd_parameters_are_divided_like_others() -> None:
    expected = run_ranks(Odd(), 2)
    for ranks in (2, 3):
        for rank, found in run_grouped(Odd(), 2, ranks).items():
            for ours, theirs in zip(found, expected[rank // ranks], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@dataclass
class Statistics:
    """BatchNorm: each rank has the statistics of its own data; mixed, averaged and evaluated, a node has their mean."""

    def run(self, node: Node) -> list[torch.Tensor]:
        model = torch.nn.BatchNorm1d(2)
        network = dgt.Network(node, nx.path_graph(node.size), [1.0] * node.size)
        optimizer = dgt.DSGD(model.parameters(), lr=0.1, network=network)
        buffers = dgt.MixedBuffers(model, network)
        model(torch.randn(16, 2) + node.world.rank).sum().backward()
        optimizer.step()
        own = model.running_mean.clone()
        with network.average(model):
            average = model.running_mean.clone()
        buffers.mix()
        return [own, average, model.running_mean.clone()]


def test_batch_statistics_of_a_node_are_the_mean_of_its_ranks() -> None:
    found = run_grouped(Statistics(), 2, 2)
    own = torch.stack([found[rank][0] for rank in range(4)])
    mixed = torch.stack([found[rank][2] for rank in range(4)])
    for rank in range(4):
        torch.testing.assert_close(found[rank][1], own.mean(0))
        torch.testing.assert_close(mixed[rank], mixed[rank // 2 * 2])
    torch.testing.assert_close(mixed.mean(0), own.mean(0))


@dataclass
class Dealt:
    """Ranks that are dealt out to hosts in turn, as with `srun --distribution=cyclic`: even ranks here, odd there."""

    hosts: list[int]
    ranks: Any = 2

    def run(self, world: Node) -> tuple[int, int, int]:
        before, own = world.rank, self.hosts[world.rank]
        with mock.patch.object(environment, "host_number", return_value=own):
            node = join.divide(world, self.ranks)
        network = dgt.Network(node, nx.path_graph(node.size), [1.0] * node.size)
        parameter = torch.nn.Parameter(torch.tensor([1.0 * before, 0.0]))
        optimizer = dgt.DSGD([parameter], lr=0.1, network=network)
        parameter.grad = torch.full((2,), float(before))
        optimizer.step()
        return before, node.rank, node.local.rank


def test_the_ranks_of_a_node_are_on_one_host() -> None:
    found = run_ranks(Dealt([0, 1, 0, 1]), 4)
    assert sorted(found.values()) == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
    with pytest.raises(LaunchError, match="ranks_per_node=2: the host of rank 0 has 3 ranks, no multiple of it, and"):
        run_ranks(Dealt([0, 0, 0, 1]), 4)


@dataclass
class Divided:
    given: list[Any]

    def run(self, world: Node) -> int:
        return join.divide(world, self.given[world.rank]).local.size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([2, 1], "ranks disagree on ranks_per_node: 2 on rank 0, 1 on rank 1"),
        ([1, "auto"], "ranks disagree on ranks_per_node: 1 on rank 0, auto on rank 1"),
        ([0, 0], "ranks_per_node=0: must be a number from 1 on, or auto"),
        ([3, 3], "ranks_per_node=3: 2 ranks are no multiple of it; start 3"),
    ],
)
def test_wrong_numbers_are_one_line_on_all_ranks(given: list[Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        run_ranks(Divided(given), 2)


def test_auto_is_one_without_gpus() -> None:
    assert set(run_ranks(Divided(["auto", "auto"]), 2).values()) == {1}
