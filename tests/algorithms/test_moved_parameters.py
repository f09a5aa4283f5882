"""What users do to a model between two steps, on a network of one node, where every algorithm is plain SGD."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dgt
from dgt.errors import ConfigError
from dgt.processes import wrappers
from dgt.processes.node import Node

pytestmark = pytest.mark.timeout(60)

LR = 0.05
ALGORITHMS: dict[str, Callable[..., Any]] = {
    "small": dgt.GradientTracking,
    "large": dgt.GradientTracking,
    "buckets": lambda *a, model, **k: dgt.GradientTracking(*a, model=model, bucket_mb=1e-5, **k),
    "extra": lambda *a, **k: dgt.ExactDiffusion(*a, form="extra", **k),
    "dsgd": dgt.DSGD,
    "allreduce": dgt.AllReduce,
}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of a small model wait for each other longer than they compute, on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # `join` then leaves them as they are
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def node() -> Iterator[Node]:
    with dgt.join(device="cpu") as joined:
        yield joined


@pytest.fixture
def network(node: Node) -> dgt.Network:
    return dgt.Network(node, dgt.graphs.complete(1), [1.0])


def build(name: str = "small") -> torch.nn.Sequential:
    torch.manual_seed(1)
    width = 700 if name == "large" else 5  # 64 KiB decide which code runs
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Flatten(), torch.nn.Linear(16, width))


def optimizer_of(name: str, model: torch.nn.Module, network: dgt.Network) -> Any:
    extra = {"model": model} if name == "buckets" else {}
    return ALGORITHMS[name](model.parameters(), lr=LR, network=network, **extra)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(6, 3, 3, 3)).square().mean().backward()
        optimizer.step()


def vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()]).float()


def half_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() / 2 for parameter in model.parameters()]


def set_data(model: torch.nn.Module) -> None:
    for parameter, value in zip(model.parameters(), half_of(model), strict=True):
        parameter.data = value


def there_and_back(model: torch.nn.Module) -> None:
    model.double().float()


def from_vector(model: torch.nn.Module) -> None:
    torch.nn.utils.vector_to_parameters(torch.cat([v.flatten() for v in half_of(model)]), model.parameters())


def channels_last(model: torch.nn.Module) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load(model: torch.nn.Module) -> None:
    model.load_state_dict({name: value / 2 for name, value in model.state_dict().items()})


def a_step_of_torchs(model: torch.nn.Module) -> None:
    train(model, torch.optim.SGD(model.parameters(), lr=LR))


def share(model: torch.nn.Module) -> None:
    model.share_memory()


def set_storage(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), half_of(model), strict=True):
            parameter.set_(value)


def transpose(model: torch.nn.Module) -> None:
    kernel = model[0].weight
    kernel.data = kernel.data.transpose(2, 3)  # the same memory in another order


def exchange(model: torch.nn.Module) -> None:
    kernel, other = model[0].weight, model[0].bias
    kernel.data, other.data = other.data.repeat(12).view(4, 3, 2, 2), kernel.data.flatten()[:4]


MOVES = [
    set_data, there_and_back, from_vector, channels_last, load, a_step_of_torchs, share, set_storage, transpose,
    exchange,
]  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_goes_on_with_the_values_that_a_model_was_given(name: str, network: dgt.Network) -> None:
    """Parameters that no longer lived in the flat buffer were not trained any more, for ever and without a word."""
    for move in MOVES:
        if name == "buckets" and move is a_step_of_torchs:  # its backward would begin a step of dgt's
            continue
        ours, theirs = build(name), build(name)
        optimizer, sgd = optimizer_of(name, ours, network), torch.optim.SGD(theirs.parameters(), lr=LR)
        train(ours, optimizer)
        train(theirs, sgd)
        optimizer.drain()
        move(ours)
        move(theirs)
        assert torch.allclose(vector(ours), vector(theirs), atol=1e-6), move.__name__
        optimizer.state_dict()  # reads the flat buffer
        train(ours, optimizer, 3)
        train(theirs, sgd, 3)
        assert torch.allclose(vector(ours), vector(theirs), atol=1e-6), move.__name__
        assert all(parameter.is_shared() == (move is share) for parameter in ours.parameters())
        optimizer.close()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.half()])
def test_another_dtype_is_refused_with_what_to_do(name: str, change: Callable, network: dgt.Network) -> None:
    model = build(name)
    optimizer = optimizer_of(name, model, network)
    train(model, optimizer, 1)
    optimizer.drain()
    change(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    words = r"^parameter 0 \[4x3x2x2\] was float32 .* on cpu when .* model\.to\(\).* first"
    with pytest.raises(ConfigError, match=words):
        optimizer.step()


def test_parameters_in_the_same_memory_are_refused(network: dgt.Network) -> None:
    """Tied by `b.data = a.data` they were two parameters from the first step on, each trained by its own gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    words = r"^parameter 0 \[3x3\] and parameter 2 \[3x3\] are two parameters in the same memory: tie them"
    optimizer = dgt.DSGD(model.parameters(), lr=LR, network=network)
    model[1].weight.data = model[0].weight.data
    with pytest.raises(ConfigError, match=words):
        optimizer.step()
    with pytest.raises(ConfigError, match=words):
        dgt.DSGD(model.parameters(), lr=LR, network=network)
    model[1].weight = model[0].weight
    dgt.DSGD(model.parameters(), lr=LR, network=network)


