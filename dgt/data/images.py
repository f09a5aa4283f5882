"""Stored images as a data set of torch's, for a loop of one's own: `dgt.cifar10()` makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dgt.data.batches import normalised
from dgt.data.cifar10 import Bytes


class Images(torch.utils.data.Dataset[tuple[Any, int]]):
    """Pairs (image, label): images [channels, height, width], mean 0 and standard deviation 1 per channel.

    images, labels  uint8 [samples, channels, height, width] and [samples]; memory maps are read as they are needed
    transform       called with the uint8 image as a tensor in place of the normalisation
    """

    def __init__(self, images: Bytes, labels: Bytes, transform: Callable[[torch.Tensor], Any] | None = None) -> None:
        self.images, self.targets, self.transform = images, np.asarray(labels, dtype=np.int64), transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """What a DataLoader calls, with all indices of a batch."""
        picked = torch.from_numpy(self.images[np.asarray(indices)])
        images = normalised(picked) if self.transform is None else map(self.transform, picked)
        return list(zip(images, self.targets[np.asarray(indices)].tolist(), strict=True))
