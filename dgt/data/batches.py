"""Mini-batches that depend on (seed, node, step) and nothing else: no worker processes, no state to lose.

A node reads its shard in an endless stream of shuffled epochs; step t takes the samples [t B, (t+1) B) of it. So a
shard smaller than a batch works too: it appears in the batch more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dgt.data.partition import Indices

Array = npt.NDArray[Any]

# One stream of random numbers per use.
ORDER, AUGMENT, WINDOW = range(3)

# Mean and standard deviation of CIFAR-10's training pixels, per channel.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
PADDING = 4


def generator(seed: int, purpose: int, node: int, step: int) -> np.random.Generator:
    """Random numbers of their own for every (seed, purpose, node, step); counter-based, so no seeds can collide."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, step, node, purpose]))


class Order:
    """Which samples a node sees at step t: positions [t B, (t+1) B) in its stream of shuffled epochs."""

    def __init__(self, size: int, batch: int, seed: int, node: int) -> None:
        self.size, self.batch, self.seed, self.node = size, batch, seed, node
        self._epoch: tuple[int, Indices] | None = None

    def at(self, step: int) -> Indices:
        """[batch] numbers below `size`."""
        position, end, pieces = step * self.batch, (step + 1) * self.batch, []
        while position < end:
            epoch, first = divmod(position, self.size)
            last = min(self.size, first + end - position)
            pieces.append(self._shuffled(epoch)[first:last])
            position += last - first
        return np.concatenate(pieces)

    def _shuffled(self, epoch: int) -> Indices:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, generator(self.seed, ORDER, self.node, epoch).permutation(self.size)
        return self._epoch[1]


class ImageBatches:
    """Batches of one node's images [samples, channels, height, width] uint8, augmented and normalised on the device."""

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.uint8],
        shard: Indices,
        *,
        batch: int,
        augment: str,
        seed: int,
        node: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        part_of: Callable[[Array], Array] = lambda batch: batch,
    ) -> None:
        """part_of   which rows of a node's batch are this rank's, where a node has several"""
        self._order = Order(len(shard), batch, seed, node)
        self._shard, self._augment, self._seed, self._node = shard, augment, seed, node
        self._device, self._dtype, self._part_of = device, dtype, part_of
        self._labels = labels[shard].astype(np.int64)
        # a GPU holds its shard; on the CPU all processes read one memory map
        self._on_device = torch.from_numpy(images[shard]).to(device) if device.type == "cuda" else None
        self._images = images

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of step t: images [batch, channels, height, width] and labels [batch]."""
        picked = self._part_of(self._order.at(step))
        if self._on_device is not None:
            images = self._on_device[torch.from_numpy(picked).to(self._device)]
        else:
            images = torch.from_numpy(self._images[self._shard[picked]])
        if self._augment != "none":
            images = self._augmented(images, step)
        labels = torch.from_numpy(self._labels[picked]).to(self._device)
        return normalised(images, self._dtype), labels

    def _augmented(self, images: torch.Tensor, step: int) -> torch.Tensor:
        draw, batch = generator(self._seed, AUGMENT, self._node, step), self._order.batch
        if self._augment == "flip":
            mirrored = torch.from_numpy(self._part_of(draw.random(batch) < 0.5)).to(images.device)
            return torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        drawn = draw.integers(0, 2 * PADDING + 1, size=(2, batch))
        corners = torch.from_numpy(self._part_of(drawn.T).T)
        flips = torch.from_numpy(self._part_of(draw.random(batch) < 0.5))
        return crop_and_flip(images, corners.to(images.device), flips.to(images.device))


def crop_and_flip(images: torch.Tensor, corners: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Pad by 4 zeros, cut out at corners [2, batch], mirror where flips [batch] says so: one gather for all images."""
    batch, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (PADDING, PADDING, PADDING, PADDING))
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flips[:, None], width - 1 - columns, columns) + corners[1][:, None]
    rows = torch.arange(height, device=images.device) + corners[0][:, None]
    # pixels before channels: the result has the memory layout convolutions are quickest with
    cut = padded.permute(0, 2, 3, 1)[
        torch.arange(batch, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return cut.permute(0, 3, 1, 2)


def normalised(images: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 pixels to numbers of mean 0 and standard deviation 1 per channel, channels last in memory."""
    mean = torch.tensor(MEAN, dtype=dtype, device=images.device).view(1, -1, 1, 1)
    std = torch.tensor(STD, dtype=dtype, device=images.device).view(1, -1, 1, 1)
    # (x/255 - mean)/std in one multiplication and one addition
    images = images.to(dtype=dtype, memory_format=torch.channels_last)
    return images.mul_(1 / (255 * std)).sub_(mean / std)
