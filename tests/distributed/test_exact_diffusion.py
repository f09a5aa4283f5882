"""Exact diffusion on real ranks: the twin number by number, what is refused, messages under way, losses and faults."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgt
from dgt.config import STRATEGIES, AlgorithmConfig, Config, ProblemConfig, ScheduleConfig
from dgt.errors import LaunchError
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks
from tests.distributed.runs import metrics, train
from tests.distributed.test_twin import WIDE, TrainAll, assert_same, config_for, twin

pytestmark = pytest.mark.timeout(180)

FALLING = ScheduleConfig(name="step", every=5)  # to a tenth


def config_of(strategy: str, form: str = "diffusion", nodes: int = 5, **changes: Any) -> Config:
    """As of the twin's tests; algorithm settings among the changes go where they belong."""
    own = {key: changes.pop(key) for key in ("momentum", "nesterov") if key in changes}
    config = config_for("exponential", nodes, "", strategy=strategy, algorithm="exact_diffusion", **changes)
    return dataclasses.replace(config, algorithm=AlgorithmConfig(name="exact_diffusion", form=form, **own))


EITHER: tuple[dict[str, Any], ...] = (
    {"momentum": 0.9, "schedule": FALLING},
    {"momentum": 0.9, "nesterov": True, "problem": WIDE, "schedule": FALLING},
    {"momentum": 0.9, "wire": "bfloat16", "local_steps": 2, "problem": WIDE},
)
EXTRA: tuple[dict[str, Any], ...] = (
    {"schedule": FALLING},
    {"problem": WIDE, "overlap": False},
    {"problem": WIDE, "wire": "float16"},
    {"problem": WIDE, "local_steps": 3},
)


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_every_form_equals_the_twin(transport: str) -> None:
    """What the twin's own tests leave out: momentum, a step that falls to a tenth on the way, and form=extra."""
    forms = [("I", "diffusion"), ("II", "diffusion"), ("II", "extra")]
    cases = [(name, form, changes) for name, form in forms for changes in EITHER]
    cases += [("II", "extra", changes) for changes in EXTRA]
    configs = [config_of(name, form, transport=transport, iterations=14, **changes) for name, form, changes in cases]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        assert_same(rows, twin(config), config)


def test_ranks_reach_the_optimum_to_1e_10_though_lr_falls_to_a_tenth() -> None:
    exact = {"problem": ProblemConfig(noise=0.0), "iterations": 700, "eval_every": 350, "lr": 0.08}
    falling = ScheduleConfig(name="step", every=450)
    configs = [
        config_of(name, form, schedule=falling, **{**exact, **changes})
        for name, form in (*((name, "diffusion") for name in STRATEGIES), ("II", "extra"))
        for changes in ({"momentum": 0.9, "lr": 0.008}, {"wire": "bfloat16"})
    ]
    for config, rows in zip(configs, run_ranks(TrainAll(configs), 5)[0], strict=True):
        for metric in ("distance", "consensus"):
            assert rows[-1][1][metric][0] < 1e-10, (metric, config)


class Refused:
    """What cannot work, on three ranks of which one has a row that is not lazy enough."""

    def run(self, node: Node) -> list[str]:
        def made(strategy: str = "II", laziness: float = 0.35, **options: Any) -> None:
            network = dgt.Network(node, dgt.graphs.ring(3), [1.0, 2.0, 3.0], strategy, laziness)
            dgt.ExactDiffusion([torch.nn.Parameter(torch.zeros(2))], 0.1, network, **options)

        said = []
        for wrong in (
            {"laziness": 0.2},
            {"form": "extra", "strategy": "I"},
            {"base": torch.optim.AdamW},
            {"form": "extra", "bucket_mb": 1},
        ):
            with pytest.raises(dgt.ConfigError) as caught:
                made(**wrong)
            said.append(str(caught.value))
        made()  # and the ranks are still in step
        return said


def test_what_cannot_work_is_refused_on_all_ranks_in_a_sentence() -> None:
    told = run_ranks(Refused(), 3)
    for said in told.values():
        assert said[0].startswith("laziness: W_ii=0.2 on node 0, and ExactDiffusion needs more than 1/3 on every node")
        assert "give laziness=0.35" in said[0]
        assert said[1].startswith("form=extra: not with Strategy I")
        assert said[2].startswith("base=AdamW: not with exact diffusion, whose correction is stable only if")
        assert said[3].startswith("bucket_mb=1: not with form=extra")


def pull(parameter: torch.nn.Parameter, node: Node) -> None:
    """The gradient of |theta - (1 + rank)|^2 / 2, with a curvature of its own."""
    parameter.grad = (1 + 0.5 * node.rank) * (parameter.detach() - (1 + node.rank))


OPTIMUM = sum((1 + r) * (1 + 0.5 * r) * (1 + r) for r in range(3)) / sum((1 + r) * (1 + 0.5 * r) for r in range(3))
WAYS: dict[str, dict[str, Any]] = {
    "small": {},
    "extra": {"form": "extra"},
    "extra, narrow": {"form": "extra", "wire": "bfloat16", "momentum": 0.5},
    "extra, local steps": {"form": "extra", "local_steps": 2},
    "narrow": {"wire": "bfloat16", "local_steps": 2},
}


