"""`dgt` in a user's own loop: each feature on real ranks against the twin, which sees the same models and data."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import dgt
from dgt import reference
from dgt.algorithms import DecentralizedOptimizer
from dgt.algorithms.machinery import base, bucket
from dgt.errors import LaunchError
from dgt.exchange import streams
from dgt.network.mixing import mixing_matrix, strategy
from dgt.processes.node import Node
from dgt.reference.wire import Wire
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(180)

NODES, STEPS = 4, 12
WEIGHTS = [3.0, 1.0, 2.0, 0.5]
LR = 0.05


class Net(torch.nn.Module):
    """A little of everything: tied, unused and frozen parameters."""

    def __init__(self, tied: bool = False, unused: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(5, 5), torch.nn.Linear(5, 5), torch.nn.Linear(5, 2))
        if tied:
            self.second.weight = self.first.weight
        if unused:
            self.extra = torch.nn.Parameter(torch.randn(3))
        self.first.bias.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


@dataclass
class Loop:
    """One training loop; every switch is a feature. `run` is a rank, `twin` is all ranks in one process."""

    strategy: str = "II"
    model: dict[str, bool] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    groups: bool = False
    schedule: bool = False
    clip: bool = False
    accumulate: int = 1
    autocast: bool = False
    compiled: bool = False
    set_to_none: bool = True
    reload: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithm: type[DecentralizedOptimizer] = dgt.GradientTracking
    piece: int = 0

    def build(self, node: int) -> tuple[Net, torch.Tensor, torch.Tensor]:
        torch.manual_seed(node)  # every node starts elsewhere
        model = Net(**self.model).to(self.dtype)
        x = torch.randn(STEPS * self.accumulate, 8, 5, dtype=self.dtype)
        return model, x, torch.randn(STEPS * self.accumulate, 8, 2, dtype=self.dtype)

    def parameters(self, model: Net) -> Any:
        if not self.groups:
            return model.parameters()
        heavy = [p for p in model.parameters() if p.ndim > 1]
        light = [p for p in model.parameters() if p.ndim == 1]
        return [{"params": heavy, "weight_decay": 0.1}, {"params": light, "lr": 2 * LR}]

    def backward(
        self, forward: Callable, model: Net, x: torch.Tensor, y: torch.Tensor, t: int, accumulate: Any = None
    ) -> None:
        last = (t + 1) * self.accumulate - 1
        for k in range(t * self.accumulate, last + 1):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
                loss = torch.nn.functional.mse_loss(forward(x[k]), y[k].to(x.dtype))
            with contextlib.nullcontext() if k == last or accumulate is None else accumulate():
                (loss / self.accumulate).backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    def run(self, node: Node) -> list[list[float] | None]:
        with contextlib.ExitStack() as patches:  # large models are worked on piece by piece
            for module, name in ((streams, "LONG_PIECE"), (base, "LONG_PIECE"), (bucket, "PIECE")):
                patches.enter_context(mock.patch.object(module, name, self.piece or getattr(module, name)))
            return self.trained(node)

    def trained(self, node: Node) -> list[list[float] | None]:
        model, x, y = self.build(node.rank)
        forward = torch.compile(model, backend="aot_eager") if self.compiled else model
        network = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS, self.strategy)
        make = lambda: self.algorithm(  # noqa: E731
            self.parameters(model), lr=LR, network=network, model=model, **self.options
        )
        optimizer = make()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5) if self.schedule else None
        trace = []
        for t in range(STEPS):
            if self.reload and t == 5:
                saved, values = optimizer.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
                model, _, _ = self.build(node.rank + 100)
                forward = model
                optimizer = make()
                model.load_state_dict(values)
                optimizer.load_state_dict(saved)
            optimizer.zero_grad(set_to_none=self.set_to_none)
            self.backward(forward, model, x, y, t, optimizer.accumulate)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            late = "bucket_mb" in self.options and t % 4 != 3  # most of the time the next forward takes them in
            if not late:
                optimizer.drain()
            trace.append(None if late else self.vector(model))
        return trace

    def ordered(self, model: Net) -> list[torch.nn.Parameter]:
        wanted = self.parameters(model)
        listed = [p for group in wanted for p in group["params"]] if self.groups else list(wanted)
        return [p for p in listed if p.requires_grad]

    def vector(self, model: Net) -> list[float]:
        return torch.cat([p.detach().flatten().double() for p in self.ordered(model)]).tolist()

    def twin(self) -> list[np.ndarray]:
        plan = strategy(self.strategy, dgt.weights.normalise(WEIGHTS))
        W = mixing_matrix(dgt.graphs.ring(NODES), plan.mixing_weights)
        stacked = Stacked(self)
        options = {key: value for key, value in self.options.items() if key not in ("overlap", "bucket_mb")}
        if "wire" in options and "bucket_mb" in self.options:
            options["wire"] = Wire(options["wire"], self.bucket_starts())
        twin = self.algorithm.twin or reference.named(self.algorithm.__module__.rpartition(".")[2])
        states = twin(stacked, W, plan, stacked.lr, STEPS, **options)
        return [state.theta for state in states][1:]

    def bucket_starts(self) -> list[int]:
        """Every parameter is a bucket."""
        sizes = [p.numel() for p in self.ordered(self.build(0)[0])]
        return [0, *itertools.accumulate(sizes[:-1])]


class Stacked:
    """All nodes' models in this process, behind the twin's interface."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.nodes = loop, [loop.build(node) for node in range(NODES)]
        self.start = np.array([loop.vector(model) for model, _, _ in self.nodes])

    def lr(self, t: int) -> np.ndarray:
        model = self.nodes[0][0]
        scale = [2.0 if self.loop.groups and p.ndim == 1 else 1.0 for p in self.loop.ordered(model)]
        sizes = [p.numel() for p in self.loop.ordered(model)]
        return LR * np.repeat(scale, sizes) * (0.5 ** (t // 3) if self.loop.schedule else 1.0)

    def gradient(self, theta: np.ndarray, t: int) -> np.ndarray:
        rows = []
        for row, (model, x, y) in zip(theta, self.nodes, strict=True):
            parameters = self.loop.ordered(model)
            torch.nn.utils.vector_to_parameters(torch.from_numpy(row).to(self.loop.dtype), parameters)
            model.zero_grad()
            self.loop.backward(model, model, x, y, t)
            pieces = []
            for p in parameters:
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                decay = 0.1 if self.loop.groups and p.ndim > 1 else 0.0
                pieces.append((grad + decay * p.detach()).flatten().double())
            rows.append(torch.cat(pieces).numpy())
        return np.array(rows)

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


TINY = {"bucket_mb": 1e-5}  # ten bytes: every parameter is a bucket
FEATURES = {
    "plain loop": Loop(),
    "strategy I": Loop(strategy="I"),
    "parameter groups with their own lr and weight decay": Loop(groups=True),
    "lr_scheduler": Loop(schedule=True),
    "gradient clipping": Loop(clip=True),
    "gradient accumulation": Loop(accumulate=3),
    "torch.compile": Loop(compiled=True),
    "frozen parameters": Loop(model={"frozen": True}),
    "tied parameters": Loop(model={"tied": True}),
    "unused parameters": Loop(model={"unused": True}),
    "zero_grad keeping the tensors": Loop(set_to_none=False),
    "state_dict and load_state_dict": Loop(reload=True),
    "narrow wire": Loop(options={"wire": "bfloat16"}, reload=True),
    "local steps": Loop(options={"local_steps": 3}, groups=True),
    "a bucket per parameter": Loop(options=TINY),
    "one bucket": Loop(options={"bucket_mb": 1.0}),
    "buckets without overlap": Loop(options={**TINY, "overlap": False}),
    "buckets, groups, scheduler": Loop(options=TINY, strategy="I", groups=True, schedule=True),
    "buckets, tied parameters": Loop(options=TINY, model={"tied": True}),
    "buckets, unused and frozen parameters": Loop(options=TINY, model={"unused": True, "frozen": True}),
    "buckets, gradient accumulation": Loop(options=TINY, accumulate=3),
    "buckets, state_dict and load_state_dict": Loop(options=TINY, reload=True),
    "buckets, narrow wire, local steps": Loop(options={**TINY, "wire": "bfloat16", "local_steps": 2}),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_feature_on_ranks_equals_the_twin(feature: str) -> None:
    assert_equals_the_twin(FEATURES[feature])


def assert_equals_the_twin(loop: Loop) -> None:
    traces = run_ranks(loop, NODES)
    for t, theta in enumerate(loop.twin()):
        for node in range(NODES):
            if traces[node][t] is None:
                continue
            assert np.array(traces[node][t]) == pytest.approx(theta[node], rel=1e-9, abs=1e-11), (t, node)


@dataclass
class Misuse:
    """What buckets cannot know about is refused, not computed wrongly."""

    mistake: str

    def run(self, node: Node) -> str:
        model, x, y = Loop().build(node.rank)
        network = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)
        optimizer = dgt.GradientTracking(model.parameters(), lr=LR, network=network, model=model, **TINY)
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[0]), y[0]).backward()
            optimizer.step()
        try:
            if self.mistake == "twice":
                model(x[0]).sum().backward()
                model(x[0]).sum().backward()
            else:
                torch.nn.functional.linear(x[0], model.first.weight).sum().backward()
        except RuntimeError as error:
            return str(error)
        return "nothing"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("twice", "a second gradient of last.bias in step 2"), ("bypassed", "first.weight was used without calling")],
)
def test_misuse_of_buckets_is_said(mistake: str, words: str) -> None:
    for said in run_ranks(Misuse(mistake), NODES).values():
        assert words in said


