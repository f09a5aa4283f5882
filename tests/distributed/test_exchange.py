"""Handshake, agreement and messages on real ranks."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgt
from dgt.errors import LaunchError
from dgt.exchange.transport import Outbox, Transport
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import named
from dgt.processes.node import Node
from tests.distributed.ranks import command, run_ranks

pytestmark = pytest.mark.timeout(120)


@dataclass
class Rows:
    topology: str
    strategy: str

    def run(self, node: Node) -> dict[int, float]:
        network = dgt.Network(node, getattr(dgt.graphs, self.topology)(node.size), named("A"), self.strategy)
        return {node.rank: network.row.own, **network.row.neighbours}


@pytest.mark.parametrize("topology", ["star", "exponential"])
@pytest.mark.parametrize("name", ["I", "II"])
def test_row_from_handshake_equals_matrix_row(topology: str, name: str) -> None:
    rows = run_ranks(Rows(topology, name), 16)
    W = mixing_matrix(getattr(dgt.graphs, topology)(16), strategy(name, named("A")).mixing_weights).toarray()
    for rank, row in rows.items():
        dense = np.zeros(16)
        dense[list(row)] = list(row.values())
        assert np.array_equal(dense, W[rank])


@dataclass
class Disagree:
    """Rank 2 means something else."""

    what: str

    def run(self, node: Node) -> None:
        odd = node.rank == 2
        graph = dgt.graphs.star(4) if odd and self.what == "graph" else dgt.graphs.ring(4)
        weights = [1, 1, 1, 2] if odd and self.what == "weights" else [1, 1, 1, 1]
        strategy = "I" if odd and self.what == "strategy" else "II"
        laziness = 0.5 if odd and self.what == "laziness" else 0.3
        network = dgt.Network(node, graph, weights, strategy, laziness)
        shape = (3, 2) if odd and self.what == "parameters" else (2, 3)
        dgt.GradientTracking([torch.nn.Parameter(torch.zeros(shape))], lr=0.1, network=network)


@pytest.mark.parametrize("what", ["graph", "weights", "strategy", "laziness", "parameters"])
def test_disagreement_is_named_and_ends_every_rank(what: str) -> None:
    with pytest.raises(LaunchError, match=f"ranks disagree on {what}: .* on ranks 0, 1, 3; .* on rank 2") as caught:
        run_ranks(Disagree(what), 4, timeout=1000)
    assert caught.value.code == 2


@dataclass
class Late:
    """Rank 1 computes for ever, or dies."""

    how: str

    def run(self, node: Node) -> None:
        network = dgt.Network(node, dgt.graphs.ring(3), [1, 1, 1])
        parameter = torch.nn.Parameter(torch.zeros(4))
        optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
        for step in range(3):
            if node.rank == 1 and step == 2:
                if self.how == "dies":
                    import os

                    os._exit(17)
                time.sleep(20)
            optimizer.step()


def test_a_silent_neighbour_is_named_within_the_timeout() -> None:
    with pytest.raises(LaunchError, match=r"neighbour 1 did not answer within 5 s; both of iteration 2"):
        run_ranks(Late("sleeps"), 3, timeout=5)


def test_a_dead_neighbour_is_named_at_once() -> None:
    with pytest.raises(LaunchError, match=r"neighbour 1 is gone|rank 1 ended"):
        run_ranks(Late("dies"), 3, timeout=1000)


@dataclass
class Batch:
    """The nccl way of posting, over gloo: one batch in sorted order, no tags."""

    topology: str

    def run(self, node: Node) -> list[list[float]]:
        peers = sorted(getattr(dgt.graphs, self.topology)(node.size)[node.rank])
        transport = Transport(node, peers)
        outbox = Outbox(transport, "parameters", 0, torch.empty(300), None, {}, inboxes=len(peers))
        outbox.uses_nccl = True
        heard = []
        for step in range(5):
            outbox.buffer.fill_(100.0 * step + node.rank)
            pending = outbox.post(step)
            heard.append([float(theirs.mean()) for _, theirs in pending.collect()])
            pending.finish()
        assert transport.bytes_sent == 5 * 300 * 4 * len(peers)
        return heard


@pytest.mark.parametrize("topology", ["ring", "star", "complete"])
def test_one_symmetric_batch_moves_the_same_numbers(topology: str) -> None:
    heard = run_ranks(Batch(topology), 6)
    graph = getattr(dgt.graphs, topology)(6)
    for rank in range(6):
        assert heard[rank] == [[100.0 * step + peer for peer in sorted(graph[rank])] for step in range(5)]


@dataclass
class Versions:
    def run(self, node: Node) -> None:

        from dgt.processes import join

        join.version = lambda _: "9.9" if node.rank == 2 else "0.1.0"  # type: ignore[assignment]
        join._same_version(node)


def test_different_versions_are_named() -> None:
    with pytest.raises(LaunchError, match=r"ranks disagree on version: dgt 0\.1\.0 on rank 0, 9\.9 on rank 2"):
        run_ranks(Versions(), 3)


@dataclass
class TwoOptimizers:
    """Two models of one size on one network, the second stepping while the first one's tracker travels."""

    together: bool

    def run(self, node: Node) -> list[list[float]]:
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        models = [torch.nn.Parameter(torch.full((20_000,), float(node.rank + 10 * k))) for k in range(2)]
        optimizers = [dgt.GradientTracking([model], lr=0.1, network=network) for model in models]
        steps = (
            [(t, k) for t in range(4) for k in range(2)]
            if self.together
            else [(t, k) for k in range(2) for t in range(4)]
        )
        for t, k in steps:
            models[k].grad = torch.full((20_000,), float(node.rank * (k + 1) + t))
            optimizers[k].step()
        return [[float(model.detach().min()), float(model.detach().max())] for model in models]