@dataclass
class UnderWay:
    """States that are taken in the middle, and parameters that are changed, while messages travel."""

    transport: str

    def run(self, node: Node) -> dict[str, tuple[bool, float, float]]:
        return {way: self._one(node, options) for way, options in WAYS.items()}

    def _one(self, node: Node, options: dict[str, Any]) -> tuple[bool, float, float]:
        theta = torch.nn.Parameter(torch.full((4,), float(node.rank), dtype=torch.float64))
        network = dgt.Network(node, dgt.graphs.ring(3), [1.0, 2.0, 3.0], laziness=0.35, transport=self.transport)
        optimizer = dgt.ExactDiffusion([theta], 0.1, network, **options)

        def steps(count: int) -> torch.Tensor:
            for _ in range(count):
                pull(theta, node)
                optimizer.step()
            return theta.detach().clone()

        steps(5)
        state, values = copy.deepcopy(optimizer.state_dict()), theta.detach().clone()
        once = steps(6)
        optimizer.load_state_dict(state)
        with torch.no_grad():
            theta.copy_(values)
        repeated = bool(torch.equal(once, steps(6)))
        with torch.no_grad():  # in place on one node, another model on all
            if node.rank == 1:
                theta.add_(3.0)
        steps(1)
        theta.data = torch.full((4,), 7.0 - node.rank, dtype=torch.float64)
        steps(400)
        residual = float(node.all_reduce(optimizer.tracking_error()).abs().max())
        return repeated, residual, float((theta.detach() - OPTIMUM).abs().max())


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_states_and_changes_while_a_message_travels_are_sound(transport: str) -> None:
    for rank, ways in run_ranks(UnderWay(transport), 3).items():
        for way, (repeated, residual, distance) in ways.items():
            assert repeated, (rank, way)
            assert residual < 1e-10, (rank, way)
            assert distance < 1e-10, (rank, way)


@dataclass
class LongInFloat32:
    """Hundreds of noisy steps in float32, on a narrow wire."""

    STEPS = 600

    def run(self, node: Node) -> dict[str, float]:
        drawn, told = torch.Generator().manual_seed(node.rank), {}
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0, 2.0, 3.0], laziness=0.35)
        for make in (dgt.ExactDiffusion, dgt.GradientTracking):
            theta = torch.nn.Parameter(torch.zeros(300))
            optimizer = make([theta], 0.02, network, wire="bfloat16")
            for _ in range(self.STEPS):
                theta.grad = 5 * (theta.detach() - 1 - node.rank) + torch.randn(300, generator=drawn)
                optimizer.step()
            told[make.__name__] = float(node.all_reduce(optimizer.tracking_error().double()).square().mean().sqrt())
        return told


def test_what_sums_to_zero_does_so_in_float32_on_a_narrow_wire() -> None:
    """Estimates of a narrow wire were float32: their rounding was added up twice, and after 20,000 steps the mean of
    the trackers was 0.03 of their size, that of corrections as large as they are."""
    for name, mean in run_ranks(LongInFloat32(), 3, timeout=60)[0].items():
        assert mean < 2e-5, name


LEAST = ["weights=[1,2,3,4]", "topology=ring", "algorithm=exact_diffusion", "timeout=20", "checkpoint.keep_last=0"]


@pytest.mark.parametrize("form", ["diffusion", "extra"])
def test_after_a_loss_corrections_start_anew_and_the_others_reach_their_optimum(form: str, tmp_path: Path) -> None:
    lost = ["chaos=kill", "chaos.rank=2", "chaos.iteration=30", "on_peer_loss=continue", f"algorithm.form={form}"]
    train(tmp_path / "r", *LEAST, *lost, "iterations=450", "eval_every=100", "problem.noise=0", "lr=0.08")
    assert metrics(tmp_path / "r")[-1]["distance"] < 1e-10


def test_a_node_that_loses_its_correction_raises_the_alarm(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"the corrections of the nodes no longer add up to zero at iteration \d+"):
        train(tmp_path / "r", *LEAST, "iterations=60", "chaos=forget", "chaos.iteration=31")


def test_a_config_takes_the_laziness_of_its_algorithm() -> None:
    from dgt.config.compose import compose
    from dgt.config.fragment import overrides_of

    config = compose(["algorithm=exact_diffusion"])
    assert (config.laziness, compose([]).laziness, compose(["laziness=0.5"]).laziness) == (0.35, 0.3, 0.5)
    assert compose(overrides_of(config)) == config
    assert Config.from_dict(config.to_dict()) == config
    with pytest.raises(dgt.ConfigError, match=r"^form=extra: not with Strategy I"):
        compose(["algorithm=exact_diffusion", "algorithm.form=extra", "strategy=I"])
    with pytest.raises(dgt.ConfigError, match=r"^algorithm.base=AdamW: not with exact diffusion"):
        compose(["algorithm=exact_diffusion", "algorithm.base=adamw"])
    assert np.isclose(compose(["algorithm=exact_diffusion", "algorithm.momentum=0.9"]).lr, 0.002)
