"""The parameters of a node of several ranks: every rank has all of them, and updates its own share.

    gradients of every rank --reduce_scatter--> the node's mean gradient, of this rank's share
    share of theta, tracker, momentum: exchanged with the ranks that have the same share in other nodes
    new share of theta --all_gather--> all parameters, on every rank

Shares are equally long: what is missing in the last one is filled up with zeros, which stay zero. In large models they
are whole blocks of the narrow wires, so that these round as with one rank per node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgt.errors import ConfigError
from dgt.exchange.flat import FlatParameters, in_order_of
from dgt.exchange.fsdp import LocalShards
from dgt.exchange.within import within_node
from dgt.processes import wrappers
from dgt.processes.local import Local
from dgt.processes.notices import Notices

Targets = list[tuple[slice, torch.Tensor]]
BLOCK = 128  # numbers; see `exchange/codecs.py`, and GPUs like aligned memory
FLAGS = 2  # behind each row of gradients: how many ranks of the node were asked to stop, and to save


def flat_parameters(
    groups: Sequence[Sequence[torch.nn.Parameter]], names: Sequence[str], local: Local, way: str = "auto"
) -> FlatParameters:
    """All parameters of the model, of which the ranks of this node update one share each; `way` as of `Network`."""
    if local.size == 1:
        return FlatParameters(groups, names)
    if wrappers.are_shards([parameter for group in groups for parameter in group], local.world_ranks):
        return LocalShards(groups, names, local)
    return SharedParameters(groups, names, local, way)


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """A stretch of the share's gradient: `place` in the share, and its group; see `flat.Piece`."""

    whole: torch.Tensor
    place: slice
    group: int

    def gradient(self, zeros: torch.Tensor) -> torch.Tensor:
        return self.whole[self.place]


class SharedParameters(FlatParameters):
    """`whole` [parameters] holds every trainable parameter, `values` this rank's share of them.

    local   the ranks of this node, which make it together
    """

    def __init__(
        self, groups: Sequence[Sequence[torch.nn.Parameter]], names: Sequence[str], local: Local, way: str = "auto"
    ) -> None:
        self._local = local
        super().__init__(groups, names)
        self._rows = self._memory.view(local.size, -1)
        self.values = self._rows[local.rank]
        length = self.values.numel()
        self.start = local.rank * length
        self.slices = _inside(self.slices, self.start, length)
        rows = self.values.new_zeros(()).expand(local.size, length + (BLOCK if length % BLOCK == 0 else FLAGS))
        self._within = within_node(local, rows, self.values, way)
        self._incoming = torch.zeros_like(rows[0])
        self.gradient = self._incoming[:length]
        """The node's mean gradient, of this share."""
        self._reduced: tuple[bool, bool] | None = None
        self._targets: dict[int, list[Targets]] = {}
        local.broadcast(self._memory)
        super().write_parameters()

    def _room(self, numbers: int) -> int:
        size = self._local.size
        if numbers < size:
            raise ConfigError(f"ranks_per_node={size}: the model has {numbers} parameters; fewer ranks")
        block = BLOCK if numbers >= BLOCK * size else 1
        return -(-numbers // (block * size)) * block * size

    def _targets_in(self, rows: torch.Tensor) -> list[Targets]:
        """Where the gradient of each parameter goes, cut once per buffer."""
        key = rows.data_ptr()
        if key not in self._targets:
            self._targets[key] = [list(self._rows_of(place, rows)) for place in self.places]
        return self._targets[key]

    def _rows_of(self, place: slice, rows: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Stretches of a parameter at this place, and where their gradients go: a row has `values.numel()` of them."""
        length, first = self.values.numel(), place.start
        while first < place.stop:
            row, column = divmod(first, length)
            last = min(place.stop, first + length - column)
            yield slice(first - place.start, last - place.start), rows[row, column : column + last - first]
            first = last

    # ----------------------------------------------------------------------------------------------- within the node

    @torch.no_grad()
    def reduce_gradients(self, notices: Notices, anew: bool = False) -> tuple[bool, bool]:
        """Add up the gradients of this node's ranks; returns whether any of them was asked to stop, and to save.

        Once per step, unless they are to be added up `anew`.
        """
        before = self._reduced or (False, False)
        if self._reduced is None or anew:
            asked = bool(notices.stop_asked), notices.save_asked
            rows, length = self._within.rows(), self.values.numel()
            for parameter, targets in zip(self.parameters, self._targets_in(rows), strict=True):
                _copy(parameter, targets)
            rows[:, length : length + FLAGS] = torch.tensor(asked).to(rows)
            self._within.reduce_scatter(self._incoming)
            self.gradient.div_(self._local.size)
            stop, save = (bool(flag) for flag in self._incoming[length : length + FLAGS].tolist())
            self._reduced = stop or before[0], save or before[1]
            if asked[1]:
                notices.save_asked = False
        return self._reduced

    @torch.no_grad()
    def clip_gradient(self, most: float) -> torch.Tensor:
        """The node's gradient, reduced before, scaled down to this norm; returns the norm it had."""
        norm = self._local.all_reduce(self.gradient.square().sum(dtype=torch.float64), compared=False).sqrt()
        self.gradient.mul_((most / (norm + 1e-6)).clamp(max=1).to(self.gradient))
        return norm

    def write_parameters(self, part: slice | None = None) -> None:
        """Collect the shares of all ranks of this node, once all of this one is there."""
        if part is None:
            self._reduced = None
            self._within.all_gather(self._rows, self.values)
            super().write_parameters()

    # ------------------------------------------------------------------------------------------ what updates work with

    def pieces(self, length: int, part: slice) -> list[GradientPiece]:  # type: ignore[override]
        found = []
        for group, whole in enumerate(self.slices):
            start, stop = max(part.start, whole.start), min(part.stop, whole.stop)
            for first in range(start, stop, length):
                found.append(GradientPiece(self.gradient, slice(first, min(first + length, stop)), group))
        return found

    def gradient_rooms(self, vector: torch.Tensor, part: slice) -> list[torch.Tensor]:
        return [vector]

    def collect_gradients(self, views: Sequence[torch.Tensor], part: slice | None = None) -> None:
        views[0].copy_(self.gradient if part is None else self.gradient[part])

    def gather_gradients(self, out: torch.Tensor) -> None:
        out.copy_(self.gradient)

    def gradient_arrays(self) -> list[np.ndarray]:
        return [self.gradient.numpy()]


def _inside(slices: Sequence[slice], start: int, length: int) -> list[slice]:
    """The groups of a share, which has so many numbers from `start` on; the last has what it is filled up with too."""
    stops = [min(max(each.stop - start, 0), length) for each in slices]
    stops[-1] = length
    return [slice(first, stop) for first, stop in zip([0, *stops], stops, strict=False)]


def _copy(parameter: torch.nn.Parameter, targets: Targets) -> None:
    """A parameter's gradient to its places; none counts as zero."""
    if parameter.grad is None:
        for _, target in targets:
            target.zero_()
        return
    flat = in_order_of(parameter, parameter.grad)
    for inside, target in targets:
        target.copy_(flat[inside])
