"""Schedules on real ranks: against the twin at every iteration, with random delays, resumed, stopped, with losses."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import dgt
from dgt.config import AlgorithmConfig, Config, ProblemConfig, TopologyConfig
from dgt.errors import LaunchError
from dgt.exchange.partners import ScheduledPending
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training.setup import network_of
from tests.distributed.ranks import run_ranks
from tests.distributed.runs import NOISY, assert_identical, commits, metrics
from tests.distributed.runs import train as train_run
from tests.distributed.test_twin import TrainAll, assert_same, config_for, twin

pytestmark = pytest.mark.timeout(240)
WIDE = ProblemConfig(dimension=20_000)  # several messages of a socket's buffer long
ONE_PEER, TWICE = TopologyConfig(name="one_peer"), TopologyConfig(name="one_peer", rounds=2)
EXPONENTIAL = TopologyConfig(name="one_peer_exponential")
GENERAL = TopologyConfig(_target_="tests.distributed.test_one_peer.ring_and_star")


def ring_and_star(n: int) -> list[nx.Graph]:
    """No matchings: Metropolis rows of each exchange's graph; in the third exchange everybody idles."""
    return [nx.cycle_graph(n), nx.star_graph(n - 1), nx.empty_graph(n)]


def tracking(**settings: Any) -> AlgorithmConfig:
    return AlgorithmConfig(name="gradient_tracking", **settings)


def configs_for(nodes: int, transport: str) -> list[Config]:
    cases: list[tuple[TopologyConfig, str, AlgorithmConfig, dict[str, Any]]] = [
        (ONE_PEER, "II", tracking(momentum=0.9), {}),
        (ONE_PEER, "I", tracking(), {"problem": WIDE, "local_steps": 2}),
        (ONE_PEER, "II", AlgorithmConfig(name="dsgd"), {"overlap": False}),
        (TWICE, "II", tracking(momentum=0.9, nesterov=True), {"local_steps": 3}),
        (TWICE, "I", tracking(base="adamw", base_form="predicted"), {}),
        (EXPONENTIAL, "II", tracking(base="adamw"), {}),
        (GENERAL, "II", tracking(momentum=0.5), {"problem": WIDE}),
    ]
    return [
        dataclasses.replace(
            config_for("ring", nodes, "", strategy=strategy, transport=transport, iterations=9, **changes),
            topology=topology, algorithm=algorithm,
        )
        for topology, strategy, algorithm, changes in cases
    ]  # fmt: skip


@pytest.mark.parametrize(("nodes", "transport"), [(4, "auto"), (5, "auto"), (5, "messages")])
def test_ranks_equal_the_twin_on_schedules(nodes: int, transport: str) -> None:
    configs = configs_for(nodes, transport)
    for config, rows in zip(configs, run_ranks(TrainAll(configs), nodes)[0], strict=True):
        config.check_targets()
        assert_same(rows, twin(config), config)


@dataclass
class Delayed(TrainAll):
    """Ranks that stop at random places of an exchange: before they read, and before they say that they have read."""

    def run(self, node: Node) -> Any:
        draw = random.Random(node.rank)
        shared, mix_finish = ScheduledPending.shared, ScheduledPending.finish

        def hesitate() -> None:
            if draw.random() < 0.02:
                time.sleep(0.15)

        def late(pending: ScheduledPending) -> Any:
            hesitate()
            found = shared(pending)
            hesitate()
            return found

        def finish(pending: ScheduledPending) -> None:
            hesitate()
            mix_finish(pending)

        ScheduledPending.shared, ScheduledPending.finish = late, finish  # type: ignore[method-assign]
        return super().run(node)


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_no_message_is_overwritten_before_it_is_read(transport: str) -> None:
    """With partners that change, a rank may write its next message but one while the reader of this one is late.

    Without `ScheduledOutbox.claim` it does: ranks find messages of other numbers, or other values. Evaluations are
    rare, because all ranks wait for each other there.
    """
    wide = ProblemConfig(dimension=3000) if transport == "auto" else WIDE
    config = config_for("ring", 6, "", problem=wide, iterations=90, eval_every=45, transport=transport)
    config = dataclasses.replace(config, topology=TopologyConfig(name="one_peer", schedule="matching"))
    (rows,) = run_ranks(Delayed([config]), 6)[0]
    assert_same(rows, twin(config), config)


SHORT = ["iterations=24", "eval_every=4", "checkpoint.every=8", "problem.pause=0"]