def test_two_optimizers_on_one_network_do_not_mix_their_messages() -> None:
    assert run_ranks(TwoOptimizers(True), 4) == run_ranks(TwoOptimizers(False), 4)


@dataclass
class Forgotten:
    """Returns with every tracker still travelling, and nobody left to remember the optimizer."""

    def run(self, node: Node) -> int:
        def train() -> None:
            network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport="messages")
            parameter = torch.nn.Parameter(torch.zeros(300_000))
            optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
            time.sleep(0.05 * node.rank)
            optimizer.step()

        for _ in range(3):
            train()
        gc.collect()
        node.barrier()
        return len(node.under_way)


def test_messages_outlive_the_optimizer_that_sent_them() -> None:
    """Once, dropped receives left their messages in the connections and the next collective hung behind them."""
    assert run_ranks(Forgotten(), 4) == dict.fromkeys(range(4), 3)


class Backwards(set):  # type: ignore[type-arg]
    """Last channel first."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=lambda pending: -pending._outbox.channel))


@dataclass
class Hurried:
    """Leaves with several exchanges under way, which ranks complete in different orders."""

    def run(self, node: Node) -> int:
        if node.rank % 2:
            node.under_way = Backwards()
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport="messages")
        for _ in range(4):
            parameter = torch.nn.Parameter(torch.zeros(300_000))
            dgt.GradientTracking([parameter], lr=0.1, network=network).step()
        return len(node.under_way)


def test_ranks_may_leave_in_whatever_order() -> None:
    assert run_ranks(Hurried(), 4) == dict.fromkeys(range(4), 4)


@dataclass
class Torch:
    """An ordinary training loop with parameter groups on every node."""

    def run(self, node: Node) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        network = dgt.Network(node, dgt.graphs.ring(node.size), [3, 1, 1], strategy="I")
        optimizer = dgt.GradientTracking(
            [{"params": [model.weight], "weight_decay": 1.0}, {"params": [model.bias], "lr": 0.03}],
            lr=0.05,
            network=network,
        )
        target = torch.tensor([[1.0 + node.rank]])
        for _ in range(800):
            optimizer.zero_grad()
            loss = ((model(torch.ones(1, 2)) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
        optimizer.drain()
        return [*model.weight.flatten().tolist(), *model.bias.tolist()]


def test_parameter_groups_reach_the_weighted_optimum() -> None:
    """min of sum lambda_i (w0 + w1 + b - (1+i))^2 / 5 + decay on w only: the decay drives w to 0."""
    for values in run_ranks(Torch(), 3).values():
        assert values[:2] == pytest.approx([0, 0], abs=1e-3)
        assert values[2] == pytest.approx((3 * 1 + 2 + 3) / 5, abs=1e-3)


LEAVING = """
import os, dgt

with dgt.join() as node:
    node.barrier()
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not any("gloo" in name for name in threads), threads
node.barrier()
"""


def test_a_node_that_left_has_no_threads_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    done = command([sys.executable, "leaving.py"], tmp_path)
    assert "this node has left the network" in done.stderr.splitlines()[-1], done.stderr
