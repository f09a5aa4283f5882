"""Exchange during backward: a bucket leaves when its last gradient is there, and arrives in the next forward.

Hooks on the parameters see gradients as backward computes them; hooks on the modules take a bucket's parameters
in just before the module that owns them runs. Wrong use is an error, never silence: a gradient for parameters that
were not taken in (used without calling their module), or one that comes after its bucket has left (a second backward).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dgt.algorithms.bucket import Bucket
from dgt.checks import ConfigError

if TYPE_CHECKING:
    from dgt.algorithms.gradient_tracking import GradientTracking


def exchange_during_backward(optimizer: GradientTracking, model: torch.nn.Module) -> list[Any]:
    """Set the hooks and return their handles; the optimizer's parameters must be the model's."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    homes: dict[torch.nn.Parameter, int] = {}
    for parameter, place in zip(optimizer.flat.parameters, optimizer.flat.places, strict=True):
        if parameter not in names:
            raise ConfigError("model: its parameters are not all of those given to the optimizer")
        homes[parameter] = next(
            number
            for number, bucket in enumerate(optimizer.buckets)
            if bucket.part.start <= place.start and place.stop <= bucket.part.stop
        )
    ready = _Ready(optimizer, homes, names)
    hooks: list[Any] = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: ready.add(parameter)) for parameter in homes
    ]
    for module in model.modules():
        own = {homes[parameter] for parameter in module.parameters(recurse=False) if parameter in homes}
        if own:
            taking = _taking([optimizer.buckets[number] for number in sorted(own)])
            hooks.append(module.register_forward_pre_hook(taking))
    return [*hooks, model.register_state_dict_pre_hook(lambda *_: optimizer.drain())]


def _taking(buckets: list[Bucket]) -> Any:
    # a plain function: copies of the model (deepcopy) share it, they do not copy the optimizer
    def take(*_: Any) -> None:
        for bucket in buckets:
            bucket.take_parameters()

    return take


class _Ready:
    """Counts the gradients of the present step, and starts buckets in their order."""

    def __init__(
        self, optimizer: GradientTracking, homes: dict[torch.nn.Parameter, int], names: dict[torch.nn.Parameter, str]
    ) -> None:
        self._optimizer, self._homes, self._names = optimizer, homes, names
        self._sizes = [list(homes.values()).count(number) for number in range(len(optimizer.buckets))]
        self._iteration = -1
        self._seen: set[torch.nn.Parameter] = set()
        self._missing: list[int] = []

    def add(self, parameter: torch.nn.Parameter) -> None:
        optimizer, home = self._optimizer, self._homes[parameter]
        if home >= optimizer.started and optimizer.buckets[home].under_way:
            raise RuntimeError(
                f"{self._names[parameter]} was used without calling the module it belongs to, before its new values "
                "had arrived; call the module, or leave bucket_mb at 0"
            )
        if not optimizer.uses_gradients_now:
            return
        if optimizer.iteration != self._iteration:
            self._iteration = optimizer.iteration
            self._seen.clear()
            self._missing = list(self._sizes)
        if parameter in self._seen:
            raise RuntimeError(
                f"a second gradient of {self._names[parameter]} in step {self._iteration}: put every backward but the "
                "last into `with optimizer.accumulate():`"
            )
        self._seen.add(parameter)
        self._missing[home] -= 1
        complete = optimizer.started
        while complete < len(self._missing) and not self._missing[complete]:
            complete += 1
        optimizer.start_buckets(complete)
