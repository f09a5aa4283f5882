"""Both ways between neighbours: the same numbers under delays, a bounded number of buffers, nothing left behind."""

from __future__ import annotations

import gc
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import dgt
from dgt.exchange import shared
from dgt.exchange import transport as transports
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(180)

SIZE = 200_000


@dataclass
class Delayed:
    """Twenty steps with a gradient that depends on the parameters; some ranks now and then oversleep."""

    transport: str
    delays: bool

    def run(self, node: Node) -> list[float]:
        graph = dgt.graphs.exponential(node.size)
        network = dgt.Network(node, graph, [1.0 + k for k in range(node.size)], "II", transport=self.transport)
        theta = torch.nn.Parameter(torch.full((SIZE,), float(node.rank), dtype=torch.float64))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
        draw = random.Random(node.rank)
        for step in range(20):
            theta.grad = (theta.detach() - node.rank) * (1 + 0.01 * step)
            for pause in (0.0, 0.0, 0.002, 0.02) if self.delays else ():
                time.sleep(draw.random() * pause)
            optimizer.step()
        return theta.detach()[:: SIZE // 10].tolist()


def test_delays_and_transports_change_nothing() -> None:
    expected = run_ranks(Delayed("auto", delays=False), 8)
    assert run_ranks(Delayed("auto", delays=True), 8) == expected
    assert run_ranks(Delayed("messages", delays=True), 8) == {
        rank: pytest.approx(values, abs=1e-12) for rank, values in expected.items()
    }


@dataclass(frozen=True)
class Case:
    """Of the table in docs/architecture.md, Buffers; what is half as wide counts half."""

    transport: str
    wire: str
    most_bytes: int  # of all inboxes
    formula: str


MODEL = 4 * SIZE
CASES = [
    Case("auto", "full", 2**30, "7"),
    Case("auto", "bfloat16", 2**30, "15"),
    Case("messages", "full", 2**30, "5 + 2 * degree"),
    Case("messages", "bfloat16", 2**30, "14 + degree"),
    Case("messages", "full", 0, "8"),
    Case("messages", "full", 5 * MODEL + MODEL // 2, "5 + 2 * 2 if degree == 2 else 5 + 5 + 1"),
]


class Buffers:
    """How many parameter-sized buffers a rank holds while it trains; memory mapped from neighbours is theirs."""

    def run(self, node: Node) -> list[float]:
        return [self._count(node, case) for case in CASES]

    def _count(self, node: Node, case: Case) -> float:
        transports.MOST_BYTES = case.most_bytes
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport=case.transport)
        model = torch.nn.Linear(1000, 200, bias=False)
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network, wire=case.wire)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 1000)).sum().backward()
            optimizer.step()
        gc.collect()
        tensors = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.numel() >= SIZE]
        storages = [tensor.untyped_storage() for tensor in [*tensors, model.weight.grad]]
        held = {storage.data_ptr(): storage.nbytes() for storage in storages}
        for outbox in optimizer.buckets[0].outboxes():
            assert bool(outbox.boards) == (case.transport == "auto" and shared.available())
            for board in [*outbox.boards.values(), *filter(None, [outbox.board])]:
                for buffer in board.buffers:
                    held.pop(buffer.untyped_storage().data_ptr(), None)
            if outbox.board is not None:  # this rank's own file, without its header
                held[id(outbox)] = sum(buffer.nbytes for buffer in outbox.board.buffers)
        optimizer.drain()
        optimizer.close()
        return sum(held.values()) / MODEL


def test_buffers_are_as_many_as_the_docs_say() -> None:
    for nodes in (3, 6):
        for counts in run_ranks(Buffers(), nodes).values():
            for case, count in zip(CASES, counts, strict=True):
                if case.transport == "messages" or shared.available():
                    assert count == pytest.approx(eval(case.formula, {"degree": nodes - 1}), rel=0.01), case


def test_shared_memory_leaves_no_file() -> None:
    before = set(os.listdir(shared.MEMORY))
    run_ranks(Delayed("auto", delays=False), 3)
    assert {name for name in os.listdir(shared.MEMORY) if name.startswith(shared.PREFIX)} <= before


@dataclass
class TwoHosts:
    """Even and odd ranks share memory among themselves only, as on two hosts."""

    options: dict[str, Any]

    def run(self, node: Node) -> tuple[list[float], int, int]:
        host, look = f"{shared.PREFIX}host{node.rank % 2}-", shared.look
        shared.PREFIX = host
        shared.look = lambda path, token, like: look(path, token, like) if path.name.startswith(host) else None
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0 + k for k in range(node.size)], "II")
        theta = torch.nn.Parameter(torch.full((SIZE,), float(node.rank), dtype=torch.float64))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network, **self.options)
        for _ in range(10):
            theta.grad = theta.detach() - node.rank
            optimizer.step()
        outbox = optimizer.buckets[0].outboxes()[0]
        return theta.detach()[:: SIZE // 10].tolist(), len(outbox.boards), len(outbox.others)


@pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux on x86-64")
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"wire": "bfloat16"}])
def test_memory_and_messages_are_mixed_per_edge(options: dict[str, Any]) -> None:
    """The same numbers as with messages alone."""
    mixed = run_ranks(TwoHosts(options), 5)
    alone = run_ranks(Messages(options), 5)
    for rank, (values, near, far) in mixed.items():
        assert (near, far) == ((2, 2) if rank % 2 == 0 else (1, 3))
        assert values == pytest.approx(alone[rank], abs=1e-12)


@dataclass
class Messages:
    options: dict[str, Any]

    def run(self, node: Node) -> list[float]:
        shared.available = lambda: False
        return TwoHosts(self.options).run(node)[0]
