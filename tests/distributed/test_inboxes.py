"""Receives that are posted early: nobody waits for a computing neighbour, and nothing of them is left at the end."""

from __future__ import annotations

import gc
import time

import pytest
import torch

import dgt
from dgt.errors import LaunchError, PeerError
from dgt.exchange import transport as transports
from dgt.exchange.inboxes import how_many
from dgt.exchange.transport import Transport
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(240)

SIZE = 2_000_000  # bytes: more than a socket holds


def complete(node: Node, transport: str = "messages") -> dgt.Network:
    return dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, transport=transport)


def optimizer_of(network: dgt.Network, size: int = 100_000) -> tuple[torch.nn.Parameter, dgt.GradientTracking]:
    theta = torch.nn.Parameter(torch.full((size,), float(network.node.rank)))
    return theta, dgt.GradientTracking([theta], lr=0.1, network=network)


def step(theta: torch.nn.Parameter, optimizer: dgt.GradientTracking) -> None:
    theta.grad = torch.ones_like(theta)
    optimizer.step()


class Computing:
    """From the second message on rank 0 computes for a while before it sends and receives; returns how long rank 1's
    message took to leave."""

    def run(self, node: Node) -> list[float]:
        outbox = Transport(node, [1 - node.rank], "messages").outbox("parameters", torch.empty(SIZE // 4))
        seconds = []
        for number in range(3):
            if node.rank == 0 and number:
                time.sleep(1)
            outbox.buffer.fill_(number)
            since = time.monotonic()
            pending = outbox.post(number)
            if node.rank:
                pending.finish()
                seconds.append(time.monotonic() - since)
            for _, theirs in pending.collect():
                assert bool((theirs == number).all())
            pending.finish()
        return seconds[1:]


def test_a_message_leaves_while_its_receiver_computes() -> None:
    """gloo keeps a large message back until its receive is posted."""
    assert max(run_ranks(Computing(), 2)[1]) < 0.5


class Patient:
    """All compute for longer than the timeout between two steps, with the next receives posted."""

    def run(self, node: Node) -> int:
        theta, optimizer = optimizer_of(complete(node))
        step(theta, optimizer)
        time.sleep(5)
        step(theta, optimizer)
        return optimizer.iteration


def test_patience_counts_from_when_a_message_is_wanted() -> None:
    assert run_ranks(Patient(), 2, timeout=4) == {0: 2, 1: 2}


class Deleted:
    """Optimizers are made, used and deleted, as the trials of lr=auto are; another one goes on."""

    def run(self, node: Node) -> tuple[int, float]:
        network = complete(node)
        theta, optimizer = optimizer_of(network)
        step(theta, optimizer)
        for _ in range(3):
            other, trial = optimizer_of(network)
            step(other, trial)
            trial.drain()
            if node.rank == 1:
                time.sleep(0.02)  # so that ranks delete theirs at different times
            del other, trial
            gc.collect()
            step(theta, optimizer)
        optimizer.drain()
        node.barrier()
        return sum(len(inboxes.frames) for inboxes in node.receivers), float(theta.detach().sum())


def test_a_deleted_optimizer_takes_its_receives_along() -> None:
    results = run_ranks(Deleted(), 3)
    assert {inboxes for inboxes, _ in results.values()} == {4}, "of the optimizer that is left: z and y, two neighbours"
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-3)


class Closing:
    """Rank 0 closes its connections with receives posted and the optimizer alive, as after an error."""

    def run(self, node: Node) -> float:
        theta, optimizer = optimizer_of(complete(node))
        step(theta, optimizer)
        optimizer.drain()
        if node.rank == 0:
            node.close_connections()
            time.sleep(3)
            raise SystemExit(0)
        since = time.monotonic()
        with pytest.raises(PeerError, match="neighbour 0 is gone"):
            step(theta, optimizer)
        assert time.monotonic() - since < 2, "not the timeout, and not the end of the other process"
        raise PeerError("as expected")


def test_posted_receives_do_not_keep_connections_open() -> None:
    with pytest.raises(LaunchError, match="as expected"):
        run_ranks(Closing(), 2, timeout=20)


class Sharing:
    """Five neighbours share two inboxes; all others have their own."""

    def run(self, node: Node) -> list[float]:
        sums = []
        for bound in (transports.MOST_BYTES, 0):
            transports.MOST_BYTES = bound
            theta, optimizer = optimizer_of(complete(node))
            for _ in range(4):
                step(theta, optimizer)
            optimizer.drain()
            z, y = optimizer.buckets[0].outboxes()
            assert (len(z.inboxes.frames), len(y.inboxes.frames)) == ((5, 5) if bound else (2, 1))
            sums.append(float(theta.detach().double().sum()))
        return sums


def test_neighbours_that_share_an_inbox_give_the_same_numbers() -> None:
    for alone, together in run_ranks(Sharing(), 6).values():
        assert alone == together


def test_inboxes_are_as_many_as_memory_allows() -> None:
    assert how_many(peers=5, least=2, frame_bytes=100, room=10**6) == 5
    assert how_many(peers=5, least=2, frame_bytes=100, room=350) == 3
    assert how_many(peers=5, least=2, frame_bytes=100, room=-50) == 2, "what is needed even so"
    assert how_many(peers=1, least=2, frame_bytes=100, room=0) == 1
    assert how_many(peers=0, least=2, frame_bytes=100, room=1000) == 0
