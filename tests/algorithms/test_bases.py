"""`base=`: any elementwise optimizer of torch on the tracked direction; others are refused in a sentence."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dgt
from dgt.errors import ConfigError

BASES = ["adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adagrad", "adadelta", "rprop", "asgd", "sgd"]
OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9, "weight_decay": 0.1}, "adamw": {"betas": (0.7, 0.9)}}


@pytest.fixture
def network() -> Iterator[dgt.Network]:
    with dgt.join(device="cpu") as node:
        yield dgt.Network(node, dgt.graphs.complete(1), [1.0])


def model_of(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    first, last = model[0], model[2]  # type: ignore[index]
    return [{"params": list(first.parameters()), "lr": 0.02}, {"params": list(last.parameters())}]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(8, 4, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9


def values(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("make", [dgt.GradientTracking, dgt.DSGD, dgt.AllReduce])
@pytest.mark.parametrize("name", BASES)
def test_on_a_single_node_a_base_is_that_optimizer_and_goes_on_after_state_dict(
    name: str, make: Any, network: dgt.Network
) -> None:
    kind = next(each for key, each in vars(torch.optim).items() if key.lower() == name)
    plain, ours = model_of(), model_of()
    reference = kind(groups_of(plain), lr=0.01, **OPTIONS.get(name, {}))
    optimizer = make(groups_of(ours), 0.01, network, base=name, base_options=OPTIONS.get(name))
    saved, before_first = optimizer.state_dict(), values(ours)
    train(plain, reference, range(6))
    train(ours, optimizer, range(6))
    torch.testing.assert_close(values(ours), values(plain), rtol=1e-9, atol=1e-11)

    middle, others = optimizer.state_dict(), model_of(1)
    others.load_state_dict(ours.state_dict())
    again = make(groups_of(others), 0.01, network, base=kind, base_options=OPTIONS.get(name))
    again.load_state_dict(middle)
    train(plain, reference, range(6, 9))
    train(others, again, range(6, 9))
    torch.testing.assert_close(values(others), values(plain), rtol=1e-9, atol=1e-11)

    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(before_first, others.parameters())
    again.load_state_dict(saved)  # from before the first step: no state yet
    train(others, again, range(6))
    fresh = model_of()
    train(fresh, kind(groups_of(fresh), lr=0.01, **OPTIONS.get(name, {})), range(6))
    torch.testing.assert_close(values(others), values(fresh), rtol=1e-9, atol=1e-11)


class Layerwise(torch.optim.SGD):
    """Scales a step by the norm of the whole parameter, as LARS does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"] * float(parameter.norm()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": "adma"}, "base=adma: did you mean adamax or adam.*adamw, asgd, nadam"),
        ({"base": "torch.optim.Nothing"}, "base=torch.optim.Nothing: cannot import it"),
        ({"base": "lbfgs"}, "base=LBFGS: it calls the model again by a closure"),
        ({"base": "sparseadam"}, "base=SparseAdam: its step fails on a vector"),
        ({"base": "muon"}, "base=Muon: it"),
        ({"base": Layerwise}, "base=Layerwise: it treats a parameter as a whole"),
        ({"base": torch.nn.Linear}, "base=Linear: must be a class derived from torch.optim.Optimizer"),
        ({"base": torch.optim.SGD([torch.zeros(1)], lr=1)}, "base=SGD.*: give the class"),
        ({"base": "adamw", "base_options": {"beta": 1}}, "base=AdamW: it cannot be made with .*beta=1"),
        ({"base": "adamw", "base_options": {"betas": [2, 0.9]}}, "base=AdamW: it cannot be made.*Invalid beta"),
        ({"base_options": {"betas": [0.9, 0.9]}}, "base_options=.*: of which base"),
        ({"base": "adamw", "momentum": 0.9}, "momentum=0.9: not with a base"),
        ({"momentum": 1.5}, "momentum=1.5: must be at least 0 and below 1"),
        ({"nesterov": True}, "nesterov=True: needs a momentum above 0"),
        ({"base": "rmsprop", "base_form": "predicted"}, "base_form=predicted: RMSprop has no first moment"),
        ({"base": "adamw", "base_form": "both"}, "base_form=both: allowed: mixed, together, predicted, own"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(options: dict[str, Any], words: str, network: dgt.Network) -> None:
    with pytest.raises(ConfigError, match=words):
        dgt.GradientTracking(model_of().parameters(), 0.1, network, **options)


def test_a_partial_is_a_base_too_and_its_own_decay_stays(network: dgt.Network) -> None:
    optimizer = dgt.GradientTracking(
        model_of().parameters(), 0.1, network, base=functools.partial(torch.optim.AdamW, weight_decay=0.3)
    )
    assert optimizer.param_groups[0]["weight_decay"] == 0.3
    assert dgt.DSGD(model_of().parameters(), 0.1, network, base="adamw").param_groups[0]["weight_decay"] == 0.01
    assert dgt.DSGD(model_of().parameters(), 0.1, network, 0.0, base="adamw").param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize("options", [{"base": "adam"}, {"momentum": 0.9}])
def test_one_cycle_moves_momentum_or_betas(options: dict[str, Any], network: dgt.Network) -> None:
    model = model_of()
    optimizer = dgt.GradientTracking(model.parameters(), 0.01, network, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=8)
    plain = model_of()
    kind = torch.optim.Adam(plain.parameters(), lr=0.01) if "base" in options else None
    reference = kind or torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    others = torch.optim.lr_scheduler.OneCycleLR(reference, max_lr=0.01, total_steps=8)
    for step in range(7):
        train(model, optimizer, range(step, step + 1))
        train(plain, reference, range(step, step + 1))
        scheduler.step()
        others.step()
    torch.testing.assert_close(values(model), values(plain), rtol=1e-9, atol=1e-11)


def test_momentum_that_a_scheduler_brings_is_not_ignored(network: dgt.Network) -> None:
    model = model_of()
    optimizer = dgt.GradientTracking(model.parameters(), 0.01, network)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=8)
    with pytest.raises(ConfigError, match=r"momentum=0.95 from step 0 on: .* or cycle_momentum=False"):
        train(model, optimizer, range(1))