def test_autocast_in_bfloat16_equals_the_twin_in_float32() -> None:
    """bf16 gradients jump at rounding edges: the two agree to their precision, not to the last bit."""
    loop = Loop(autocast=True, dtype=torch.float32)
    traces = run_ranks(loop, NODES)
    for t, theta in enumerate(loop.twin()):
        assert np.array([traces[node][t] for node in range(NODES)]) == pytest.approx(theta, abs=2e-3)


@dataclass
class MixedPrecision:
    """A bfloat16 layer below a float32 one: the exchange happens in float32, the layer holds rounded copies."""

    def run(self, node: Node) -> tuple[list[float], list[float], str]:
        torch.manual_seed(node.rank)
        narrow = torch.nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
        wide = torch.nn.Parameter(torch.randn(3))
        optimizer = dgt.GradientTracking(
            [narrow, wide], lr=0.1, network=dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)
        )
        for t in range(STEPS):
            narrow.grad = torch.full((4,), 0.01 * (node.rank + t), dtype=torch.bfloat16)
            wide.grad = torch.full((3,), 0.01 * (node.rank + t))
            optimizer.step()
        return narrow.detach().float().tolist(), optimizer.flat.values.tolist(), str(narrow.dtype)


def test_parameters_of_mixed_dtype_keep_master_weights() -> None:
    results = run_ranks(MixedPrecision(), NODES)
    for narrow, values, dtype in results.values():
        assert dtype == "torch.bfloat16"
        assert torch.tensor(values[:4]).bfloat16().float().tolist() == narrow
    plan = strategy("II", dgt.weights.normalise(WEIGHTS))
    start = []
    for node in range(NODES):
        torch.manual_seed(node)
        start.append(torch.cat([torch.randn(4, dtype=torch.bfloat16).float(), torch.randn(3)]).numpy())

    class Constant:
        def __init__(self) -> None:
            self.start = np.array(start, dtype=np.float64)

        def gradient(self, theta: np.ndarray, t: int) -> np.ndarray:
            exact = 0.01 * (np.arange(NODES) + t)
            rounded = torch.tensor(exact).bfloat16().double().numpy()
            return np.concatenate([np.repeat(rounded[:, None], 4, 1), np.repeat(exact[:, None], 3, 1)], axis=1)

        def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
            return {}

    W = mixing_matrix(dgt.graphs.ring(NODES), plan.mixing_weights)
    theta = list(reference.gradient_tracking(Constant(), W, plan, 0.1, STEPS))[-1].theta
    assert np.array([results[node][1] for node in range(NODES)]) == pytest.approx(theta, abs=1e-5)


