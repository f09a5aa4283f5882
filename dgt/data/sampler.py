"""The order in which a node reads its samples, epoch by epoch, as a sampler of torch's.

sampler = EpochSampler(len(dataset), seed=0, node=node.rank)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from dgt.data.batches import Order


class EpochSampler(torch.utils.data.Sampler[int]):
    """Epoch e of a node: positions [e L, (e+1) L) in its endless stream of shuffled passes over its samples.

    samples   how many samples the node has
    seed      the order depends on (seed, node, pass) and nothing else
    node      the number of the node
    length    L, samples per epoch; by default all of them once. With the same L on all nodes every node makes as many
              steps: those with fewer samples see theirs more often
    shuffle   else every pass is in the order of the data set
    """

    def __init__(self, samples: int, seed: int = 0, node: int = 0, length: int | None = None, shuffle: bool = True):
        self._length, self._shuffle = samples if length is None else length, shuffle
        self._samples, self._order = samples, Order(samples, self._length, seed, node)
        self.epoch, self.first = 0, 0

    def __len__(self) -> int:
        """Samples of a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """The samples of this epoch from the `first`-th on."""
        if self._shuffle:
            picked = self._order.at(self.epoch)
        else:
            picked = np.arange(self.epoch * self._length, (self.epoch + 1) * self._length) % self._samples
        return iter(picked[self.first :].tolist())

    def set_epoch(self, epoch: int, first: int = 0) -> None:
        """Which epoch comes next, and how many of its samples have been seen already."""
        self.epoch, self.first = epoch, first