def test_narrow_parameters_that_moved_keep_their_master_weights(network: dgt.Network) -> None:
    narrow, wide = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(1))
    optimizer = dgt.DSGD([narrow, wide], lr=1e-3, network=network)
    for _ in range(8):
        narrow.grad, wide.grad = torch.ones_like(narrow), None
        narrow.data = narrow.data.clone()
        optimizer.step()
    assert optimizer.flat.values.tolist() == pytest.approx([0.992, 0.992, 1.0])


def test_narrow_parameters_that_were_changed_count_and_others_keep_their_master_weights(network: dgt.Network) -> None:
    narrow, other = (torch.nn.Parameter(torch.full((4,), 1.0, dtype=torch.bfloat16)) for _ in range(2))
    wide = torch.nn.Parameter(torch.ones(2))
    optimizer = dgt.GradientTracking([narrow, other, wide], lr=1e-3, network=network)
    for _ in range(3):
        for parameter in (narrow, other, wide):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    narrow.data.clamp_(max=0.25)
    optimizer.step()
    assert optimizer.flat.values.tolist() == pytest.approx([0.249] * 4 + [0.996] * 6)
    assert narrow.tolist() == [0.25 - 2**-10] * 4  # rounded


def test_a_second_optimizer_takes_the_parameters_over(network: dgt.Network) -> None:
    """In a notebook a cell is run again; but two at once would each train a model of their own."""
    for name in ("small", "buckets"):
        ours, theirs = build(), build()
        first = optimizer_of(name, ours, network)
        train(ours, first)
        second = optimizer_of(name, ours, network)
        train(ours, second)
        second.drain()
        train(theirs, torch.optim.SGD(theirs.parameters(), lr=LR))
        train(theirs, torch.optim.SGD(theirs.parameters(), lr=LR))
        assert torch.allclose(vector(ours), vector(theirs), atol=1e-6)
        with pytest.raises(ConfigError, match="given to another optimizer of dgt since: step that one"):
            first.step()
        train(ours, second, 1)


def test_unfreezing_is_refused_and_freezing_counts_as_a_gradient_of_zero(network: dgt.Network) -> None:
    model = build()
    model[0].requires_grad_(False)
    optimizer = dgt.GradientTracking(model.named_parameters(), lr=LR, network=network)
    train(model, optimizer)
    model[2].bias.requires_grad_(False)
    before = model[2].bias.clone()
    train(model, optimizer)
    assert torch.equal(model[2].bias, before)
    model[0].requires_grad_(True)
    with pytest.raises(ConfigError, match=r"^0\.weight was frozen .* make a new optimizer on all ranks"):
        train(model, optimizer, 1)
    before = vector(model[0])
    train(model, dgt.GradientTracking(model.parameters(), lr=LR, network=network), 1)
    assert not torch.equal(before, vector(model[0]))


