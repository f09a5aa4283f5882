"""Ranks that do not do the same: settings, calls and numbers of steps that differ are named, at once, by both sides."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import dgt
from dgt import reference
from dgt.errors import LaunchError
from dgt.network.mixing import mixing_matrix, strategy
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(120)

LAZINESS = 0.35
LARGE = 20_000  # numbers: z and y in messages of their own
LONG = 1000.0  # seconds of patience: whatever is said before the test's own time is up was not a timeout
OPTIMIZERS = (dgt.GradientTracking, dgt.DSGD, dgt.AllReduce)


def network_of(node: Node, transport: str = "auto") -> dgt.Network:
    return dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport=transport)


def steps(optimizer: torch.optim.Optimizer, number: int) -> None:
    for _ in range(number):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()


class DifferFromTheStart:
    """Rank 1's settings are others; every rank is told, and all go on with the next case."""

    def run(self, node: Node) -> list[str]:
        network, odd, said = network_of(node), node.rank == 1, []
        for make in OPTIMIZERS:
            parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
            groups = [{"params": [parameters[0]]}, {"params": [parameters[1]], "lr": 0.3 if odd else 0.4}]
            cases: list[tuple[Any, dict[str, Any]]] = [
                (parameters, {"lr": 0.1 if odd else 0.2}),
                (parameters, {"lr": 0.1, "weight_decay": 0.01 if odd else 0.0}),
                (groups, {"lr": 0.1}),
            ]
            for given, settings in cases:
                with contextlib.suppress(AssertionError), pytest.raises(dgt.ConfigError) as caught:
                    make(given, network=network, **settings)
                said.append(str(caught.value))
        make(parameters, lr=torch.tensor(0.1), network=network)  # a tensor is a number
        return said


def test_settings_that_differ_when_the_optimizer_is_made_are_named_on_all_ranks() -> None:
    said = run_ranks(DifferFromTheStart(), 2)
    assert said[0] == said[1]
    expected = ["lr: 0.2 on rank 0; 0.1 on rank 1", "weight_decay: 0 on rank 0; 0.01 on rank 1"]
    expected.append("lr: 0.1, 0.4 on rank 0; 0.1, 0.3 on rank 1")
    assert said[0] == [f"ranks disagree on {words}" for words in expected] * len(OPTIMIZERS)


@dataclass
class Schedule:
    """All halve lr at step 2; rank 1 once more at step 4, if it is odd."""

    make: Any = dgt.GradientTracking
    size: int = 3
    transport: str = "auto"
    what: str = "lr"
    odd: bool = True
    as_tensor: bool = False
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, node: Node) -> float:
        model = torch.nn.Linear(self.size, 1, bias=False, dtype=self.dtype)
        torch.nn.init.ones_(model.weight)
        lr = torch.tensor(0.1) if self.as_tensor else 0.1
        network, options = network_of(node, self.transport), self.options
        optimizer = self.make(model.parameters(), lr=lr, network=network, **options, **self.hooks(model))
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(1, self.size, dtype=self.dtype)).sum().backward()
            optimizer.step()
            if step == 1 or (step == 3 and self.odd and node.rank == 1):
                self.change(optimizer.param_groups[0])
        optimizer.drain()
        return float(model.weight.detach().mean())

    def hooks(self, model: torch.nn.Module) -> dict[str, Any]:
        return {"model": model} if "bucket_mb" in self.options else {}

    def change(self, group: dict[str, Any]) -> None:
        if self.as_tensor:
            group["lr"].mul_(0.5)  # as torch's schedulers do it
        elif self.what == "lr":
            group["lr"] *= 0.5
        else:
            group[self.what] += 0.25


