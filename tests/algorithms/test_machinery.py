"""Overlap, buckets, narrow wire and local steps belong to no algorithm: DSGD and one from outside have them too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import dgt
from dgt import reference
from dgt.algorithms import DecentralizedOptimizer, Message, NeighbourOptimizer, Views
from dgt.config import registry
from dgt.errors import ConfigError, LaunchError
from dgt.network.mixing import mixing_matrix
from dgt.processes.node import Node
from tests.algorithms.toy import Toy
from tests.distributed.ranks import run_ranks
from tests.distributed.test_library import TINY, Loop, assert_equals_the_twin

pytestmark = pytest.mark.timeout(180)

NARROW = {"wire": "bfloat16", "local_steps": 2}
HEAVY = {"momentum": 0.5}
ADAMW = {"base": "adamw", "base_options": {"betas": (0.8, 0.99), "weight_decay": 0.1}}
LOOPS = {
    "DSGD, groups, scheduler, clipping": Loop(algorithm=dgt.DSGD, strategy="I", groups=True, schedule=True, clip=True),
    "DSGD, narrow wire, local steps, state_dict": Loop(algorithm=dgt.DSGD, options=NARROW, groups=True, reload=True),
    "DSGD, buckets, groups, scheduler": Loop(algorithm=dgt.DSGD, options=TINY, groups=True, schedule=True),
    "DSGD, buckets, narrow wire, local steps, state_dict": Loop(
        algorithm=dgt.DSGD, options={**TINY, **NARROW}, reload=True
    ),
    "AllReduce, groups, scheduler": Loop(algorithm=dgt.AllReduce, strategy="I", groups=True, schedule=True),
    "AllReduce, state_dict": Loop(algorithm=dgt.AllReduce, reload=True),
    "momentum, groups, scheduler": Loop(options={"momentum": 0.8}, strategy="I", groups=True, schedule=True),
    "Nesterov, narrow wire, local steps, state_dict": Loop(
        options={"momentum": 0.8, "nesterov": True, **NARROW}, groups=True, reload=True
    ),
    "Nesterov, buckets, groups, scheduler": Loop(
        options={"momentum": 0.8, "nesterov": True, **TINY}, groups=True, schedule=True
    ),
    "DSGD, momentum, state_dict": Loop(algorithm=dgt.DSGD, options={"momentum": 0.8}, strategy="I", reload=True),
    "AllReduce, Nesterov, groups, state_dict": Loop(
        algorithm=dgt.AllReduce, options={"momentum": 0.8, "nesterov": True}, groups=True, reload=True
    ),
    "AdamW, state_dict, in pieces": Loop(options=ADAMW, reload=True, piece=7),
    "AdamW, buckets, narrow wire, local steps, state_dict": Loop(options={**ADAMW, **TINY, **NARROW}, reload=True),
    "AdamW on the own tracker, local steps": Loop(
        options={**ADAMW, "base_form": "own", "local_steps": 2}, strategy="I", schedule=True, clip=True
    ),
    "AMSGrad on the own tracker, buckets": Loop(
        options={"base": "adam", "base_options": {"amsgrad": True}, "base_form": "own", **TINY}, schedule=True
    ),
    "AdamW predicted, buckets, narrow wire, local steps": Loop(
        options={**ADAMW, **TINY, **NARROW, "base_form": "predicted"}, reload=True
    ),
    "AdamW together, local steps, in pieces": Loop(
        options={**ADAMW, "base_form": "together", "local_steps": 2}, strategy="I", schedule=True, piece=16
    ),
    "AdamW together, narrow wire, state_dict": Loop(
        options={**ADAMW, "base_form": "together", "wire": "bfloat16"}, reload=True, piece=16
    ),
    "RMSprop, Strategy I": Loop(options={"base": "rmsprop"}, strategy="I", reload=True),
    "DSGD, Adam, local steps, state_dict": Loop(
        algorithm=dgt.DSGD, options={"base": "adam", "local_steps": 2}, strategy="I", reload=True
    ),
    "AllReduce, AdamW, state_dict": Loop(algorithm=dgt.AllReduce, options=ADAMW, reload=True),
    "int8, local steps, state_dict": Loop(options={"wire": "int8", "local_steps": 2}, groups=True, reload=True),
    "Nesterov, buckets, int4, state_dict": Loop(
        options={"momentum": 0.8, "nesterov": True, **TINY, "wire": "int4"}, strategy="I", reload=True
    ),
    "AdamW together, int4": Loop(options={**ADAMW, "base_form": "together", "wire": "int4"}),
    "DSGD, buckets, int8": Loop(algorithm=dgt.DSGD, options={**TINY, "wire": "int8"}, groups=True),
    "from outside, int4, local steps, state_dict": Loop(
        algorithm=Toy, options={**HEAVY, "wire": "int4", "local_steps": 2}, reload=True
    ),
    "from outside": Loop(algorithm=Toy, options=HEAVY, strategy="I", groups=True, reload=True),
    "from outside, buckets, scheduler": Loop(algorithm=Toy, options={**HEAVY, **TINY}, groups=True, schedule=True),
    "from outside, buckets, narrow wire, local steps": Loop(
        algorithm=Toy, options={**HEAVY, **TINY, **NARROW}, reload=True
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_any_algorithm_on_ranks_equals_its_twin_with_every_option(loop: str) -> None:
    assert_equals_the_twin(LOOPS[loop])


@pytest.fixture
def network() -> Iterator[dgt.Network]:
    with dgt.join(device="cpu") as node:
        yield dgt.Network(node, dgt.graphs.complete(1), [1.0])


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (dgt.AllReduce, {"wire": "bfloat16"}, "wire=bfloat16: not with AllReduce; leave it out"),
        (dgt.AllReduce, {"local_steps": 2}, "local_steps=2: not with AllReduce; leave it out"),
        (dgt.AllReduce, {"bucket_mb": 1.0}, "bucket_mb=1.0: not with AllReduce; leave it out"),
        (dgt.DSGD, {"bucket_mb": 1.0}, r"bucket_mb=1: give the model too, DSGD\(..., model=model\)"),
        (
            dgt.DSGD,
            {"wire": "int1"},
            r"wire=int1: did you mean int8 or int4\? allowed: full, bfloat16, float16, int8, int4",
        ),
        (Toy, {"momentum": 1.5}, "momentum=1.5: must be"),
    ],
)
def test_options_that_an_algorithm_does_not_have_are_refused_in_a_sentence(
    make: type[DecentralizedOptimizer], options: dict[str, Any], words: str, network: dgt.Network
) -> None:
    with pytest.raises(ConfigError, match=words):
        make(parameters(), lr=0.1, network=network, **options)


def test_settings_are_keyword_arguments_and_entries_of_the_groups(network: dgt.Network) -> None:
    optimizer = Toy([{"params": parameters()}, {"params": parameters(), "momentum": 0.2}], 0.1, network, momentum=0.7)
    assert optimizer.settings.momentum == 0.7
    assert [group["momentum"] for group in optimizer.param_groups] == [0.7, 0.2]
    with pytest.raises(ConfigError, match="momentum=-1: must be"):
        Toy([{"params": parameters(), "momentum": -1}], 0.1, network)
    with pytest.raises(TypeError, match="beta"):
        dgt.DSGD(parameters(), 0.1, network, beta=0.5)


@dataclass
class Different:
    def run(self, node: Node) -> None:
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        Toy(parameters(), 0.1, network, momentum=0.5 + 0.1 * (node.rank == 1))


def test_ranks_agree_on_settings_of_an_algorithm_before_the_first_step() -> None:
    with pytest.raises(LaunchError, match=r"ranks disagree on momentum: 0.5 on rank 0; 0.6 on rank 1"):
        run_ranks(Different(), 2)


class Two(NeighbourOptimizer):
    """Two messages that are needed at once, the second made of the first: theta' = W (theta - alpha W g)."""

    messages = (Message("y", "tracker"), Message("z", "parameters"))
    supports = NeighbourOptimizer.supports - {"local_steps"}

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        at.y.copy_(gradient)

    def receive(self, message: str, stream: Any, at: Views) -> None:
        if message == "y":
            self.direction = torch.empty_like(at.theta)
            stream.mix(self.direction)
            torch.sub(at.theta, self.direction, alpha=self.param_groups[0]["lr"], out=at.z)
        else:
            stream.mix(at.theta)


