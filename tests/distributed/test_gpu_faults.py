"""What goes wrong on GPUs: sown faults are noticed, neighbours that are late or dead are named, NaN is not kept.

The faults show that the GPUs that are not there notice what the hardware would punish.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import dgt
from dgt.algorithms.machinery.bucket import StreamBucket
from dgt.errors import LaunchError, TrainingError
from dgt.exchange import batches, evidence, frames, streams
from dgt.exchange.flat import FlatParameters
from dgt.exchange.frames import Frame
from dgt.processes.node import Node
from tests.fake_cuda.ledger import ledger
from tests.fake_cuda.ranks import start_on_fake_gpus

pytestmark = pytest.mark.timeout(120)


def optimizer_of(node: Node, algorithm: str = "GradientTracking", graph: Any = None, **options: Any) -> Any:
    network = dgt.Network(node, graph or dgt.graphs.ring(node.size), [1.0] * node.size)
    parameters = [torch.nn.Parameter(torch.full((500,), 1.0 + k).to(node.device)) for k in range(3)]
    return getattr(dgt, algorithm)(parameters, lr=0.1, network=network, **options)


def steps(optimizer: Any, count: int) -> None:
    for number in range(count):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, 0.1 * number)
        optimizer.step()


# ------------------------------------------------------------------------------------------------------ faults are seen


def no_wait(node: Node) -> None:
    """The stream does not wait for a message."""
    batches.Batches._wait = lambda self, works, peers, step: None  # type: ignore[method-assign]


def rewritten_in_flight(node: Node) -> None:
    """y is changed after it was posted."""
    post = StreamBucket._post

    def spoil(self: Any, number: int) -> None:
        post(self, number)
        if number == 1:
            self._streams[1].buffer.mul_(2)

    StreamBucket._post = spoil  # type: ignore[method-assign]


def state_on_the_host(node: Node) -> None:
    """A vector that is not on the GPU."""
    like = FlatParameters.like
    FlatParameters.like = lambda self: like(self).cpu()  # type: ignore[method-assign]


def another_size(node: Node) -> None:
    """Rank 1 posts an exchange that the others do not."""
    if node.rank == 1:
        post = streams.Stream.post
        streams.Stream.post = lambda self, step: (self.outbox.post(step), post(self, step))[1]  # type: ignore


def unseen_copy(node: Node) -> None:
    """Heads are read before anybody has seen that they are there."""
    evidence.wait_for_gpu = lambda *_: None  # type: ignore[assignment]


def head_reused(node: Node) -> None:
    """The memory of a head is written again while the GPU may still read it."""
    frames.HEADS = 1
    write = Frame.write

    def twice(self: Any, head: bytes, tail: bytes) -> None:
        write(self, head, tail)
        if self._memory is None:
            self._next_head().zero_()

    Frame.write = twice  # type: ignore[method-assign]


@dataclass
class Sown:
    sow: Callable[[Node], None]

    def run(self, node: Node) -> None:
        self.sow(node)
        optimizer = optimizer_of(node)
        steps(optimizer, 4)
        optimizer.settle()


@pytest.mark.parametrize(
    ("sow", "words"),
    [
        (no_wait, "memory that nccl is|head is damaged"),
        (rewritten_in_flight, "writes to memory that nccl is sending"),
        (state_on_the_host, "same device"),
        (unseen_copy, "head is damaged|is wrong"),
        (head_reused, "pinned memory was changed|is wrong"),
        (another_size, "bytes from|is wrong|did not answer"),
    ],
)
def test_a_sown_fault_is_noticed(sow: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        start_on_fake_gpus(Sown(sow), 3, timeout=4)


@dataclass
class OneOrder:
    """What every rank posts in two steps with buckets, though rank 0 asks for its state in between."""

    def run(self, node: Node) -> list[str]:
        from tests.fake_cuda import nccl

        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size)
        layers = [torch.nn.Linear(20 + k, 21 + k) for k in range(4)]
        model = torch.nn.Sequential(*layers).to(node.device)
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network, bucket_mb=0.001, model=model)
        (communicator,) = nccl.communicators()
        communicator.posted.clear()
        for _ in range(2):
            model(torch.ones(1, 20).to(node.device)).sum().backward()
            optimizer.step()
            if node.is_main:
                optimizer.state_dict()
                model(torch.ones(1, 20).to(node.device))
            node.barrier()
        return [words.rpartition(" ")[2] for words in communicator.posted]


def test_messages_leave_in_one_order_whoever_asks_for_parameters() -> None:
    """Once, y was posted when parameters were asked for, in the order in which that was; ranks that asked in others
    took one bucket's message for another's, and `state_dict` on one rank waited for the others for ever."""
    posted = start_on_fake_gpus(OneOrder(), 3, timeout=10)
    assert posted[0] == posted[1] == posted[2]
    assert len(posted[0]) == 2 * 2 * len(set(posted[0])) > 8


# ----------------------------------------------------------------------------------------------- neighbours and signals


@dataclass
class Late:
    """Rank 1 computes for ever, dies, or leaves."""

    how: str
    algorithm: str = "GradientTracking"

    def run(self, node: Node) -> None:
        optimizer = optimizer_of(node, self.algorithm)
        steps(optimizer, 2)
        if node.rank == 1 and self.how == "dies":
            os._exit(17)
        if node.rank == 1 and self.how == "raises":
            raise TrainingError("rank 1 has had enough")
        if node.rank == 1 and self.how == "sleeps":
            time.sleep(20)
        if node.rank != 1 or self.how != "leaves":
            steps(optimizer, 3)


@pytest.mark.parametrize(
    ("how", "algorithm", "words"),
    [
        ("sleeps", "GradientTracking", "neighbour 1 did not answer within 4 s; parameters of iteration 2"),
        ("sleeps", "AllReduce", "did not answer within 4 s"),
        ("dies", "GradientTracking", "neighbour 1 is gone|rank 1 ended"),
        ("raises", "GradientTracking", "rank 1 has had enough"),
        ("leaves", "GradientTracking", "neighbour 1 has left after 2 steps"),
    ],
)
def test_a_neighbour_that_does_not_come_is_named(how: str, algorithm: str, words: str) -> None:
    """nccl's own watchdog would end the process without a name."""
    with pytest.raises(LaunchError, match=words):
        start_on_fake_gpus(Late(how, algorithm), 4, timeout=4)