NEIGHBOURS = r"node \d: lr is 0.0[25]+ here and 0.0[25]+ on neighbour \d at iteration 4; all ranks need the same lr"
DIFFERENT = {
    "one message": (Schedule(), NEIGHBOURS),
    "streams": (Schedule(size=LARGE), NEIGHBOURS),
    "messages, narrow": (Schedule(size=LARGE, transport="messages", options={"wire": "bfloat16"}), NEIGHBOURS),
    "buckets": (Schedule(size=LARGE, options={"bucket_mb": 0.01}), NEIGHBOURS),
    "a tensor": (Schedule(as_tensor=True, transport="messages"), NEIGHBOURS),
    "dsgd": (Schedule(dgt.DSGD), NEIGHBOURS),
    "allreduce": (Schedule(dgt.AllReduce), "ranks disagree on lr: 0.05 on rank 0; 0.025 on rank 1"),
    "allreduce in few bits": (Schedule(dgt.AllReduce, dtype=torch.bfloat16), "disagree on lr: 0.05 on rank 0; 0.025"),
    "weight_decay": (Schedule(what="weight_decay"), "a weight_decay, momentum or beta.* is another one on neighbour"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_schedule_that_differs_later_is_named_at_that_step(case: str) -> None:
    job, words = DIFFERENT[case]
    with pytest.raises(LaunchError, match=words) as caught:
        run_ranks(job, 2, timeout=LONG)
    assert caught.value.code == 2


@dataclass
class Schedules:
    """Several runs one after another on the same ranks."""

    runs: list[Schedule]

    def run(self, node: Node) -> list[float]:
        return [run.run(node) for run in self.runs]


def test_a_common_schedule_passes_with_every_optimizer_whatever_is_in_flight() -> None:
    """theta = 1 - 0.1 (1 + 1 + 4/2), since every gradient is one."""
    runs = [job for name, (job, _) in DIFFERENT.items() if name != "weight_decay"]
    for ends in run_ranks(Schedules([Schedule(**{**vars(job), "odd": False}) for job in runs]), 2).values():
        assert ends == pytest.approx([0.6] * len(runs), abs=1e-2)


@dataclass
class Differ:
    """Both ranks make different calls, hear so, and make the next one."""

    def run(self, node: Node) -> list[str]:
        network, model = network_of(node), torch.nn.Linear(2, 1)
        odd, said = node.rank == 1, []

        def average() -> None:
            with network.average(model):
                pass

        pairs = [
            (lambda: node.all_gather(torch.zeros(3)), lambda: node.all_gather(torch.zeros(1000))),
            (lambda: node.all_gather(torch.zeros(3)), lambda: node.all_gather(torch.zeros(3, dtype=torch.int32))),
            (lambda: node.all_gather(torch.zeros(3)), node.barrier),
            (lambda: network.save_average("never.pt", model), lambda: node.all_gather(1.0)),
            (average, lambda: node.all_reduce(torch.zeros(3))),
            (lambda: network.save_average("never.pt", model), average),
            (lambda: dgt.DSGD(model.parameters(), lr=0.1, network=network), average),
        ]
        for pair in pairs:
            with pytest.raises(dgt.ConfigError) as caught:
                pair[odd]()
            said.append(str(caught.value))
        return said


def test_different_calls_are_named_on_all_ranks() -> None:
    """Once a longer message ended the process (SIGABRT), and bytes of another dtype were taken as they were."""
    said = run_ranks(Differ(), 2, timeout=LONG)
    assert said[0] == said[1]
    average = r"average\(model of 2 tensors\): all_reduce of shape \(3,\), float32"
    expected = [
        (r"all_gather of shape \(3,\), float32", r"all_gather of shape \(1000,\), float32"),
        (r"all_gather of shape \(3,\), float32", r"all_gather of shape \(3,\), int32"),
        (r"all_gather of shape \(3,\), float32", "barrier"),
        (f"save_{average}", r"all_gather of shape \(\), float64"),
        (average, r"all_reduce of shape \(3,\), float32"),
        (f"save_{average}", average),
        ("the check that ranks agree on parameters, .*", average),
    ]
    for words, (first, second) in zip(said[0], expected, strict=True):
        match = (
            rf"ranks make different calls: rank 0 is in {first}; rank 1 is in {second}; all ranks must make the same"
        )
        assert re.match(match, words), words


class Gathers:
    def run(self, node: Node) -> list[Any]:
        given: list[Any] = [
            1.5 + node.rank, node.rank, node.rank == 1, [1.0, 2.0 + node.rank], (node.rank,), np.arange(2) + node.rank,
            torch.tensor(3.0 + node.rank, requires_grad=True), [torch.tensor(node.rank), torch.tensor(7)],
            torch.full((2000,), node.rank, dtype=torch.bfloat16), torch.zeros(0), np.zeros((2, 0)), 2**60 + node.rank,
        ]  # fmt: skip
        found = [node.all_gather(values) for values in given]
        for odd in ("words", [torch.ones(2), torch.ones(3)], torch.eye(2).to_sparse(), [[1], [1, 2]]):
            with pytest.raises(
                dgt.ConfigError, match=r"all_gather: a (str|list|Tensor) cannot travel; give a number, a list"
            ):
                node.all_gather(odd)
        assert node.all_gather([]).shape == (2, 0)
        assert node.all_reduce(1.5).item() == 3.0
        rows = node.gather(torch.full((1000,), 1.0 + node.rank), dst=0)
        assert rows is None if node.rank else rows.sum().item() == 3000
        last = node.gather(node.rank, dst=1)
        assert last is None if node.rank == 0 else last.tolist() == [0, 1]
        with pytest.warns(DeprecationWarning, match="node.gather.values. without dst is deprecated: use node.all_gat"):
            assert node.gather(node.rank).tolist() == [0, 1]
        with pytest.warns(DeprecationWarning, match="node.collect is deprecated: use node.gather.values, dst=0."):
            assert (node.collect(node.rank) is None) == bool(node.rank)
        with pytest.warns(DeprecationWarning, match="node.sum is deprecated: use node.all_reduce"):
            assert node.sum(1).item() == 2
        return [(str(values.dtype), list(values.shape), values.reshape(2, -1)[:, -1:].tolist()) for values in found]


def test_numbers_lists_arrays_and_tensors_are_gathered() -> None:
    said = run_ranks(Gathers(), 2)
    assert said[0] == said[1]
    assert said[0] == [
        ("torch.float64", [2], [[1.5], [2.5]]), ("torch.int64", [2], [[0], [1]]),
        ("torch.bool", [2], [[False], [True]]),
        ("torch.float64", [2, 2], [[2.0], [3.0]]), ("torch.int64", [2, 1], [[0], [1]]),
        ("torch.int64", [2, 2], [[1], [2]]), ("torch.float32", [2], [[3.0], [4.0]]),
        ("torch.int64", [2, 2], [[7], [7]]),
        ("torch.bfloat16", [2, 2000], [[0.0], [1.0]]), ("torch.float32", [2, 0], [[], []]),
        ("torch.float64", [2, 2, 0], [[], []]), ("torch.int64", [2], [[2**60], [2**60 + 1]]),
    ]  # fmt: skip


@dataclass
class OnlyMain:
    """The mistake: rank 0 saves, the others go on."""

    then: str
    transport: str = "auto"
    make: Any = dgt.GradientTracking

    def run(self, node: Node) -> None:
        network, model = network_of(node, self.transport), torch.nn.Linear(2, 1)
        optimizer = self.make(model.parameters(), lr=0.1, network=network)
        steps(optimizer, 3)
        if node.is_main:
            network.save_average("never.pt", model)
        if self.then == "steps":
            steps(optimizer, 3)


@pytest.mark.parametrize(
    ("job", "timeout", "words"),
    [
        (OnlyMain("leaves"), LONG, r"rank 0 is in save_average.*; rank 1 is in leaving .* after 3 steps"),
        (OnlyMain("steps"), 2, "did not answer within 2 s.*waited in"),
        (OnlyMain("steps", "messages"), 2, "did not answer within 2 s.*waited in|is gone.*waited in"),
        (OnlyMain("steps", make=dgt.AllReduce), 2, "did not answer within 2 s.*waited in|is gone.*waited in"),
    ],
)  # fmt: skip
def test_a_call_that_only_rank_0_makes_is_named(job: OnlyMain, timeout: float, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        run_ranks(job, 2, timeout=timeout)
    assert "save_average(model of 2 tensors)" in str(caught.value)
    assert "all ranks must make the same call" in str(caught.value)
    assert "`if node.is_main:`" in str(caught.value)


@dataclass
class Uneven:
    """Rank 0 has five batches, rank 1 seven."""

    make: Any = dgt.GradientTracking
    transport: str = "auto"
    size: int = 3
    keeps: bool = True
    buffers: bool = False

    def run(self, node: Node) -> None:
        network = network_of(node, self.transport)
        optimizer = self.make([torch.nn.Parameter(torch.zeros(self.size))], lr=0.1, network=network)
        steps(optimizer, 7 if node.rank else 5)
        if self.keeps:
            node.before_leaving.append(optimizer.drain)  # else it is dropped when this function returns


@pytest.mark.parametrize(
    "job",
    [
        Uneven(), Uneven(keeps=False), Uneven(transport="messages"), Uneven(size=LARGE),
        Uneven(size=LARGE, transport="messages", keeps=False), Uneven(dgt.DSGD, "messages"), Uneven(dgt.AllReduce),
    ],
    ids=["one message", "dropped", "messages", "streams", "streams, messages", "dsgd", "allreduce"],
)  # fmt: skip
def test_a_rank_that_has_left_is_named_at_once(job: Uneven) -> None:
    words = r"node 1: (neighbour|node) 0 has left after 5 steps, this node is .*: do all ranks make the same number of"
    with pytest.raises(LaunchError, match=words + r" steps\? `for batch in dgt.even_steps\(loader, node\):` makes"):
        run_ranks(job, 2, timeout=LONG)


@dataclass
class Stuck:
    """Rank 0 computes for ever after two steps."""

    transport: str

    def run(self, node: Node) -> None:
        optimizer = dgt.DSGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, network=network_of(node, self.transport))
        steps(optimizer, 2)
        if node.rank == 0:
            time.sleep(15)
        steps(optimizer, 1)


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_a_neighbour_that_does_not_answer_is_said_to_have_made_so_many_steps(transport: str) -> None:
    words = r"neighbour 0 did not answer within 2 s; parameters of iteration 2; it has made 2 steps: do all ranks make"
    with pytest.raises(LaunchError, match=words):
        run_ranks(Stuck(transport), 2, timeout=2)


SCRIPT = """
import torch, dgt
with dgt.join(timeout=100) as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size, transport="messages")
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
    for _ in range(5 + 2 * node.rank):
        parameter.grad = torch.ones(3)
        optimizer.step()
"""


def test_both_sides_of_uneven_steps_end_with_a_line() -> None:
    """No launcher that ends one when the other has: each rank comes to its own end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        left, waiting = (process.communicate(timeout=90)[1].splitlines()[-1] for process in ranks)
    finally:
        for process in ranks:
            process.kill()
    assert "TrainingError: node 1: neighbour 0 has left after 5 steps, this node is at step 6: do all" in waiting
    assert "PeerError: node 0: another rank is gone (connection closed); this rank made 5 steps and was leaving" in left


class Loaders:
    """Loaders of three lengths; shuffled, so that a second pass has another order."""

    def run(self, node: Node) -> dict[str, Any]:
        length = [5, 2, 3][node.rank]
        torch.manual_seed(node.rank)
        loader = torch.utils.data.DataLoader(torch.arange(4 * length), batch_size=4, shuffle=True)
        network = network_of(node)
        longest, shortest = dgt.even_steps(loader, network), dgt.even_steps(loader, node, by="shortest")
        epochs = [[batch.tolist() for batch in longest] for _ in range(2)]
        optimizer = dgt.DSGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, network=network)
        for _ in shortest:
            steps(optimizer, 1)
        endless = dgt.even_steps(_Endless(), node, steps=4)
        said = []
        loaders: list[Any] = [[] if node.rank == 2 else [1], _Endless() if node.rank == 1 else [1]]
        for wrong in loaders:
            with pytest.raises(dgt.ConfigError) as caught:
                dgt.even_steps(wrong, node)
            said.append(str(caught.value))
        return {
            "lengths": [len(longest), len(shortest), len(endless), len(list(endless))],
            "epochs": epochs, "steps": optimizer.iteration, "said": said,
        }  # fmt: skip


class _Endless:
    """An iterable data set: nobody knows how long it is."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10**9)


def test_even_steps_is_as_long_as_the_longest_or_the_shortest_loader() -> None:
    for rank, told in run_ranks(Loaders(), 3, timeout=LONG).items():
        own = 4 * [5, 2, 3][rank]
        assert told["lengths"] == [5, 2, 4, 4]
        assert told["steps"] == 2
        assert told["said"][0] == "even_steps: the loader of rank 2 is empty; every rank needs one batch"
        assert told["said"][1].startswith("even_steps: the loader of rank 1 has no len(); say how many steps")
        for epoch in told["epochs"]:
            assert len(epoch) == 5
            numbers = [number for batch in epoch for number in batch]
            passes = [numbers[start : start + own] for start in range(0, len(numbers), own)]
            assert all(sorted(each) == list(range(own)) for each in passes if len(each) == own)
            assert len(passes) == 1 or passes[0] != passes[1]
        assert told["epochs"][0] != told["epochs"][1]


@dataclass
class Scaled:
    """Mixed precision on three nodes: some gradients overflow, on one node, on several, on all."""

    make: Any = dgt.GradientTracking
    size: int = 6
    transport: str = "auto"
    unscales: bool = False
    strategy: str = "I"
    options: dict[str, Any] = field(default_factory=dict)

    STEPS = 9
    OVERFLOWS = ((0, 0), (2, 1), (3, 1), (5, 0), (5, 1), (5, 2), (7, 2))  # (step, node)

    def data(self, node: int) -> torch.Tensor:
        return torch.randn(self.STEPS, self.size, generator=torch.Generator().manual_seed(node), dtype=torch.float64)

    def run(self, node: Node) -> dict[str, Any]:
        parameter = torch.nn.Parameter(torch.ones(self.size, dtype=torch.float64) * node.rank)
        network = dgt.Network(
            node, dgt.graphs.ring(3), [1.0, 2.0, 3.0], self.strategy, LAZINESS, transport=self.transport
        )
        optimizer = self.make([parameter], lr=0.1, network=network, weight_decay=0.1, **self.options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + node.rank))
        trace, targets = [], self.data(node.rank)
        for step in range(self.STEPS):
            optimizer.zero_grad()
            loss = 0.5 * (parameter - targets[step]).square().sum()
            if (step, node.rank) in self.OVERFLOWS:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if self.unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.drain()
            trace.append(parameter.detach().clone())
        error = optimizer.tracking_error()
        invariant = 0.0 if error is None else float(node.all_reduce(error).abs().max())
        return {"trace": torch.stack(trace), "invariant": invariant, "steps": optimizer.iteration,
                "scale": scaler.get_scale()}  # fmt: skip


class StackedScaled:
    def __init__(self, job: Scaled) -> None:
        self.job, self.start = job, np.array([[float(node)] * job.size for node in range(3)])
        self.targets = np.stack([job.data(node).numpy() for node in range(3)])

    def overflows(self, t: int) -> np.ndarray:
        return np.array([(t, node) in self.job.OVERFLOWS for node in range(3)])

    def gradient(self, theta: np.ndarray, t: int) -> np.ndarray:
        return theta - self.targets[:, t] + 0.1 * theta

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


SCALED = {
    "one message": Scaled(),
    "streams, messages": Scaled(size=LARGE, transport="messages", unscales=True),
    "local steps": Scaled(options={"local_steps": 2}),
    "streams, local steps": Scaled(size=LARGE, options={"local_steps": 2}),
    "exact diffusion": Scaled(dgt.ExactDiffusion),
    "exact diffusion, streams": Scaled(dgt.ExactDiffusion, size=LARGE, options={"local_steps": 2}),
    "extra": Scaled(dgt.ExactDiffusion, strategy="II", options={"form": "extra"}),
}


@dataclass
class AllScaled:
    def run(self, node: Node) -> dict[str, Any]:
        told = {name: job.run(node) for name, job in SCALED.items()}
        return told | {make.__name__: Scaled(make).run(node) for make in (dgt.DSGD, dgt.AllReduce)}


def test_a_gradient_that_overflows_keeps_its_node_in_step() -> None:
    """GradScaler left the step out on that rank only, and its neighbours waited for ever."""
    told = run_ranks(AllScaled(), 3, timeout=20)
    for rank in range(3):
        overflows = sum(node == rank for _, node in Scaled.OVERFLOWS)
        for result in told[rank].values():
            assert result["steps"] == Scaled.STEPS
            assert result["scale"] == 2.0 ** (8 + rank - overflows)
            assert torch.isfinite(result["trace"]).all()
            assert result["invariant"] < 1e-12
    for name, job in SCALED.items():
        plan = strategy(job.strategy, dgt.weights.normalise([1.0, 2.0, 3.0]))
        W, twin = mixing_matrix(dgt.graphs.ring(3), plan.mixing_weights, LAZINESS), StackedScaled(job)
        follow = reference.exact_diffusion if job.make is dgt.ExactDiffusion else reference.gradient_tracking
        states = follow(twin, W, plan, 0.1, job.STEPS, overflows=twin.overflows, **job.options)
        for t, state in enumerate(list(states)[1:]):
            for rank in range(3):
                np.testing.assert_allclose(told[rank][name]["trace"][t], state.theta[rank], rtol=1e-10, atol=1e-12)


class ScaledBuckets:
    def run(self, node: Node) -> None:
        model, network = torch.nn.Linear(2, 1), network_of(node)
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network, bucket_mb=1, model=model)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(2)).sum()).backward()
        scaler.step(optimizer)


def test_buckets_refuse_a_scaler_that_comes_after_they_have_left() -> None:
    with pytest.raises(LaunchError, match="bucket_mb: a GradScaler unscales gradients after backward"):
        run_ranks(ScaledBuckets(), 1)