class Growing(torch.optim.SGD):
    """Counts in its parameter group, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["dampening"] += 0.1
        super().step()


class Lion(torch.optim.Optimizer):
    """m' = b2 m + (1 - b2) g: a first moment that is not Adam's."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.sub_(lr * torch.sign(b1 * m + (1 - b1) * p.grad))
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": Growing}, r"base=Growing: it keeps state \(dampening\) in its parameter groups"),
        ({"base": Lion, "base_form": "predicted"}, "base_form=predicted: Lion has no first moment"),
        (
            {"base": "adam", "base_options": {"maximize": True}, "base_form": "predicted"},
            "base_form=predicted: Adam has no first moment",
        ),
        ({"base_form": "own"}, "base_form=own: of which base"),
    ],
)
def test_bases_whose_state_is_elsewhere_are_refused(options: dict[str, Any], words: str, network: dgt.Network) -> None:
    with pytest.raises(ConfigError, match=words):
        dgt.GradientTracking(model_of().parameters(), 0.1, network, **options)


def test_state_that_a_group_turns_on_is_refused_as_it_would_not_be_saved(network: dgt.Network) -> None:
    model = model_of()
    groups = groups_of(model)
    groups[0]["momentum"] = 0.9
    optimizer = dgt.GradientTracking(groups, 0.01, network, base="sgd")
    with pytest.raises(ConfigError, match="base=SGD: it keeps momentum_buffer now, and did not when it was made"):
        train(model, optimizer, range(1))


def test_a_lion_is_a_base_and_a_function_may_make_one(network: dgt.Network) -> None:
    model, plain = model_of(), model_of()
    train(model, dgt.GradientTracking(model.parameters(), 0.01, network, base=lambda p, lr: Lion(p, lr)), range(4))
    train(plain, Lion(plain.parameters(), 0.01), range(4))
    torch.testing.assert_close(values(model), values(plain), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", ["mixed", "together", "predicted", "own"])
def test_a_node_whose_gradients_overflow_makes_no_step_of_its_base(form: str, network: dgt.Network) -> None:
    model = model_of()
    optimizer = dgt.GradientTracking(
        model.parameters(), 0.01, network, base="adamw", base_options={"weight_decay": 0.5}, base_form=form
    )
    train(model, optimizer, range(3))
    before = values(model)
    optimizer.found_inf = torch.ones(1)  # as GradScaler sets it
    train(model, optimizer, range(3, 6))
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
