"""Image classification on CIFAR-10: `dgt train problem=cifar10`, or one of the experiments in `conf/experiment`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from dgt.config import Cifar10Config
from dgt.data import cifar10, partition
from dgt.data.batches import ImageBatches, normalised
from dgt.data.partition import Indices
from dgt.models import image_model
from dgt.network.weights import Weights
from dgt.problems.base import ProblemContext
from dgt.problems.supervised import Batch, SupervisedProblem

TEST_BATCH = 250
RECALIBRATION_BATCHES = 8


class ImageClassification(SupervisedProblem):
    """Node i's shard of CIFAR-10 and its copy of the model; all nodes start alike."""

    measures_start = False  # an untrained classifier guesses; a test set of ten thousand images is not free

    def __init__(self, config: Cifar10Config, context: ProblemContext, root: Path) -> None:
        data = cifar10.load(root)
        self.config, self.weight_decay = config, config.weight_decay
        shard = shards(config, data.train_y, context.weights, context.seed)[context.node]
        self._batches = ImageBatches(
            data.train_x,
            data.train_y,
            shard,
            batch=config.batch,
            augment=config.augment,
            seed=context.seed,
            node=context.node,
            device=context.device,
            dtype=context.dtype,
        )
        model = image_model(config.model, cifar10.CLASSES, config.norm, context.seed)
        self.model = model.to(context.device, context.dtype)
        self.mixes_buffers = config.buffers == "mixed"
        self._context, self._iteration = context, 0
        # the same images on every node and in every run; the whole set in its own order
        picked = np.sort(np.random.default_rng(0).permutation(len(data.test_y))[: config.test_samples])
        self._test_x, self._test_y = data.test_x, data.test_y.astype(np.int64)
        self._test_picked = picked

    def batch(self, iteration: int) -> Batch:
        self._iteration = iteration
        return self._batches.at(iteration)

    @property
    def test_targets(self) -> int:
        return len(self._test_picked)

    def test_batches(self, part: int, parts: int) -> Iterator[Batch]:
        picked = self._test_picked[part::parts]
        for start in range(0, len(picked), TEST_BATCH):
            rows = picked[start : start + TEST_BATCH]
            images = torch.from_numpy(self._test_x[rows]).to(self._context.device)
            yield normalised(images, self._context.dtype), torch.from_numpy(self._test_y[rows]).to(images.device)

    def recalibration(self) -> Callable[[], None] | None:
        """Statistics of the averaged model on this node's most recent batches."""
        if self.config.buffers != "recalibrated":
            return None
        steps = range(max(0, self._iteration + 1 - RECALIBRATION_BATCHES), self._iteration + 1)
        batches = [self._batches.at(step)[0] for step in steps]
        return lambda: torch.optim.swa_utils.update_bn(batches, self.model)


def shards(config: Cifar10Config, labels: np.ndarray, weights: Weights, seed: int) -> list[Indices]:
    """The samples of every node: sizes from `problem.sizes` or else the weights, labels as `problem.partition` says."""
    sizes = partition.shard_sizes(len(labels), weights, config.sizes)
    if config.partition == "dirichlet":
        return partition.dirichlet_shards(labels, sizes, config.beta, seed)
    return partition.iid_shards(sizes, seed)


def data_sizes(config: Cifar10Config, nodes: int, seed: int) -> list[int]:
    """What weights=data_size goes by: the sizes of shards that follow nobody's weights."""
    shares = np.ones(nodes)
    if config.partition == "dirichlet":
        shares = partition.uneven_shares(nodes, cifar10.CLASSES, config.beta, seed)
    return partition.shard_sizes(cifar10.TRAIN_SAMPLES, shares, config.sizes).tolist()
