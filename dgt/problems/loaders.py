"""Data loaders whose place in the data no checkpoint holds: a resumed run gets other batches than it would have.

`Problem.state_dict` is where a problem says what it needs to continue exactly; torch's DataLoader has no state itself.
"""

from __future__ import annotations

import gc
import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dgt.problems.base import Problem

DEPTH, MOST = 5, 1000  # a loader may be inside a list, a generator or a class of the user's
CLOSED = (torch.Tensor, torch.nn.Module, types.ModuleType, types.FunctionType, type, str, bytes)


def warning(problem: Problem) -> str:
    """What to say before the first checkpoint of this problem; empty if it has a state, or no such loader."""
    if type(problem).state_dict is not Problem.state_dict:
        return ""
    for name, value in vars(problem).items():
        if any(_reads_on(part) for part in itertools.islice(_parts(value, DEPTH), MOST)):
            return (
                f"the problem's `{name}` is a DataLoader whose place no checkpoint holds: resumed, the run gets other "
                "batches; give the problem state_dict and load_state_dict (torchdata's StatefulDataLoader has a state)"
            )
    return ""


def _reads_on(part: Any) -> bool:
    """Whether what it gives next depends on what it gave before: an iterator, or an order drawn at random."""
    if not isinstance(part, DataLoader):
        return isinstance(part, _BaseDataLoaderIter)
    in_order = isinstance(part.sampler, SequentialSampler)
    return not (in_order and (part.batch_sampler is None or type(part.batch_sampler) is BatchSampler))


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """The value and what it refers to, generators and iterators included; data sets are not looked into."""
    yield value
    if depth and not isinstance(value, (*CLOSED, DataLoader)):
        for part in gc.get_referents(value):
            yield from _parts(part, depth - 1)
