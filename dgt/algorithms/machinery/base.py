"""`base=torch.optim.AdamW`: an optimizer of torch, or the user's own, applied to the direction of an algorithm here.

    base = Base(torch.optim.AdamW, {"betas": (0.9, 0.99)})  # refuses what cannot work
    base.attach(values, groups, parts, slices)               # an optimizer for each stretch of these parts
    base.step(part, values, direction, groups)               # values <- its step with direction as the gradient

It sees flat parameters, stretches of a bucket and parameter group that stay in the cache, so its state is local and its
loops are short; that is the same as on the model's own parameters for every optimizer that treats all numbers alike,
which is tried out first.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dgt.config.checks import check_choice
from dgt.config.registry import resolve
from dgt.errors import ConfigError
from dgt.exchange.streams import LONG_PIECE

PREFIX = "base_"  # of its state in checkpoints
STEPS = f"{PREFIX}steps"
FIRST = "exp_avg"  # torch's name of the first moment
TRIAL_SIZE, TRIAL_STEPS, TRIAL_LR = 12, 3, 0.001
Make = Callable[..., torch.optim.Optimizer]
Groups = Sequence[Mapping[str, Any]]


class Base:
    """One optimizer of the same kind per stretch.

    kind     a class derived from torch.optim.Optimizer, its name in torch.optim (adamw), or its dotted path
    options  its keyword arguments but lr
    """

    def __init__(self, kind: Any, options: Mapping[str, Any] | None) -> None:
        self._make, self.name = found(kind)
        self._options = {
            key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()
        }
        sample = self._made([torch.nn.Parameter(torch.zeros(1))])
        self.defaults = {key: value for key, value in sample.defaults.items() if key != "lr"}
        """Its hyperparameters, which are entries of the parameter groups: schedulers may change them."""
        self._kinds: dict[str, Any] = {}  # what it keeps for a parameter of the trial, by key
        self._refuse_whole_tensors()
        self.steps = 0
        self._stretches: list[_Stretch] = []

    def attach(self, values: torch.Tensor, groups: Groups, parts: Sequence[slice], slices: Sequence[slice]) -> None:
        """Make the optimizers for these parts of the flat parameters, whose groups are at `slices`."""
        self._counts_on_device = bool(self._options.get("capturable"))
        fused = {} if {"fused", "foreach"} & self._options.keys() or not self._takes_fused(values) else {"fused": True}
        cut = values.device.type == "cpu"
        for part in sorted(parts, key=lambda each: each.start):
            for number, places in _places(part, slices).items():
                whole = slice(places[0].start, places[-1].stop)
                for each in [[place] for place in places] if cut else [places]:
                    place = each[0] if cut else whole
                    own = self._of_group(groups[number])
                    flat = torch.nn.Parameter(values[place])
                    optimizer = self._make([{"params": [flat], **own}], **{**self._options, **fused, "lr": own["lr"]})
                    self._stretches.append(_Stretch(optimizer, flat, number, place, each))
        self._stretches.sort(key=lambda stretch: stretch.place.start)
        # as torch's own load_state_dict
        self._counts_on_device |= any(each.optimizer.param_groups[0].get("fused") for each in self._stretches)
        self._starts = [each.place.start for each in self._stretches]

    @property
    def has_first_moment(self) -> bool:
        """Whether it keeps m' = b1 m + (1 - b1) g apart from what it divides by, as Adam and its kin do: tried out."""
        if FIRST not in self._kinds or "betas" not in self.defaults:
            return False
        draw, b1 = torch.Generator().manual_seed(1), float(self.defaults["betas"][0])
        parameter, m = torch.nn.Parameter(torch.zeros(TRIAL_SIZE)), torch.zeros(TRIAL_SIZE)
        optimizer = self._made([parameter])
        optimizer.param_groups[0]["weight_decay"] = 0.0
        for _ in range(TRIAL_STEPS):
            parameter.grad = torch.randn(TRIAL_SIZE, generator=draw)
            m = b1 * m + (1 - b1) * parameter.grad
            optimizer.step()
        return b1 > 0 and torch.allclose(optimizer.state[parameter][FIRST], m)

    def step(
        self,
        part: slice,
        values: torch.Tensor,
        direction: torch.Tensor,
        groups: Groups,
        missing: torch.Tensor | None = None,
    ) -> None:
        """values <- values after a step of the base with `direction` for its gradient; all [numbers of this part].

        part     of the flat parameters: whole stretches
        missing  what the first moment sees besides `direction`, and the second does not
        """
        for number in range(bisect_left(self._starts, part.start), bisect_left(self._starts, part.stop)):
            stretch = self._stretches[number]
            inside = slice(stretch.place.start - part.start, stretch.place.stop - part.start)
            more = missing[inside] if missing is not None else None
            self._step(stretch, values[inside], direction[inside], groups[stretch.group], more)
        self.steps += 1

    def _step(
        self,
        stretch: _Stretch,
        values: torch.Tensor,
        direction: torch.Tensor,
        group: Mapping[str, Any],
        missing: torch.Tensor | None,
    ) -> None:
        flat, optimizer = stretch.flat, stretch.optimizer
        is_first = missing is not None and FIRST not in optimizer.state[flat]
        if missing is not None and not is_first:
            stretch.add_to_first_moment(missing, group, before=True)
        flat.data, flat.grad = values, direction
        optimizer.param_groups[0].update(self._of_group(group))
        optimizer.step()
        self._refuse_unknown_state(optimizer.state[flat])
        if missing is not None and is_first:  # the step has made the state
            stretch.add_to_first_moment(missing, group, before=False)
        flat.grad = None

    def _refuse_unknown_state(self, state: Mapping[str, Any]) -> None:
        """What a group or a scheduler has turned on later would not be in checkpoints."""
        if len(state) != len(self._kinds):
            new = sorted(key for key, value in state.items() if value is not None and key not in self._kinds)
            if new:
                raise ConfigError(
                    f"base={self.name}: it keeps {', '.join(new)} now, and did not when it was made: give what "
                    "needs it (momentum, amsgrad, centered) as base_options"
                )

    def _of_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """What the base takes of a parameter group; fused and foreach are chosen once."""
        taken = {key: group[key] for key in self.defaults if key in group and key not in ("fused", "foreach")}
        return taken | {"lr": group["lr"]}

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor of its state by name; before the first step, of the shapes that they will have."""
        found = {STEPS: torch.tensor(self.steps)}
        for stretch, key, names in self._entries():
            flat, state = stretch.flat, stretch.optimizer.state[stretch.flat]
            value = state[key] if key in state else self._expected(key, flat)
            for name, inside in names.items():
                if not isinstance(value, torch.Tensor):
                    found[name] = torch.tensor(value, dtype=torch.float64)
                else:
                    found[name] = value[inside] if value.shape == flat.shape else value
        return found

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave."""
        self.steps = int(saved[STEPS])
        for stretch, key, names in self._entries():
            state, values = stretch.optimizer.state[stretch.flat], [saved[name] for name in names]
            if not self.steps:
                state.clear()
            elif isinstance(self._kinds[key], torch.Tensor):
                on_host = not values[0].ndim and not self._counts_on_device
                value = torch.cat(values) if values[0].ndim else values[0].clone()
                state[key] = value.to("cpu" if on_host else stretch.flat.device)
            else:
                state[key] = type(self._kinds[key])(values[0].item())

    def _entries(self) -> Iterator[tuple[_Stretch, str, dict[str, slice]]]:
        """A stretch, a key of its state, and the names in checkpoints of its parts, which are those of a CPU."""
        for stretch in self._stretches:
            start = stretch.place.start
            for key in self._kinds:
                names = {
                    f"{PREFIX}{part.start}_{stretch.group}_{key}": slice(part.start - start, part.stop - start)
                    for part in stretch.parts
                }
                yield stretch, key, names

    def _expected(self, key: str, flat: torch.Tensor) -> Any:
        """What the first step would make of a state, in shape; it takes no memory."""
        kind = self._kinds[key]
        if isinstance(kind, torch.Tensor) and kind.shape == (TRIAL_SIZE,):
            return torch.zeros((), dtype=flat.dtype, device=flat.device).expand(flat.shape)
        return kind

    def _made(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        try:
            return self._make(parameters, lr=TRIAL_LR, **self._options)
        except Exception as error:  # whatever its constructor has against them
            options = "".join(f", {key}={value}" for key, value in self._options.items())
            raise ConfigError(f"base={self.name}: it cannot be made with lr={TRIAL_LR}{options}: {error}") from None

    def _takes_fused(self, values: torch.Tensor) -> bool:
        plain = values.dtype in (torch.float32, torch.float64) and values.device.type in ("cpu", "cuda")
        return plain and "fused" in self.defaults

    def _refuse_whole_tensors(self) -> None:
        """Parameters are one flat vector here: an optimizer must do the same with it as with its parts."""
        draw = torch.Generator().manual_seed(0)
        start = torch.randn(TRIAL_SIZE, generator=draw)
        gradients = torch.randn(TRIAL_STEPS, TRIAL_SIZE, generator=draw)
        third = TRIAL_SIZE // 3
        parts = self._trial(start, gradients, [third] * 3)
        whole = self._trial(start, gradients, [TRIAL_SIZE])
        if not torch.allclose(whole, parts):
            raise ConfigError(
                f"base={self.name}: it treats a parameter as a whole, by its norm or its shape; here all parameters "
                "are one vector, so give an elementwise one, such as adamw"
            )

    def _trial(self, start: torch.Tensor, gradients: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        parameters = [torch.nn.Parameter(part.clone()) for part in start.split(sizes)]
        optimizer = self._made(parameters)
        for gradient in gradients:
            for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
                parameter.grad = part.clone()
            try:
                optimizer.step()
            except Exception as error:
                raise ConfigError(
                    f"base={self.name}: its step fails on a vector without a closure: {error}; give an "
                    "elementwise one, such as adamw"
                ) from None
        group = optimizer.param_groups[0]
        changed = [key for key, value in self.defaults.items() if group.get(key, value) != value]
        if changed:
            raise ConfigError(
                f"base={self.name}: it keeps state ({', '.join(changed)}) in its parameter groups, which are the "
                "user's here; give one that keeps it by parameter"
            )
        self._kinds = {key: value for key, value in optimizer.state[parameters[0]].items() if value is not None}
        return torch.cat([parameter.detach() for parameter in parameters])


@dataclass(frozen=True, slots=True)
class _Stretch:
    """optimizer  of one flat parameter
    group      the number of its parameter group
    place      where it is among all parameters
    parts      what of it a CPU would have as stretches, and checkpoints have
    """

    optimizer: torch.optim.Optimizer
    flat: torch.nn.Parameter
    group: int
    place: slice
    parts: Sequence[slice]

    def add_to_first_moment(self, missing: torch.Tensor, group: Mapping[str, Any], before: bool) -> None:
        """Have m' = b1 m + (1 - b1) (g + missing): before the step m <- m + (1 - b1) / b1 missing."""
        b1 = float(group["betas"][0])
        if not b1 > 0:
            raise ConfigError(f"betas={group['betas']}: the first must be above 0 with base_form=predicted")
        self.optimizer.state[self.flat][FIRST].add_(missing, alpha=(1 - b1) / (b1 if before else 1.0))


def _places(part: slice, slices: Sequence[slice]) -> dict[int, list[slice]]:
    """By group, the stretches of this part that stay in a CPU's cache."""
    found: dict[int, list[slice]] = {}
    for first in range(part.start, part.stop, LONG_PIECE):
        for number, whole in enumerate(slices):
            place = slice(max(first, whole.start), min(first + LONG_PIECE, part.stop, whole.stop))
            if place.start < place.stop:
                found.setdefault(number, []).append(place)
    return found


def found(kind: Any) -> tuple[Make, str]:
    """The class that `base=` means, and its name for messages."""
    if isinstance(kind, str) and "." in kind:
        kind = resolve(kind, "base")
    elif isinstance(kind, str):
        names = {name.lower(): each for name, each in vars(torch.optim).items() if _is_optimizer(each)}
        if kind.lower() not in names:  # those that are refused below are not proposed
            check_choice("base", kind.lower(), sorted(names.keys() - {"adafactor", "lbfgs", "muon", "sparseadam"}))
        kind = names[kind.lower()]
    name = getattr(getattr(kind, "func", kind), "__name__", str(kind))  # functools.partial has its class in `func`
    if isinstance(kind, torch.optim.Optimizer):
        raise ConfigError(f"base={type(kind).__name__}(...): give the class, and its options as base_options={{...}}")
    if not callable(kind) or (inspect.isclass(kind) and not issubclass(kind, torch.optim.Optimizer)):
        raise ConfigError(f"base={name}: must be a class derived from torch.optim.Optimizer")
    step = getattr(kind, "step", None)
    needed = inspect.signature(step).parameters.get("closure") if step else None
    if needed is not None and needed.default is needed.empty:
        raise ConfigError(
            f"base={name}: it calls the model again by a closure, which the exchange with neighbours rules out"
        )
    return kind, name


def _is_optimizer(each: Any) -> bool:
    return inspect.isclass(each) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
