"""What classifiers and language models share: cross-entropy on batches, accuracy on a test set."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dgt.models import decay_groups
from dgt.problems.base import Problem

Batch = tuple[torch.Tensor, torch.Tensor]


class SupervisedProblem(Problem):
    """model(inputs) [..., classes] against targets [...]; subclasses say where batches come from."""

    weight_decay: float = 0.0

    @abc.abstractmethod
    def batch(self, iteration: int) -> Batch:
        """Inputs and targets of this node at this iteration."""

    @abc.abstractmethod
    def test_batches(self, part: int, parts: int) -> Iterator[Batch]:
        """Every parts-th piece of the test set, the same set on all nodes."""

    @property
    @abc.abstractmethod
    def test_targets(self) -> int:
        """How many predictions the whole test set asks for."""

    def parameters(self) -> Iterable[dict[str, Any]]:
        return decay_groups(self.model, self.weight_decay)

    def backward(self, iteration: int) -> float:
        self.model.train()
        inputs, targets = self.batch(iteration)
        loss = cross_entropy(self.model(inputs), targets)
        with torch.autocast(inputs.device.type, enabled=False):  # precision=bf16 is for what comes before
            loss.backward()
        return loss.item()

    def measure(self) -> dict[str, float]:
        return self._test(0, 1)

    def measure_part(self, part: int, parts: int) -> Mapping[str, float | np.ndarray] | None:
        if type(self).measure is not SupervisedProblem.measure:  # a subclass measures something else
            return super().measure_part(part, parts)
        return self._test(part, parts)

    def measure_average(self, part: int, parts: int) -> dict[str, float]:
        return {f"average_{name}": value for name, value in self._test(part, parts).items()}

    @torch.inference_mode()
    def _test(self, part: int, parts: int) -> dict[str, float]:
        """This part's share of the accuracy and mean loss on the test set."""
        self.model.eval()
        right = loss = 0.0
        for inputs, targets in self.test_batches(part, parts):
            scores = self.model(inputs)
            right += (scores.argmax(-1) == targets).sum().item()
            loss += cross_entropy(scores, targets, reduction="sum").item()
        return {"accuracy": right / self.test_targets, "test_loss": loss / self.test_targets}


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """-log softmax(scores)[target] over any leading dimensions."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction=reduction)
