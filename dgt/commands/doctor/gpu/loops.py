"""Training loops of one's own on GPUs, with the habits that people have, compared with the same loop in main memory.

Parameters in main memory go another way, over gloo, which is compared with the twin elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import dgt
from dgt.processes.node import Node

STEPS = 5
CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Loop:
    """habits: what happens besides forward, backward and step."""

    name: str
    algorithm: str = "GradientTracking"
    options: Mapping[str, Any] = field(default_factory=dict)
    habits: tuple[str, ...] = ()


BUCKETS = {"bucket_mb": 0.0005}
LOOPS = (
    Loop("as always"),
    Loop("buckets", options=BUCKETS),
    Loop("buckets, not overlapped", options={**BUCKETS, "overlap": False}),
    Loop("buckets, a module that some ranks skip", options=BUCKETS, habits=("skip",)),
    Loop("buckets, state_dict on rank 0 only", options=BUCKETS, habits=("state", "average")),
    Loop("buckets, two backwards", options={**BUCKETS, "wire": "bfloat16"}, habits=("accumulate",)),
    Loop("buckets, mixed AdamW", options={**BUCKETS, "base": torch.optim.AdamW}, habits=("state",)),
    Loop("buckets, AdamW together", options={**BUCKETS, "base": torch.optim.AdamW, "base_form": "together"}),
    Loop("buckets of DSGD", "DSGD", {**BUCKETS, "local_steps": 2}, ("buffers",)),
    Loop("buckets of exact diffusion", "ExactDiffusion", {**BUCKETS, "wire": "int8"}, ("state",)),
    Loop("EXTRA, mixed buffers", "ExactDiffusion", {"form": "extra"}, ("buffers", "average")),
    Loop("mixed buffers, averages", habits=("buffers", "average", "clip")),
    Loop("a GradScaler that overflows on one rank", habits=("scaler",)),
    Loop("AllReduce, overflowing", "AllReduce", habits=("scaler", "average")),
    Loop("resumed", options={"momentum": 0.9}, habits=("resume",)),
    Loop("resumed, narrow wire and AdamW", options={"wire": "int8", "base": torch.optim.AdamW}, habits=("resume",)),
    Loop("a partner per step", options={**BUCKETS, "momentum": 0.9}, habits=("schedule", "buffers")),
    Loop("groups, weight decay, channels_last", habits=("groups", "channels_last")),
    Loop("channels_last in buckets", options=BUCKETS, habits=("channels_last", "state")),
)


class Net(torch.nn.Module):
    """Convolutions, statistics, a parameter that nobody uses and a module that may be skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.unused = torch.nn.Linear(3, 3)
        self.last = torch.nn.Linear(4 * 36, 5)
        self.skips = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        x = x if self.skips else x + self.second(x)
        y: torch.Tensor = self.last(x.flatten(1))
        return y


def differences(loop: Loop, node: Node) -> str:
    """What differs on this rank, in words; empty if nothing does."""
    expected, found = (trained(loop, node, device) for device in (torch.device("cpu"), node.device))
    wrong = (found - expected).abs().max() / expected.abs().max()
    return "" if bool(wrong < CLOSE) else f"rank {node.rank}: off by {float(wrong):.2g} of the largest number"


def trained(loop: Loop, node: Node, device: torch.device) -> torch.Tensor:
    """Losses of all steps, averages that were taken, and the parameters and statistics at the end."""
    trial = Trial(loop, node, device)
    for step in range(STEPS):
        trial.step(step)
    return trial.result()


class Trial:
    """One loop on one device."""

    def __init__(self, loop: Loop, node: Node, device: torch.device) -> None:
        self.loop, self.node, self.device, self.habits = loop, node, device, loop.habits
        weights = [1.0 + 0.25 * rank for rank in range(node.size)]
        graph: Any = dgt.graphs.exponential(node.size)
        if "schedule" in self.habits:
            graph = dgt.schedules.one_peer(weights)
        self.network = dgt.Network(node, graph, weights, laziness=0.35)
        torch.manual_seed(1)
        self.model = Net().to(device=device, dtype=torch.float64)
        if "channels_last" in self.habits:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = self._optimizer()
        self.buffers = dgt.MixedBuffers(self.model, self.network) if "buffers" in self.habits else None
        self.scaler = torch.amp.GradScaler(device.type, init_scale=4.0) if "scaler" in self.habits else None
        self.seen: list[torch.Tensor] = []

    def _optimizer(self) -> Any:
        given: Any = self.model.parameters()
        if "groups" in self.habits:
            body = [*self.model.first.parameters(), *self.model.second.parameters()]
            rest = [*self.model.norm.parameters(), *self.model.unused.parameters(), *self.model.last.parameters()]
            given = [{"params": body, "weight_decay": 0.1}, {"params": rest, "lr": 0.01}]
        kind = getattr(dgt, self.loop.algorithm)
        return kind(given, lr=0.02, network=self.network, model=self.model, **self.loop.options)

    def step(self, number: int) -> None:
        rank, optimizer = self.node.rank, self.optimizer
        self.model.skips = "skip" in self.habits and (rank + number) % 3 == 0
        parts = 2 if "accumulate" in self.habits else 1
        for part in range(parts):
            with optimizer.accumulate() if part + 1 < parts else contextlib.nullcontext():
                self._backward(number, part)
        if "clip" in self.habits:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        if self.buffers is not None:
            self.buffers.mix()
        self._interrupt(number)

    def _backward(self, number: int, part: int) -> None:
        draw = torch.Generator().manual_seed(100 * self.node.rank + 10 * number + part)
        x = torch.randn(4, 3, 6, 6, generator=draw, dtype=torch.float64).to(self.device)
        y = torch.randint(5, (4,), generator=draw).to(self.device)
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.seen.append(loss.detach().cpu().view(1))
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
            if number == 2 and self.node.rank == 1:
                loss = loss * float("inf")
        loss.backward()

    def _interrupt(self, number: int) -> None:
        """What people do between two steps."""
        if "state" in self.habits:
            if self.node.is_main:
                self.optimizer.state_dict()
                self.model.state_dict()
            self.node.barrier()
        if "average" in self.habits and number == 2:
            with self.network.average(self.model):
                self.seen += [value.detach().cpu().clone().flatten() for value in self.model.parameters()]
        if "resume" in self.habits and number == 2:
            state, model = self.optimizer.state_dict(), self.model.state_dict()
            state["dgt"] = {key: _moved(value) for key, value in state["dgt"].items()}
            saved = {key: value.clone() for key, value in model.items()}
            self.model = Net().to(device=self.device, dtype=torch.float64)
            self.model.load_state_dict(saved)
            self.optimizer = self._optimizer()
            self.optimizer.load_state_dict(state)

    def result(self) -> torch.Tensor:
        self.optimizer.drain()
        state = (value.detach().cpu().double().flatten() for value in self.model.state_dict().values())
        return torch.cat([*self.seen, *state])


def _moved(value: Any) -> Any:
    """As it comes from a file."""
    return value.cpu() if isinstance(value, torch.Tensor) else value