@pytest.mark.parametrize(("width", "transport"), [(16, "auto"), (4000, "messages")])
def test_a_run_that_was_stopped_goes_on_to_the_last_bit(width: int, transport: str, tmp_path: Path) -> None:
    """The stop comes to all ranks at one step; partners follow the step, those of BatchNorm's statistics too."""
    settings = [*NOISY, *SHORT, "weights=[1,2,3,4,5]", "topology=one_peer", f"problem.width={width}"]
    settings.append(f"transport={transport}")
    train_run(tmp_path / "whole", *settings)
    with pytest.raises(LaunchError, match=r"stopped (by SIGTERM )?at iteration (\d+)"):
        train_run(tmp_path / "parts", *settings, "chaos=term", "chaos.rank=3", "chaos.iteration=5")
    assert commits(tmp_path / "parts")[-1].world == 5
    train_run(tmp_path / "parts", *settings, "resume=auto")
    assert_identical(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_those_left_after_a_loss_go_on_with_one_partner_at_a_time(transport: str, tmp_path: Path) -> None:
    loss = ["on_peer_loss=continue", "chaos=kill", "chaos.rank=2", "chaos.iteration=9", f"transport={transport}"]
    train_run(tmp_path / "run", *NOISY, *SHORT, "topology=one_peer", *loss)
    assert metrics(tmp_path / "run")[-1]["iteration"] == 24
    whole, left = json.loads((tmp_path / "run" / "network.json").read_text())
    assert whole["schedule"] == {"exchanges": 2, "rounds": 1, "one_peer": True}
    assert left["nodes"] == [0, 1, 3]
    assert left["schedule"]["one_peer"]
    assert commits(tmp_path / "run")[-1].world == 3


@dataclass
class Refused:
    """What a schedule does not go with; and a rank with another schedule."""

    def run(self, node: Node) -> list[str]:
        network = dgt.Network(node, dgt.schedules.one_peer([1.0, 1.0, 2.0], rounds=2), [1.0, 1.0, 2.0])
        assert network.schedule is not None
        found = []
        for algorithm, options in ((dgt.DSGD, {"wire": "bfloat16"}), (Static, {}), (dgt.DSGD, {"bucket_mb": 1})):
            with pytest.raises(dgt.ConfigError) as caught:
                algorithm([torch.nn.Parameter(torch.zeros(3))], lr=0.1, network=network, **options)
            found.append(str(caught.value))
        dgt.Network(node, dgt.schedules.matching(3, seed=int(node.rank == 2)), [1.0, 1.0, 2.0])
        return found


class Static(dgt.DSGD):
    needs_static_graph = True


def test_what_a_schedule_does_not_go_with_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"ranks disagree on graph: 8 exchanges, .* on ranks 0, 1; .* on rank 2"):
        run_ranks(Refused(), 3)
    for overrides, words in (
        ({"wire": "bfloat16"}, "^wire=bfloat16: not on a schedule"),
        ({"algorithm": AlgorithmConfig(_target_=f"{__name__}.Static")}, "^Static: needs the same neighbours at every"),
    ):
        config = dataclasses.replace(config_for("ring", 3, ""), topology=ONE_PEER, **overrides)
        with pytest.raises(dgt.ConfigError, match=words):
            network_of(config, Placement("alone"))


@dataclass
class OwnLoop:
    """The library: a schedule of one's own, and a rank that makes a step less."""

    bucket_mb: float = 0
    uneven: bool = False

    def run(self, node: Node) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 300), torch.nn.Linear(300, 1)).double()
        pairs = [[(0, 1), (2, 3)], [(1, 2), (0, 3)]]
        network = dgt.Network(node, dgt.schedules.cycle(pairs, n=4), [1, 2, 3, 4])
        optimizer = dgt.GradientTracking(
            model.parameters(), lr=0.01, network=network, bucket_mb=self.bucket_mb, model=model
        )
        for _ in range(20 - (self.uneven and node.rank == 1)):
            optimizer.zero_grad()
            (model(torch.ones(1, 2, dtype=torch.float64)) - node.rank).square().sum().backward()
            optimizer.step()
        optimizer.drain()
        return [float(parameter.detach().sum()) for parameter in model.parameters()]


def test_buckets_during_backward_give_the_same_numbers() -> None:
    assert run_ranks(OwnLoop(bucket_mb=0.001), 4) == run_ranks(OwnLoop(), 4)


def test_a_rank_that_makes_a_step_less_is_named() -> None:
    with pytest.raises(LaunchError, match=r"neighbour 1 has left after 19 steps"):
        run_ranks(OwnLoop(uneven=True), 4)
