"""Data for a training loop of one's own: this node's part of a data set, weights by sizes, a loader with a place.

mine = dgt.shard(dgt.cifar10(), network, "dirichlet", beta=0.5)
loader = dgt.ResumableLoader(mine, node, batch_size=32)
checkpoints = dgt.Checkpoints("checkpoints", network, model=model, optimizer=optimizer, loader=loader)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgt.config.checks import check_choice, check_range
from dgt.data import cifar10 as stored
from dgt.data.images import Images
from dgt.data.partition import Indices, dirichlet_shards, iid_shards, shard_sizes
from dgt.data.sampler import EpochSampler
from dgt.errors import ConfigError, SharedError
from dgt.exchange.network import Network
from dgt.processes import environment
from dgt.processes.agreement import agree
from dgt.processes.even_steps import WAYS
from dgt.processes.node import Node

PARTITIONS = ("iid", "dirichlet")


def cifar10(
    train: bool = True, root: str | Path | None = None, transform: Callable[[torch.Tensor], Any] | None = None
) -> Images:
    """CIFAR-10 as pairs (image, label), fetched if it is not there; images are read as they are needed.

    train       the 50,000 images for training, else the 10,000 for tests
    root        where it is kept; by default where `dgt data cifar10` keeps it, in the user's cache directory
    transform   called with the uint8 image [3, 32, 32] in place of the normalisation
    """
    folder = environment.cache_dir() if root is None else Path(root)
    stored.ensure(folder)
    data = stored.load(folder)
    return Images(*((data.train_x, data.train_y) if train else (data.test_x, data.test_y)), transform)


def shard(
    dataset: torch.utils.data.Dataset[Any],
    network: Network,
    partition: str | Sequence[Sequence[int]] = "iid",
    *,
    seed: int = 0,
    beta: float = 0.5,
    labels: Sequence[int] | None = None,
) -> torch.utils.data.Subset[Any]:
    """This node's part of a data set that every node has; all ranks call it, with the same arguments.

    Of a node of several ranks each gets every k-th sample of the node's part.

    dataset     has a length and numbered samples
    network     the part's size is in proportion to this node's weight lambda_i
    partition   iid: parts drawn at random; dirichlet: with unequal labels; or a list of indices for every node
    seed        of the draw
    beta        dirichlet: the smaller, the fewer labels a node sees
    labels      dirichlet: of all samples; by default `dataset.targets`, `dataset.labels` or its last tensor
    """
    node, samples = network.node, len(dataset)  # type: ignore[arg-type]
    if isinstance(partition, str):
        check_choice("partition", partition, PARTITIONS)
        check_range("beta", beta, 0, open_low=True)
        what = partition
    else:
        what = hashlib.sha256(repr([list(map(int, part)) for part in partition]).encode()).hexdigest()[:12]
    agree(node, {"samples": str(samples), "partition": what, "seed": str(seed), "beta": str(beta)})
    if not isinstance(partition, str):
        _check_parts(partition, samples, node.size)
        return torch.utils.data.Subset(dataset, _of_rank(partition, node))
    weights = node.all_gather(torch.tensor(network.weight, dtype=torch.float64)).cpu().numpy()
    sizes = shard_sizes(samples, weights)
    if partition == "iid":
        parts = iid_shards(sizes, seed)
    else:
        parts = dirichlet_shards(_labels(dataset, labels, samples), sizes, beta, seed)
    return torch.utils.data.Subset(dataset, _of_rank(parts, node))


def _of_rank(parts: Sequence[Any], node: Node) -> list[int]:
    """This rank's share of its node's part."""
    ranks = node.local.size
    for number, part in enumerate(parts):
        if len(part) < ranks:
            raise SharedError(
                f"partition: node {number} has {len(part)} samples for {ranks} ranks; every rank needs one"
            )
    return [int(sample) for sample in parts[node.rank][node.local.rank :: ranks]]


def data_size_weights(dataset: Sized, node: Node) -> list[int]:
    """Weights for `dgt.Network` by which each node counts as much as it has samples; all ranks call it.

    dataset   this rank's own, or anything else with a length; those of a node's ranks are added up
    node      from `dgt.join()`
    """
    ranks = node.local.size
    sizes = _sizes(dataset, node, "data_size_weights")
    return [sum(sizes[first : first + ranks]) for first in range(0, len(sizes), ranks)]


class ResumableLoader:
    """This rank's batches, epoch after epoch, and its place in them, which `dgt.Checkpoints` keeps; all ranks make it.

    dataset      this rank's own
    node         from `dgt.join()`
    batch_size   samples per batch of this rank
    seed         the order depends on (seed, rank, epoch) and nothing else
    shuffle      else in the order of the data set
    by           longest: epochs of all ranks are as long as the largest data set, smaller ones are read more often;
                 shortest: as long as the smallest
    options      of torch's DataLoader, such as num_workers, collate_fn, pin_memory

    An iteration goes on where the last one was left, to the end of that epoch.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any],
        node: Node,
        batch_size: int = 1,
        *,
        seed: int = 0,
        shuffle: bool = True,
        by: str = "longest",
        **options: Any,
    ) -> None:
        check_choice("by", by, WAYS)
        check_range("batch_size", batch_size, 1)
        sizes = _sizes(dataset, node, "ResumableLoader")  # type: ignore[arg-type]
        length = max(sizes) if by == "longest" else min(sizes)
        rank = node.world.rank
        self._batch, self._seed = batch_size, [seed, rank]
        self._sampler = EpochSampler(sizes[rank], seed, rank, length, shuffle)
        self._generator = torch.Generator()
        self._loader = torch.utils.data.DataLoader(
            dataset, batch_size, sampler=self._sampler, generator=self._generator, **options
        )
        self.epoch, self.batches = 0, 0

    def __len__(self) -> int:
        """Batches of a whole epoch, the same number on all ranks."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        # without a generator of its own, a DataLoader would draw its workers' seed from that of the model
        self._generator.manual_seed(int(np.random.SeedSequence([*self._seed, self.epoch]).generate_state(1)[0]))
        self._sampler.set_epoch(self.epoch, first=self.batches * self._batch)
        for batch in self._loader:
            self._count()  # before the step that it is used in: a checkpoint is made after that
            yield batch

    def _count(self) -> None:
        self.batches += 1
        if self.batches == len(self):
            self.epoch, self.batches = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The place: epoch and batches of it that were given out, not those that workers have prepared."""
        return {"epoch": self.epoch, "batches": self.batches, "length": len(self._sampler), "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; of a loader with the same batch size and sizes of data sets."""
        for name, own in (("length", len(self._sampler)), ("batch", self._batch)):
            if state[name] != own:
                raise ConfigError(f"ResumableLoader: {name} was {state[name]} when it was saved, here {own}")
        self.epoch, self.batches = state["epoch"], state["batches"]


def _sizes(dataset: Sized, node: Node, what: str) -> list[int]:
    """Of all ranks' data sets; raises the same error on all ranks if one is empty."""
    with node.world.during(what):
        sizes: list[int] = node.world.all_gather(len(dataset)).tolist()
    if 0 in sizes:
        raise SharedError(f"{what}: the data set of rank {sizes.index(0)} is empty; every node needs a sample")
    return sizes


def _check_parts(parts: Sequence[Sequence[int]], samples: int, nodes: int) -> None:
    if len(parts) != nodes:
        raise SharedError(f"partition: {len(parts)} lists of indices for {nodes} nodes; give one per node")
    for number, part in enumerate(parts):
        if not len(part):
            raise SharedError(f"partition: the list of node {number} is empty; every node needs a sample")
        if min(part) < 0 or max(part) >= samples:
            raise SharedError(f"partition: node {number} has index {max(part)}; allowed is 0 to {samples - 1}")


def _labels(dataset: Any, labels: Sequence[int] | None, samples: int) -> Indices:
    if labels is None:
        labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
    if labels is None and hasattr(dataset, "tensors"):
        labels = dataset.tensors[-1]
    found = np.asarray([] if labels is None else labels)
    if found.shape != (samples,) or found.dtype.kind not in "iu":
        raise SharedError("partition=dirichlet: the data set has no whole-number targets; give labels=[...], one each")
    return found