def test_a_model_that_got_new_parameters_is_noticed(network: dgt.Network) -> None:
    """The optimizer holds the old ones, as those of torch do; it can see only that gradients no longer come."""
    model = build()
    optimizer = dgt.GradientTracking(model.parameters(), lr=LR, network=network)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.warns(UserWarning, match=r"no parameter has a gradient at step 0; .*assign=True"):
        train(model, optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 1)  # said once


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_layer_is_saved_without_the_rest_of_the_model(kind: torch.dtype, network: dgt.Network) -> None:
    """Views of the flat buffer carry all of it into the file: 41 kB became 4 MB."""
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(4, 4)).to(kind)
    alone = saved(torch.nn.Linear(4, 4).to(kind).state_dict())
    optimizer = dgt.GradientTracking(model.parameters(), lr=LR, network=network)
    assert saved(model[1].state_dict()) == pytest.approx(alone, abs=256)
    assert saved(copy.deepcopy(dict(model[1].state_dict()))) == pytest.approx(alone, abs=256)
    assert saved(model.state_dict()) < 1.1 * sum(p.nbytes for p in model.parameters())
    kept = model[1].weight.detach()
    value = kept.clone()
    del optimizer, model
    assert torch.equal(kept, value)  # memory that a part of it refers to lives on


def saved(what: Any) -> int:
    file = io.BytesIO()
    torch.save(what, file)
    return file.tell()


CHANGES = {
    "clip_grad_norm_": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "p.grad.data": lambda model: [p.grad.data.clamp_(-1e-3, 1e-3) for p in model.parameters()],
    "replaced": lambda model: [setattr(p, "grad", p.grad.clone()) for p in model.parameters()],
    "zero_grad": lambda model: model.zero_grad(),
    "p.data": set_data,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_left_during_backward_is_not_changed_after_it(change: str, network: dgt.Network) -> None:
    """With buckets, clipping after backward had no effect, and nobody said so."""
    model = build()
    optimizer = optimizer_of("buckets", model, network)
    train(model, optimizer)
    model(torch.randn(6, 3, 3, 3)).mean().backward()
    CHANGES[change](model)
    words = "between backward and step" if change == "p.data" else r"^the gradient of .* clip_grad_norm_.* bucket_mb=0"
    with pytest.raises(ConfigError, match=words):
        optimizer.step()


def test_parameters_are_not_changed_while_new_values_are_on_their_way(network: dgt.Network) -> None:
    """The next forward overwrote what was written, as by torch.nn.init or weight clipping."""
    model = build()
    optimizer = optimizer_of("buckets", model, network)
    train(model, optimizer)
    torch.nn.init.ones_(model[2].bias)
    with pytest.raises(
        ConfigError, match=r"^parameter 3 \[5\] was changed .* on their way: .* call optimizer\.drain\(\)"
    ):
        model(torch.randn(6, 3, 3, 3))
    optimizer.close()
    model = build()
    optimizer = optimizer_of("buckets", model, network)
    train(model, optimizer)
    optimizer.drain()
    torch.nn.init.ones_(model[2].bias)
    model(torch.randn(6, 3, 3, 3))
    assert model[2].bias.tolist() == [1.0] * 5


def test_a_whole_model_with_buckets_is_pickled_and_copied_without_its_optimizer(network: dgt.Network) -> None:
    model = build()
    optimizer = optimizer_of("buckets", model, network)
    train(model, optimizer)
    optimizer.drain()
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(vector(other), vector(model))
        train(other, torch.optim.SGD(other.parameters(), lr=LR), 1)
    train(model, optimizer)
    assert optimizer.iteration == 4


def test_a_part_of_a_model_is_read_and_loaded_when_its_buckets_are_there(network: dgt.Network) -> None:
    ours, theirs = build(), build()
    optimizer = optimizer_of("buckets", ours, network)
    train(ours, optimizer)
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=LR))
    assert torch.allclose(vector(ours[2]), vector(theirs[2]), atol=1e-6)
    train(ours, optimizer)
    ours[2].load_state_dict({"weight": torch.ones(5, 16), "bias": torch.ones(5)})
    optimizer.drain()
    assert vector(ours[2]).tolist() == [1.0] * 85


