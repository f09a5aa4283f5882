"""Ranks whose data loaders differ in length make the same number of steps.

for epoch in range(10):
    for x, y in dgt.even_steps(loader, node):            # the longest loader's steps; shorter ones start over
        ...
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from dgt.config.checks import check_choice
from dgt.errors import ConfigError, SharedError
from dgt.processes.node import Node

Batch = TypeVar("Batch")

WAYS = ("longest", "shortest")
_NO_LENGTH = -1


class HasNode(Protocol):
    """A `dgt.Network`."""

    node: Node


def even_steps(
    loader: Iterable[Batch], node: Node | HasNode, by: str = "longest", steps: int | None = None
) -> EvenSteps[Batch]:
    """An iterable of the loader's batches, the same number of them on all ranks; all ranks make and iterate it.

    loader   this rank's batches: a DataLoader or any iterable that can be iterated more than once
    node     from `dgt.join()`, or a `dgt.Network`
    by       longest: as many steps as the longest loader has; shorter ones start over, with a fresh `iter(loader)`
             shortest: as many as the shortest has; longer ones stop early
    steps    this number of steps in place of the loaders' lengths, for loaders without a length
    """
    check_choice("by", by, WAYS)
    if steps is not None and steps < 1:
        raise ConfigError(f"steps={steps}: 1 or more")
    return EvenSteps(loader, node if isinstance(node, Node) else node.node, by, steps)


class EvenSteps(Generic[Batch]):
    """See `even_steps`. Ranks compare lengths when it is made, and again at the start of every further epoch."""

    def __init__(self, loader: Iterable[Batch], node: Node, by: str, steps: int | None) -> None:
        self._loader, self._node, self._by, self._given = loader, node, by, steps
        self._steps, self._fresh = self._agree(), True

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        if not self._fresh:
            self._steps = self._agree()
        self._fresh = False
        return self._batches(self._steps)

    def _batches(self, steps: int) -> Iterator[Batch]:
        done = 0
        while done < steps:
            before = done
            for batch in self._loader:
                yield batch
                done += 1
                if done == steps:
                    return
            if done == before:
                raise ConfigError(
                    f"even_steps: the loader of rank {self._node.world.rank} gave no batch after step {done}"
                )

    def _agree(self) -> int:
        """The number of steps, from an all_gather of every rank's `steps` and loader length."""
        with self._node.world.during(f"even_steps(by={self._by})"):
            lengths = self._node.world.all_gather([self._given or 0, self._length()]).tolist()
        given = {steps for steps, _ in lengths}
        if len(given) > 1:
            raise SharedError(f"even_steps: steps={lengths[0][0]} on rank 0, but not on all ranks: give all the same")
        for rank, (_, length) in enumerate(lengths):
            if length == 0:
                raise SharedError(f"even_steps: the loader of rank {rank} is empty; every rank needs one batch")
            if length == _NO_LENGTH and not self._given:
                raise SharedError(
                    f"even_steps: the loader of rank {rank} has no len(); say how many steps an epoch has, "
                    "even_steps(loader, node, steps=100)"
                )
        if self._given:
            return self._given
        return int((max if self._by == "longest" else min)(length for _, length in lengths))

    def _length(self) -> int:
        try:
            return len(self._loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return _NO_LENGTH
