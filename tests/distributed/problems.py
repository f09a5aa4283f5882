"""Problems that tests train: one that leaves nothing out (dropout, every generator), one that weighs its process."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import dgt
from dgt.problems.least_squares import LeastSquaresProblem


class Noisy(dgt.Problem):
    """A classifier on random data; every step draws from every global generator, and keeps a count of its own."""

    def __init__(self, context: dgt.ProblemContext, pause: float = 0.004, width: int = 16) -> None:
        draw = torch.Generator().manual_seed(context.node)
        self.x = torch.randn(128, 8, generator=draw).to(context.dtype)
        self.y = (self.x.sum(1) > 0.1 * context.node).long()
        self.pause, self.seen = pause, torch.zeros(())
        torch.manual_seed(context.seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 2),
        ).to(context.dtype)  # fmt: skip
        torch.manual_seed(context.seed + context.node)
        np.random.seed(context.node)
        random.seed(context.node)

    def backward(self, iteration: int) -> float:
        time.sleep(self.pause)
        self.model.train()
        picked = torch.from_numpy(np.random.randint(0, 128, size=32))
        noise = random.gauss(0, 0.1) * torch.randn(32, 8)
        loss = torch.nn.functional.cross_entropy(self.model(self.x[picked] + noise), self.y[picked])
        loss.backward()
        self.seen += 1
        return loss.item()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.seen.copy_(state["seen"])


class Recalibrated(Noisy):
    """BatchNorm statistics of the average model are measured anew on all of a node's data, with dropout on the way."""

    def recalibration(self) -> Callable[[], None]:
        return lambda: torch.optim.swa_utils.update_bn([self.x], self.model)


class Weighed(dgt.Problem):
    """F_i = |theta - i|^2 / 2; node 0 writes down now and then how much memory its process has to itself, in MB."""

    def __init__(self, context: dgt.ProblemContext, path: str, every: int = 2000) -> None:
        self.model = torch.nn.Linear(8, 1).to(context.dtype)
        self.node, self.every, self.path = context.node, every, Path(path)

    def backward(self, iteration: int) -> float:
        loss = sum((p - self.node).square().sum() / 2 for p in self.model.parameters())
        loss.backward()
        if self.node == 0 and iteration % self.every == 0:
            kb = re.search(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())
            with self.path.open("a") as file:
                file.write(f"{iteration} {int(kb[1]) / 1024:.2f}\n")
        return loss.item()


class Cliff(dgt.Problem):
    """|theta - i|^2 / 2, whose gradient is not finite where the last node is too far off, though its loss still is."""

    def __init__(self, context: dgt.ProblemContext) -> None:
        self.model = torch.nn.Linear(1, 1).to(context.dtype)
        for parameter in self.model.parameters():
            torch.nn.init.zeros_(parameter)
        self.node, self.is_last = context.node, context.node == context.nodes - 1

    def backward(self, iteration: int) -> float:
        weight, bias = self.model.parameters()
        loss = ((weight - self.node).square() + (bias - self.node).square()).sum() / 2
        loss.backward()
        if self.is_last and abs(bias.item()) > 10:
            bias.grad.fill_(torch.inf)
        return loss.item()


class Silent(Noisy):
    """Returns no loss."""

    def backward(self, iteration: int) -> None:
        super().backward(iteration)


class Recorded(LeastSquaresProblem):
    """Least squares without noise; every node writes down where it computes each gradient, and takes its time."""

    Settings = None

    def __init__(self, context: dgt.ProblemContext, folder: str, pause: float = 0.003) -> None:
        super().__init__(context, noise=0.0)
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.pause, self.file = pause, (Path(folder) / f"{context.node}").open("a")

    def backward(self, iteration: int) -> None:
        time.sleep(self.pause)
        self.file.write(json.dumps([iteration, os.getpid(), self.theta.detach().flatten().tolist()]) + "\n")
        self.file.flush()
        super().backward(iteration)


class FailsAlways(Noisy):
    """One node's loss is never a number after the first few steps."""

    def __init__(self, context: dgt.ProblemContext, node: int) -> None:
        super().__init__(context, pause=0.002)
        self.fails = context.node == node

    def backward(self, iteration: int) -> float:
        loss = super().backward(iteration)
        return float("nan") if self.fails and iteration > 20 else loss