def test_nothing_is_trained_or_saved_inside_average(network: dgt.Network, tmp_path: Path) -> None:
    """The model's own values come back afterwards, whatever happened to the average."""
    for name in ("small", "buckets"):
        model = build()
        optimizer = optimizer_of(name, model, network)
        checkpoints = dgt.Checkpoints(tmp_path / name, network, model=model, optimizer=optimizer)
        train(model, optimizer)
        own, state = vector(model), optimizer.state_dict()
        mistakes: dict[str, Callable[[], Any]] = {
            "step": lambda m=model, o=optimizer: train(m, o, 1),
            "Checkpoints": lambda c=checkpoints: c.save(2),
            "GradientTracking.state_dict": optimizer.state_dict,
            "GradientTracking.load_state_dict": lambda o=optimizer, s=state: o.load_state_dict(s),
        }
        for what, mistake in mistakes.items():
            with pytest.raises(ConfigError, match=f"^{what} inside `with network.average"), network.average(model):
                mistake()
            assert torch.equal(vector(model), own)
        with pytest.raises(ConfigError, match="parameters were changed inside the block"), network.average(model):
            load(model)
        assert torch.equal(vector(model), own)
        train(model, optimizer)
        assert checkpoints.save(3)


def test_the_state_of_another_optimizer_is_refused_in_a_sentence(network: dgt.Network) -> None:
    model = build()
    optimizer = dgt.GradientTracking(model.parameters(), lr=LR, network=network)
    train(model, optimizer)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    states = {
        "made by an optimizer of torch.optim, not": torch.optim.SGD(model.parameters()).state_dict(),
        "made by no optimizer of dgt": model.state_dict(),
        r"groups have \[2, 2\] parameters, this GradientTracking's have \[4\]": dgt.GradientTracking(
            groups, lr=LR, network=network
        ).state_dict(),
        "made by DSGD, not by GradientTracking": dgt.DSGD(model.parameters(), lr=LR, network=network).state_dict(),
    }
    turned = torch.nn.Sequential(torch.nn.Linear(16, 5), torch.nn.Conv2d(3, 4, 2))  # as many numbers
    states["of other shapes or in another order"] = dgt.GradientTracking(
        turned.parameters(), lr=LR, network=network
    ).state_dict()
    optimizer = dgt.GradientTracking(model.parameters(), lr=LR, network=network)
    own = optimizer.state_dict()
    states["made by no optimizer"] = own | {"dgt": own["dgt"] | {"iteration": "one"}}
    states["made by no optimizer of dgt, not"] = own | {"param_groups": [{"params": [0, 1, 2, 3]}]}
    states["rest should have shape .*, found nothing"] = own | {"dgt": own["dgt"] | {"rest": [1.0]}}
    for words, state in states.items():
        with pytest.raises(ConfigError, match=f"^state_dict: .*{words}"):
            optimizer.load_state_dict(state)
    train(model, optimizer)


def test_what_cannot_be_saved_is_named(network: dgt.Network, tmp_path: Path) -> None:
    model = build()
    optimizer = dgt.DSGD(model.parameters(), lr=LR, network=network)
    loader = torch.utils.data.DataLoader(range(4))
    with pytest.raises(ConfigError, match=r"loader has no state_dict to save; .* StatefulDataLoader"):
        dgt.Checkpoints(tmp_path, network, model=model, optimizer=optimizer, loader=loader)


def left_behind() -> tuple[bool, dict[str, str], list[str]]:
    return dist.is_initialized(), dict(os.environ), sorted(thread.name for thread in threading.enumerate())


def train_and_raise(error: type[BaseException] | None) -> None:
    with dgt.join(device="cpu") as node:
        model = build("large")
        train(model, optimizer_of("large", model, dgt.Network(node, dgt.graphs.complete(1), [1.0])))
        if error is not None:
            raise error


def test_an_error_inside_join_leaves_nothing_behind() -> None:
    """In a notebook the next join said that the default process group was there already."""
    before = left_behind()
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            train_and_raise(error)
        assert left_behind() == before
    train_and_raise(None)
    assert left_behind() == before


def test_join_uses_a_process_group_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "_hooks", [])  # as in a process that has not joined yet
    monkeypatch.setattr(wrappers, "_seen", weakref.WeakSet())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(build())
        for _ in range(2):
            with dgt.join(device="cpu") as node:
                model, network = build(), dgt.Network(node, dgt.graphs.complete(1), [1.0])
                train(model, optimizer_of("small", model, network))
                with pytest.raises(ConfigError, match="wrapped in DistributedDataParallel"):
                    optimizer_of("small", wrapped, network)
            assert dist.is_initialized()
            dist.all_reduce(torch.ones(1))  # still theirs
    finally:
        dist.destroy_process_group()
