"""All parameters of a model as one flat buffer, so that one message carries them.

The parameters become views of the buffer; the model's owner sees no difference. In a model of mixed precision the
buffer has the widest dtype, and narrower parameters are rounded copies of their part of it (master weights).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgt.checks import ConfigError


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one parameter: `inside` of its own numbers, `place` in the flat buffer, and its group."""

    parameter: torch.nn.Parameter
    inside: slice
    place: slice
    group: int

    def gradient(self, zeros: torch.Tensor) -> torch.Tensor:
        """This stretch of the parameter's gradient; none counts as zero, for which there is room in `zeros`."""
        whole = self.parameter.grad
        if whole is None:
            return zeros[: self.inside.stop - self.inside.start].zero_()
        whole = whole.to_dense() if whole.is_sparse else whole
        return whole.reshape(-1)[self.inside]


class FlatParameters:
    """`values` [parameters] holds every trainable parameter, group after group; `slices[k]` is the range of group k.

    Frozen parameters (requires_grad is False) stay where they are: nobody changes them, so nobody needs them.
    """

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]]) -> None:
        trained = [[parameter for parameter in group if parameter.requires_grad] for group in groups]
        self.parameters = [parameter for group in trained for parameter in group]
        devices = {str(parameter.device) for parameter in self.parameters}
        if len(devices) != 1:
            found = ", ".join(sorted(devices)) or "no trainable parameter at all"
            raise ConfigError(f"parameters: all must be on one device, found {found}")
        dtype = functools.reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))
        sizes = [parameter.numel() for parameter in self.parameters]
        self.values = torch.empty(sum(sizes), dtype=dtype, device=self.parameters[0].device)
        self.has_masters = any(parameter.dtype != dtype for parameter in self.parameters)
        self._views = [
            view.view_as(parameter) for view, parameter in zip(self.values.split(sizes), self.parameters, strict=True)
        ]
        ends = list(itertools.accumulate(sizes))
        self.places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self.read_parameters()
        for view, parameter in zip(self._views, self.parameters, strict=True):
            if parameter.dtype == dtype:
                parameter.data = view
        self.slices: list[slice] = []
        start = 0
        for group in trained:
            length = sum(parameter.numel() for parameter in group)
            self.slices.append(slice(start, start + length))
            start += length

    def like(self) -> torch.Tensor:
        """A zeroed buffer of the same layout."""
        return torch.zeros_like(self.values)

    @torch.no_grad()
    def read_parameters(self) -> None:
        """Take the parameters' values over, where they are not views of the buffer anyway."""
        for view, parameter in zip(self._views, self.parameters, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter)

    def write_parameters(self, part: slice | None = None) -> None:
        """Round the buffer, or this part of it, into the parameters that are no views of it."""
        if self.has_masters:
            self._write_parameters(part)

    @torch.no_grad()
    def _write_parameters(self, part: slice | None) -> None:
        for view, parameter, place in zip(self._views, self.parameters, self.places, strict=True):
            if parameter.dtype != view.dtype and (part is None or part.start <= place.start < part.stop):
                parameter.copy_(view)

    def pieces(self, length: int, part: slice) -> list[Piece]:
        """This part of the buffer cut at the borders of the parameters, and within them every `length` numbers."""
        found, group = [], 0
        for parameter, place in zip(self.parameters, self.places, strict=True):
            if not part.start <= place.start < place.stop <= part.stop:
                continue
            while place.start >= self.slices[group].stop:
                group += 1
            for first in range(0, parameter.numel(), length):
                last = min(first + length, parameter.numel())
                inside, outside = slice(first, last), slice(place.start + first, place.start + last)
                found.append(Piece(parameter, inside, outside, group))
        return found

    def buckets(self, size: int) -> list[slice]:
        """Stretches of whole parameters with at least `size` bytes each, last first: gradients come in that order."""
        stop = self.values.numel()
        found, width = [], self.values.element_size()
        for place in reversed(self.places):
            if place.start < stop and ((stop - place.start) * width >= size or place.start == 0):
                found.append(slice(place.start, stop))
                stop = place.start
        return found

    def gather_gradients(self, out: torch.Tensor) -> None:
        """Copy every parameter's gradient into `out` [parameters]; no gradient counts as zero."""
        for parameter, place in zip(self.parameters, self.places, strict=True):
            if parameter.grad is None:
                out[place].zero_()
            else:
                gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                out[place].copy_(gradient.reshape(-1))

    def layout(self) -> str:
        """Shapes and dtypes in order: equal on all ranks, or messages would be misread."""
        shapes = " ".join(
            f"{'x'.join(map(str, parameter.shape)) or 'scalar'}:{str(parameter.dtype).removeprefix('torch.')}"
            for parameter in self.parameters
        )
        return f"{self.values.numel()} of {self.values.dtype}: {shapes}"