@dataclass
class Signalled:
    """Rank 0 is asked to stop while its GPU waits for rank 1."""

    def run(self, node: Node) -> tuple[int, float]:
        optimizer = optimizer_of(node)
        steps(optimizer, 1)
        node.stop_on_signals()
        handled: list[float] = []
        if node.is_main:
            before = signal.getsignal(signal.SIGALRM)
            signal.signal(signal.SIGALRM, lambda *_: (handled.append(time.monotonic()), os.kill(os.getpid(), 15)))
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            since = time.monotonic()
        if node.rank == 1:
            time.sleep(3)
        made = 1
        while not optimizer.stop_now:
            steps(optimizer, 1)
            made += 1
        if node.is_main:
            signal.signal(signal.SIGALRM, before)
        return made, handled[0] - since if handled else 0.0


def test_a_signal_is_handled_while_the_gpu_waits() -> None:
    found = start_on_fake_gpus(Signalled(), 4, timeout=20)
    assert len({made for made, _ in found.values()}) == 1
    assert found[0][1] < 2


# -------------------------------------------------------------------------------------------------------------- numbers


@dataclass
class NotANumber:
    """A gradient of rank 1 is not finite at iteration 1; `then` is what the ranks do after that step."""

    then: str
    algorithm: str = "GradientTracking"

    def run(self, node: Node) -> None:
        optimizer = optimizer_of(node, self.algorithm)
        steps(optimizer, 1)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, float("nan") if node.rank == 1 else 1.0)
        optimizer.step()
        if self.then == "save":
            optimizer.state_dict()
        elif self.then == "average":
            with optimizer.network.average(torch.nn.ParameterList(optimizer.param_groups[0]["params"])):
                pass
        else:
            steps(optimizer, 1)
        ledger.fault("a number that is not finite was kept")


@pytest.mark.parametrize(
    ("then", "algorithm"), [("step", "GradientTracking"), ("save", "GradientTracking"), ("average", "AllReduce")]
)
def test_a_number_that_is_not_finite_is_noticed_before_it_is_kept(then: str, algorithm: str) -> None:
    with pytest.raises(LaunchError, match=r"is not finite at iteration [12]"):
        start_on_fake_gpus(NotANumber(then, algorithm), 3, timeout=5)


@dataclass
class OtherRate:
    def run(self, node: Node) -> None:
        optimizer = optimizer_of(node)
        steps(optimizer, 2)
        if node.rank == 2:
            optimizer.param_groups[0]["lr"] = 0.2
        steps(optimizer, 3)


def test_another_lr_is_named() -> None:
    with pytest.raises(LaunchError, match=r"lr is 0\.\d on|lr is 0\.\d here and 0\.\d on neighbour"):
        start_on_fake_gpus(OtherRate(), 3, timeout=5)


@dataclass
class Gloo:
    """GPUs that share a card, or ranks without one, take gloo and pinned memory."""

    def run(self, node: Node) -> list[float]:
        assert node.backend == "gloo"
        model = torch.nn.BatchNorm1d(4).to(node.device)
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        buffers = dgt.MixedBuffers(model, network)
        model.running_mean.fill_(float(node.rank))
        buffers.mix()
        optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network)
        steps(optimizer, 3)
        optimizer.drain()
        found: list[float] = [*model.running_mean.cpu().tolist(), *model.weight.detach().cpu().tolist()]
        return found


def test_buffers_are_mixed_on_gpus_over_gloo() -> None:
    """Once, messages in main memory were added to buffers on a GPU."""
    found = start_on_fake_gpus(Gloo(), 3, backend="gloo")
    assert found[0][:4] == pytest.approx([1.0] * 4, abs=0.4)
    assert found[0] != found[1]
