"""Ways of torch's own optimizers that a user may bring along: closures, sparse gradients, a loop with any algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import dgt
from dgt import reference
from dgt.network.mixing import mixing_matrix, strategy
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(120)

LR = 0.1
MAKERS = (dgt.GradientTracking, dgt.ExactDiffusion, dgt.DSGD, dgt.AllReduce)


@pytest.fixture
def network() -> Iterator[dgt.Network]:
    with dgt.join(device="cpu") as node:
        yield dgt.Network(node, dgt.graphs.complete(1), [1.0])


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_is_evaluated_once_per_step_and_its_loss_returned(make: type, network: dgt.Network) -> None:
    theta = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    optimizer, calls = make([theta], lr=LR, network=network), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (theta**2).sum() / 2
        loss.backward()
        calls.append(loss.item())
        return loss

    with torch.no_grad():  # torch's own optimizers enable gradients for the closure
        losses = [optimizer.step(closure).item() for _ in range(3)]
    assert calls == losses == [pytest.approx(2.5 * (1 - LR) ** (2 * step)) for step in range(3)]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rows", [20, 5000])  # models below and above 64 KiB take different ways
def test_sparse_gradients_train_as_dense_ones_do(make: type, rows: int, network: dgt.Network) -> None:
    tables = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = torch.nn.Embedding(rows, 8, sparse=sparse)
        optimizer = make(table.parameters(), lr=LR, network=network)
        for step in range(3):
            optimizer.zero_grad()
            table(torch.tensor([step, 7, 7])).square().sum().backward()
            assert table.weight.grad.is_sparse == sparse
            optimizer.step()
        tables.append(table.weight.detach().clone())
    assert torch.equal(*tables)


@dataclass
class Loop:
    """F_i = |theta - i|^2 / 2 from theta = -i, by a baseline in a loop of one's own."""

    name: str
    strategy: str

    def run(self, node: Node) -> list[list[float]]:
        weights = [1.0 + rank for rank in range(node.size)]
        network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy=self.strategy)
        theta = torch.nn.Parameter(torch.full((2,), -float(node.rank), dtype=torch.float64))
        optimizer = getattr(dgt, self.name)([theta], lr=LR, network=network)
        states = [theta.tolist()]
        for _ in range(6):
            optimizer.zero_grad()
            ((theta - node.rank) ** 2).sum().div(2).backward()
            optimizer.step()
            states.append(theta.tolist())
        return states


class Stacked:
    """The same for all nodes at once."""

    start = -np.arange(3.0)[:, None] * np.ones(2)

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        return theta - np.arange(3.0)[:, None]

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize("name", ["DSGD", "AllReduce"])
@pytest.mark.parametrize("strategy_name", ["I", "II"])
def test_baselines_in_a_loop_of_ones_own_equal_the_twin_at_every_step(name: str, strategy_name: str) -> None:
    ranks = run_ranks(Loop(name, strategy_name), 3)
    weights = np.array([1.0, 2.0, 3.0]) / 2
    plan = strategy(strategy_name, weights)
    W = mixing_matrix(dgt.graphs.ring(3), plan.mixing_weights, 0.3)
    states = (reference.dsgd if name == "DSGD" else reference.allreduce)(Stacked(), W, plan, LR, 6)
    for state in states:
        assert np.allclose([ranks[rank][state.iteration] for rank in range(3)], state.theta, atol=1e-14)