@dataclass
class Steps:
    def run(self, node: Node) -> list[float]:
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        theta = torch.nn.Parameter(torch.full((2,), float(node.rank), dtype=torch.float64))
        optimizer = Two([theta], 0.1, network)
        for _ in range(5):
            theta.grad = theta.detach() - node.rank
            optimizer.step()
        with pytest.raises(ConfigError, match="local_steps=2: not with Two"):
            Two([theta], 0.1, network, local_steps=2)
        return theta.tolist()


def test_a_message_may_be_made_of_the_one_before() -> None:
    W, rank = mixing_matrix(dgt.graphs.ring(3), dgt.weights.normalise([1.0] * 3)).toarray(), torch.arange(3.0).numpy()
    theta = rank.astype(float)
    for _ in range(5):
        theta = W @ (theta - 0.1 * W @ (theta - rank))
    found = run_ranks(Steps(), 3)
    assert [found[node][0] for node in range(3)] == pytest.approx(theta, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "options", "keys"),
    [
        (dgt.GradientTracking, {}, {"rest"}),
        (
            dgt.GradientTracking,
            {"wire": "bfloat16"},
            {"rest", "z_estimate_0", "z_neighbours_estimate_0", "y_estimate_0", "y_neighbours_estimate_0"},
        ),
        (dgt.DSGD, {}, set()),
        (dgt.DSGD, {"wire": "int4"}, {"z_estimate_0", "z_neighbours_estimate_0"}),
        (dgt.DSGD, {"wire": "float16"}, {"z_estimate_0", "z_neighbours_estimate_0"}),
        (dgt.AllReduce, {}, set()),
        (dgt.ExactDiffusion, {"wire": "bfloat16"}, {"correction", "h_estimate_0", "h_neighbours_estimate_0"}),
        (dgt.ExactDiffusion, {"form": "extra", "momentum": 0.9}, {"correction", "difference", "momentum"}),
        (Toy, {}, {"u", "c"}),
    ],
)
def test_names_in_a_state_are_those_of_checkpoints_written_before(
    make: type[DecentralizedOptimizer], options: dict[str, Any], keys: set[str], network: dgt.Network
) -> None:
    state = make(parameters(), 0.1, network, **options).state_dict()["dgt"]
    assert state.keys() == {"algorithm", "iteration", "layout"} | keys


def test_estimates_of_version_0_1_0_are_taken_over(network: dgt.Network) -> None:
    """They were kept with the node's own part; alone in a network, that is all of it."""
    optimizer = dgt.DSGD(parameters(), 0.1, network, wire="bfloat16")
    state = optimizer.state_dict()
    estimate = torch.tensor([1.0, 2.0, 3.0])
    del state["dgt"]["z_neighbours_estimate_0"]
    state["dgt"] |= {"z_estimate_0": estimate, "z_mixed_estimate_0": estimate + 0.5}
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["dgt"]["z_neighbours_estimate_0"].tolist() == [0.5, 0.5, 0.5]


def test_every_module_is_an_algorithm_with_a_twin() -> None:
    assert registry.names("algorithm") == ("allreduce", "dsgd", "exact_diffusion", "gradient_tracking")
    for name in registry.names("algorithm"):
        assert issubclass(registry.find("algorithm", name), DecentralizedOptimizer)
        assert reference.named(name) is not None
    with pytest.raises(
        ConfigError, match="algorithm=machinery: allowed: allreduce, dsgd, exact_diffusion, gradient_tracking"
    ):
        registry.find("algorithm", "machinery")
