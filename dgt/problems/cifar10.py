"""Image classification on CIFAR-10: `dgt train problem=cifar10`, or one of the experiments in `conf/experiment`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgt.config.settings import setting
from dgt.data import cifar10, partition
from dgt.data.batches import ImageBatches, normalised
from dgt.data.partition import Indices
from dgt.models import image_model
from dgt.network.weights import Weights
from dgt.problems.base import ProblemContext
from dgt.problems.supervised import Batch, SupervisedProblem

MODELS = ("resnet18", "resnet20", "cnn", "strided_cnn")
AUGMENTS = ("none", "flip", "full")
NORMS = ("batch", "group")
BUFFERS = ("local", "mixed", "recalibrated")
PARTITIONS = ("iid", "dirichlet")
TEST_BATCH = 250
RECALIBRATION_BATCHES = 8


class ImageClassification(SupervisedProblem):
    """Node i's shard of CIFAR-10 and its copy of the model; all nodes start alike."""

    measures_start = False  # an untrained classifier guesses; a test set of ten thousand images is not free
    local_settings = ("root",)
    usual_lr = 0.1

    @dataclass(slots=True, kw_only=True)
    class Settings:
        model: str = setting(
            "resnet18", "resnet18 (the paper's), resnet20, or for CPUs cnn or strided_cnn", choices=MODELS
        )
        norm: str = setting("batch", "batch or group", choices=NORMS)
        buffers: str = setting(
            "local",
            "BatchNorm statistics: local, mixed (with the neighbours') or recalibrated (for the average model)",
            choices=BUFFERS,
        )
        batch: int = setting(128, "samples per node and iteration", low=1)
        augment: Any = setting(
            "full", "random changes of an image: none, flip, or full (crops and flips)", choices=AUGMENTS
        )
        weight_decay: float = setting(5e-4, "on the weights of convolutions and linear layers only", low=0)
        partition: str = setting("iid", "iid, or dirichlet for unequal labels", choices=PARTITIONS)
        beta: float = setting(0.5, "dirichlet: the smaller, the fewer labels a node sees", low=0, open_low=True)
        sizes: list[float] | None = setting(
            None, "shares of the samples, one per node; null: in proportion to the weights", low=0, open_low=True
        )
        test_samples: int = setting(10000, "test images used at evaluations", low=1, high=10000)
        root: str | None = setting(None, "where the data set is kept; null: the user's cache directory")

        def __post_init__(self) -> None:
            if isinstance(self.augment, bool):  # as earlier versions had it
                self.augment = "full" if self.augment else "none"

    @classmethod
    def check_settings(cls, settings: Settings, weights: Weights) -> None:
        partition.shard_sizes(cifar10.TRAIN_SAMPLES, weights, settings.sizes)

    @classmethod
    def fetch_data(cls, settings: Settings, cache: Path, say: Callable[[str], None]) -> None:
        root = _root(settings, cache)
        cifar10.ensure(root, say=say)
        cifar10.verify(cifar10.load(root), root)

    @classmethod
    def shard_sizes(cls, settings: Settings, nodes: int, seed: int) -> list[int]:
        """The sizes of shards that follow nobody's weights."""
        shares = np.ones(nodes)
        if settings.partition == "dirichlet":
            shares = partition.uneven_shares(nodes, cifar10.CLASSES, settings.beta, seed)
        return partition.shard_sizes(cifar10.TRAIN_SAMPLES, shares, settings.sizes).tolist()

    @classmethod
    def steps_per_epoch(cls, settings: Settings, nodes: int) -> float:
        return cifar10.TRAIN_SAMPLES / (nodes * settings.batch)

    @classmethod
    def parameter_count(cls, settings: Settings) -> int:
        model = image_model(settings.model, cifar10.CLASSES, settings.norm, 0)
        return sum(parameter.numel() for parameter in model.parameters())

    def __init__(self, context: ProblemContext, /, **settings: Any) -> None:
        config = self.Settings(**settings)
        data = cifar10.load(_root(config, context.cache))
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
            part_of=context.part_of,
        )
        context.part_of(np.empty(config.batch))  # whether the batch can be divided
        model = image_model(config.model, cifar10.CLASSES, config.norm, context.seed)
        self.model = model.to(context.device, context.dtype)
        self.mixes_buffers = config.buffers == "mixed"
        self._context, self._iteration = context, RECALIBRATION_BATCHES - 1  # before the first step: any batches
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


def shards(config: ImageClassification.Settings, labels: np.ndarray, weights: Weights, seed: int) -> list[Indices]:
    """The samples of every node: sizes from `problem.sizes` or else the weights, labels as `problem.partition` says."""
    sizes = partition.shard_sizes(len(labels), weights, config.sizes)
    if config.partition == "dirichlet":
        return partition.dirichlet_shards(labels, sizes, config.beta, seed)
    return partition.iid_shards(sizes, seed)


def _root(settings: ImageClassification.Settings, cache: Path | None) -> Path:
    assert settings.root is not None or cache is not None, "the trainer knows one"
    return Path(settings.root or str(cache))


PROBLEM = ImageClassification