@dataclass
class Average:
    strategy: str
    path: str

    def run(self, node: Node) -> dict[str, Any]:
        torch.manual_seed(node.rank)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        model(torch.randn(16, 3))
        network = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS, self.strategy)
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with network.average(model):
            inside = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        restored = all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())
        network.save_average(self.path, model)
        return {"own": own, "inside": inside, "restored": restored}


@pytest.mark.parametrize("name", ["I", "II"])
def test_average_model_is_the_strategys_and_is_restored(name: str, tmp_path: Path) -> None:
    results = run_ranks(Average(name, str(tmp_path / "average.pt")), NODES)
    pi = torch.tensor(strategy(name, dgt.weights.normalise(WEIGHTS)).average_weights)
    saved = torch.load(tmp_path / "average.pt", weights_only=True)
    assert [path.name for path in tmp_path.iterdir()] == ["average.pt"]
    torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).load_state_dict(saved)
    for key in saved:
        stack = torch.stack([results[node]["own"][key] for node in range(NODES)])
        floating = stack.is_floating_point()
        expected = torch.tensordot(pi.float(), stack, dims=1) if floating else stack[0]
        assert torch.allclose(saved[key], expected, atol=1e-6)
        for result in results.values():
            assert result["restored"]
            assert torch.allclose(result["inside"][key], expected, atol=1e-6)


@dataclass
class LateGroup:
    def run(self, node: Node) -> None:
        network = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)
        optimizer = dgt.GradientTracking([torch.nn.Parameter(torch.zeros(3))], lr=0.1, network=network)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


@dataclass
class Watched:
    """torch's step hooks and profiler see this optimizer as they see any other."""

    def run(self, node: Node) -> tuple[list[str], bool]:
        parameter, seen = torch.nn.Parameter(torch.zeros(3)), []
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
        optimizer = dgt.GradientTracking([parameter], lr=0.1, network=network)
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        handle = optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        for _ in range(2):
            parameter.grad = torch.ones(3)
            optimizer.step()
        handle.remove()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step()
        names = {event.key for event in profile.key_averages()}
        return seen, "Optimizer.step#GradientTracking.step" in names


def test_step_hooks_and_profiler_work_as_usual() -> None:
    for seen, profiled in run_ranks(Watched(), 2).values():
        assert seen == ["before", "after", "before", "after", "before"]
        assert profiled


def test_a_late_parameter_group_is_refused_not_forgotten() -> None:
    with pytest.raises(LaunchError, match="add_param_group: give all parameters"):
        run_ranks(LateGroup(), NODES)
