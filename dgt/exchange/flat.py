"""All parameters of a model as one flat buffer, so that one message carries them.

The parameters become views of the buffer; the model's owner sees no difference. In a model of mixed precision the
buffer has the widest dtype, and narrower parameters are rounded copies of their part of it (master weights).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.utils.dlpack

from dgt.errors import ConfigError
from dgt.processes.notices import Notices


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one parameter: `inside` of its own numbers, `place` in the flat buffer, and its group.

    Without a parameter it is a stretch of several.
    """

    parameter: torch.nn.Parameter | None
    inside: slice
    place: slice
    group: int

    def gradient(self, zeros: torch.Tensor) -> torch.Tensor:
        """This stretch of the parameter's gradient; none counts as zero, for which there is room in `zeros`."""
        assert self.parameter is not None
        whole = self.parameter.grad
        if whole is None:
            return zeros[: self.inside.stop - self.inside.start].zero_()
        whole = in_order_of(self.parameter, whole)
        return whole if whole.numel() == self.inside.stop - self.inside.start else whole[self.inside]


class FlatParameters:
    """`values` [parameters] holds every trainable parameter, group after group; `slices[k]` is the range of group k.

    With several ranks per node `whole` holds them, and `values` is the share that this rank updates (`shares.py`).

    Frozen parameters (requires_grad is False) stay where they are: nobody changes them, so nobody needs them.
    """

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]], names: Sequence[str] = ()) -> None:
        trained = [[parameter for parameter in group if parameter.requires_grad] for group in groups]
        self.parameters = [parameter for group in trained for parameter in group]
        everyone = [parameter for group in groups for parameter in group]
        self._frozen = [parameter for parameter in everyone if not parameter.requires_grad]
        self._names = {
            id(parameter): name or f"parameter {number} [{shape_in_words(parameter)}]"
            for number, (parameter, name) in enumerate(itertools.zip_longest(everyone, names))
        }
        devices = {str(parameter.device) for parameter in self.parameters}
        if len(devices) != 1:
            found = ", ".join(sorted(devices)) or "no trainable parameter at all"
            raise ConfigError(f"parameters: all must be on one device, found {found}")
        dtype = functools.reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))
        ends = list(itertools.accumulate(parameter.numel() for parameter in self.parameters))
        self._memory = torch.zeros(self._room(ends[-1]), dtype=dtype, device=self.parameters[0].device)
        self.whole = self._memory[: ends[-1]]
        self.values = self._memory
        self.start = 0
        """Which of all parameters `values` begins with."""
        self.has_masters = any(parameter.dtype != dtype for parameter in self.parameters)
        self.places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self._strides = [_strides(parameter) for parameter in self.parameters]
        self._views = self.views_of(self.whole)
        self._kinds = [_kind(parameter) for parameter in self.parameters]
        self.let_go: Callable[[], None] | None = None
        """Called before another buffer takes one of the parameters over."""
        self.taken = False
        _take_from_others(self)
        self._places = self._places_now()
        self._refuse_tied(range(len(self.parameters)))
        self._copies: set[int] = set()  # numbers of parameters that are no views
        self._bind(range(len(self.parameters)))
        self.slices: list[slice] = []
        start = 0
        for group in trained:
            length = sum(parameter.numel() for parameter in group)
            self.slices.append(slice(start, start + length))
            start += length

    def _room(self, numbers: int) -> int:
        """How many numbers there is to be memory for."""
        return numbers

    def like(self) -> torch.Tensor:
        """A zeroed buffer of the same layout."""
        return torch.zeros_like(self.values)

    @property
    def is_in_order(self) -> bool:
        """Whether the numbers of every parameter are in the order of their indices, unlike in channels_last."""
        return not any(self._strides)

    def views_of(self, vector: torch.Tensor, part: slice = slice(None)) -> list[torch.Tensor]:
        """The parameters that are in this part, in a vector of its length, each with its shape and order in memory."""
        start = part.start or 0
        return [
            vector[place.start - start : place.stop - start].as_strided(parameter.shape, strides)
            if strides is not None
            else vector[place.start - start : place.stop - start].view_as(parameter)
            for parameter, place, strides in zip(self.parameters, self.places, self._strides, strict=True)
            if start <= place.start and (part.stop is None or place.stop <= part.stop)
        ]

    @torch.no_grad()
    def _bind(self, numbers: Sequence[int]) -> None:
        """Take these parameters' values over, and make them views of the buffer where that is possible."""
        inside = {number: self.parameters[number].clone() for number in numbers if self._is_inside(number)}
        for number in numbers:
            view, parameter = self._views[number], self.parameters[number]
            if number in self._copies:
                self._read_copy(number)
            else:
                view.copy_(inside.get(number, parameter))
            if self._stays(parameter, view):
                self._copies.add(number)
            else:
                self._copies.discard(number)
                parameter.data = _own_storage(view)
        self._places = self._places_now()

    def _stays(self, parameter: torch.Tensor, view: torch.Tensor) -> bool:
        """Whether it keeps memory of its own: other processes look at shared memory, what is there stays there."""
        return parameter.dtype != view.dtype or (parameter.device.type == "cpu" and parameter.is_shared())

    def _is_inside(self, number: int) -> bool:
        """Whether this parameter's memory is the buffer's: another one's place, as when two were exchanged."""
        return 0 <= self.parameters[number].data_ptr() - self.whole.data_ptr() < self.whole.nbytes

    def _places_now(self) -> list[tuple[int, int, bool]]:
        """Where every parameter's memory begins, and whether its numbers are all there, in order: of a transpose in the
        same memory they are not."""
        return [
            (each.data_ptr(), each.numel(), each.is_contiguous() if strides is None else each.stride() == strides)
            for each, strides in zip(self.parameters, self._strides, strict=True)
        ]

    @property
    def moved(self) -> bool:
        """Whether a parameter was given other memory, or a part or another order of its own, since it was last seen."""
        return self._places_now() != self._places

    def follow(self) -> None:
        """Take over what was done to the parameters since the last step, other than changing them in place.

        `p.data = ...` and the like give a parameter memory of its own: its values count, and it becomes a view again.
        """
        if self.taken:
            raise ConfigError(
                "the parameters were given to another optimizer of dgt since: step that one; to train parts of a model "
                "differently, make one optimizer with parameter groups"
            )
        if self.moved:
            self._take_back()
        if self._copies:
            self._read_copies()
        if self._frozen:
            self._refuse_unfrozen()

    def _take_back(self) -> None:
        pairs = zip(self._places, self._places_now(), strict=True)
        moved = [number for number, (before, now) in enumerate(pairs) if now != before]
        for number in moved:
            kind = _kind(self.parameters[number])
            if kind != self._kinds[number]:
                raise ConfigError(
                    f"{self._names[id(self.parameters[number])]} was {self._kinds[number]} when the optimizer was made "
                    f"and is {kind} now: call model.to(), .double() or .half() first, then make the optimizer"
                )
        self._refuse_tied(moved)
        self._bind(moved)

    def _refuse_tied(self, numbers: Sequence[int]) -> None:
        """Two parameters in the same memory would part at the next step: each has a place of its own in the buffer."""
        first: dict[int, int] = {}
        for number, (pointer, *_) in enumerate(self._places_now()):
            other = first.setdefault(pointer, number) if pointer else number
            if other != number and {number, other} & set(numbers):
                a, b = (self._names[id(self.parameters[each])] for each in (other, number))
                raise ConfigError(
                    f"{a} and {b} are two parameters in the same memory: tie them by giving both modules the same "
                    "Parameter, layer.weight = other.weight, before making the optimizer"
                )

    def _refuse_unfrozen(self) -> None:
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise ConfigError(
                    f"{self._names[id(parameter)]} was frozen when the optimizer was made and is to be trained now: "
                    "make a new optimizer on all ranks, after requires_grad_(True)"
                )

    @torch.no_grad()
    def _read_copies(self) -> None:
        """Where a copy is no longer the rounded buffer, its owner has changed it: that counts."""
        for number in self._copies:
            self._read_copy(number)

    def _read_copy(self, number: int) -> None:
        view, parameter = self._views[number], self.parameters[number]
        same = parameter == view.to(parameter.dtype)
        view.copy_(torch.where(same, view, parameter.to(view.dtype)))

    def reduce_gradients(self, notices: Notices) -> tuple[bool, bool]:
        """Among the ranks of a node, if it has several (`shares.py`)."""
        raise NotImplementedError

    def write_parameters(self, part: slice | None = None) -> None:
        """Round the buffer, or this part of it, into the parameters that are no views of it."""
        if self._copies:
            self._write_parameters(part)

    @torch.no_grad()
    def _write_parameters(self, part: slice | None) -> None:
        for number in self._copies if part is None else self._copies.intersection(self._numbers_in(part)):
            self.parameters[number].copy_(self._views[number])

    def versions(self, part: slice) -> list[int]:
        """How often each parameter in this part was changed in place; 0 where torch does not count, or we do it."""
        return [self._version(number) for number in self._numbers_in(part)]

    def _version(self, number: int) -> int:
        parameter = self.parameters[number]
        return 0 if number in self._copies or parameter.is_inference() else parameter._version

    def refuse_changed(self, part: slice, versions: Sequence[int]) -> None:
        """Raise if a parameter was changed since: its new values are on their way, and would overwrite the change."""
        for number, before, now in zip(self._numbers_in(part), versions, self.versions(part), strict=True):
            if before != now and self.parameters[number].data_ptr() == self._places[number][0]:
                raise ConfigError(
                    f"{self._names[id(self.parameters[number])]} was changed while its new values were on their way: "
                    "with bucket_mb, call optimizer.drain() before changing parameters"
                )

    def _numbers_in(self, part: slice) -> list[int]:
        """The parameters that this part has numbers of."""
        reach = ((number, place) for number, place in enumerate(self.places) if place.start < place.stop)
        return [number for number, place in reach if place.start < part.stop and part.start < place.stop]

    def pieces(self, length: int, part: slice) -> list[Piece]:
        """This part of the buffer cut at the borders of the parameters, and within them every `length` numbers."""
        found, group = [], 0
        for number in self._numbers_in(part):
            parameter, place = self.parameters[number], self.places[number]
            while place.start >= self.slices[group].stop:
                group += 1
            end = min(place.stop, part.stop)
            for first in range(max(place.start, part.start), end, length):
                last = min(first + length, end)
                inside = slice(first - place.start, last - place.start)
                found.append(Piece(parameter, inside, slice(first, last), group))
        return found

    def cut(self, most: int, unit: int) -> list[slice]:
        """The buffer in at most so many parts, each a multiple of `unit` numbers long but for the last."""
        total = self.values.numel()
        length = -(-total // (most * unit)) * unit
        return [slice(first, min(first + length, total)) for first in range(0, total, length)]

    def stretches(self, part: slice) -> list[Piece]:
        """This part of the buffer cut at the borders of the groups only: a GPU's kernels are few and long."""
        cut = [slice(max(part.start, whole.start), min(part.stop, whole.stop)) for whole in self.slices]
        return [Piece(None, place, place, group) for group, place in enumerate(cut) if place.start < place.stop]

    def buckets(self, size: int) -> list[slice]:
        """Stretches of whole parameters with at least `size` bytes each, last first: gradients come in that order."""
        stop = self.values.numel()
        found, width = [], self.values.element_size()
        for place in reversed(self.places):
            if place.start < stop and ((stop - place.start) * width >= size or place.start == 0):
                found.append(slice(place.start, stop))
                stop = place.start
        return found

    def gradient_rooms(self, vector: torch.Tensor, part: slice) -> list[torch.Tensor]:
        """Where `collect_gradients` is to put the gradients of this part, in a vector of its length."""
        return self.views_of(vector, part)

    def collect_gradients(self, views: Sequence[torch.Tensor], part: slice | None = None) -> None:
        """Copy the gradients of the parameters, or those in this part, into `views`, by one kernel; none is zero."""
        chosen = self.parameters if part is None else [self.parameters[number] for number in self._numbers_in(part)]
        own = [parameter.grad for parameter in chosen]
        there = [(view, grad) for view, grad in zip(views, own, strict=True) if grad is not None]
        missing = [view for view, grad in zip(views, own, strict=True) if grad is None]
        if there:
            dense = [grad.to_dense() if grad.is_sparse else grad for _, grad in there]
            torch._foreach_copy_([view for view, _ in there], dense)
        if missing:
            torch._foreach_zero_(missing)

    def gather_gradients(self, out: torch.Tensor) -> None:
        """Copy every parameter's gradient into `out` [parameters]; no gradient counts as zero."""
        for parameter, place in zip(self.parameters, self.places, strict=True):
            if parameter.grad is None:
                out[place].zero_()
            else:
                out[place].copy_(in_order_of(parameter, parameter.grad))

    def gradient_arrays(self) -> list[np.ndarray]:
        """The gradients, in order, as they are; raises if one is missing, sparse or in an order of its own."""
        if not self.is_in_order:
            raise TypeError("gradients are laid out as their parameters")
        return [parameter.grad.numpy().reshape(-1) for parameter in self.parameters]  # type: ignore[union-attr]

    def layout(self) -> str:
        """Shapes and dtypes in order: equal on all ranks, or messages would be misread."""
        shapes = " ".join(
            f"{shape_in_words(parameter)}:{str(parameter.dtype).removeprefix('torch.')}{strides or ''}"
            for parameter, strides in zip(self.parameters, self._strides, strict=True)
        )
        return f"{self.whole.numel()} of {self.values.dtype}: {shapes}"


_living: weakref.WeakSet[FlatParameters] = weakref.WeakSet()


def _take_from_others(flat: FlatParameters) -> None:
    """A parameter lives in one buffer: an older one brings it up to date, and is not to be used any more."""
    own = {id(parameter) for parameter in flat.parameters}
    for other in list(_living):
        if not other.taken and not own.isdisjoint(map(id, other.parameters)):
            if other.let_go is not None:
                other.let_go()
            other.taken = True
    _living.add(flat)


def _own_storage(view: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own, which keeps the whole buffer alive: `torch.save` writes storages
    in full, so that one layer of a model would carry all the others with it."""
    if view.device.type not in ("cpu", "cuda") or type(view) is not torch.Tensor or not view.numel():
        return view
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(view))


def _strides(parameter: torch.Tensor) -> tuple[int, ...] | None:
    """Of a parameter whose numbers are in another order than their indices, as in channels_last; else None."""
    if parameter.is_contiguous():
        return None
    width = 1
    for stride, length in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if length > 1:
            if stride != width:  # a part of something larger
                return None
            width *= length
    return parameter.stride()


def in_order_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a vector, its numbers in the order that the parameter has in memory."""
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    if parameter.is_contiguous():
        return gradient.reshape(-1)
    order = sorted(range(parameter.dim()), key=lambda axis: -parameter.stride()[axis])
    return gradient.permute(order).reshape(-1)


def _kind(parameter: torch.Tensor) -> str:
    return f"{str(parameter.dtype).removeprefix('torch.')} [{shape_in_words(parameter)}] on {parameter.device}"


def shape_in_words(parameter: torch.Tensor) -> str:
    return "x".join(map(str, parameter.shape)) or "scalar"
