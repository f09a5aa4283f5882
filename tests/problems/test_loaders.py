"""Which data loaders keep a run from being resumed bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dgt.problems import loaders
from dgt.problems.base import Problem


class Numbers(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Holding(Problem):
    def __init__(self, what: Any) -> None:
        self.model, self.what = torch.nn.Linear(1, 1), what

    def backward(self, iteration: int) -> None: ...


class WithState(Holding):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": 0}


def endless(loader: DataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def begun(loader: DataLoader) -> Iterator[Any]:
    batches = endless(loader)
    next(batches)
    return batches


@pytest.mark.parametrize(
    ("what", "warns"),
    [
        (DataLoader(Numbers(), shuffle=True), True),
        ({"train": [DataLoader(Numbers(), shuffle=True)]}, True),
        (endless(DataLoader(Numbers(), shuffle=True)), True),
        (begun(DataLoader(Numbers())), True),
        (iter(DataLoader(Numbers())), True),
        (DataLoader(Numbers(), batch_sampler=[[0], [1]]), True),
        (DataLoader(Numbers(), batch_size=2), False),  # a test set, in order
        (torch.ones(3), False),
    ],
)
def test_a_loader_that_reads_on_is_found_wherever_it_is(what: Any, warns: bool) -> None:
    assert ("`what` is a DataLoader" in loaders.warning(Holding(what))) == warns
    assert loaders.warning(WithState(what)) == ""
