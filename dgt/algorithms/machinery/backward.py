"""Exchange during backward: a bucket leaves when its last gradient is there, and arrives in the next forward.

Hooks on the parameters see gradients as backward computes them; hooks on the modules receive a bucket's parameters
just before the module that owns them runs. Wrong use raises: a gradient for parameters that were not received yet
(used without calling their module), one that comes after its bucket has left (a second backward), and a gradient that
is changed after it has left (clipping).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dgt.algorithms.machinery.bucket import Bucket
from dgt.errors import ConfigError

if TYPE_CHECKING:
    from dgt.algorithms.machinery.neighbours import NeighbourOptimizer


class ExchangeDuringBackward:
    """The hooks on one model, whose parameters are the optimizer's; counts the gradients of the present step."""

    def __init__(self, optimizer: NeighbourOptimizer, model: torch.nn.Module) -> None:
        self._optimizer = optimizer
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._homes: dict[torch.nn.Parameter, int] = {}
        for parameter, place in zip(optimizer.flat.parameters, optimizer.flat.places, strict=True):
            if parameter not in self._names:
                raise ConfigError("model: its parameters are not all of those given to the optimizer")
            self._homes[parameter] = next(
                number
                for number, bucket in enumerate(optimizer.buckets)
                if bucket.part.start <= place.start and place.stop <= bucket.part.stop
            )
        self._sizes = [list(self._homes.values()).count(number) for number in range(len(optimizer.buckets))]
        self._iteration = -1
        self._seen: set[torch.nn.Parameter] = set()
        self._missing: list[int] = []
        self._left: list[tuple[torch.nn.Parameter, torch.Tensor | None, int]] = []
        self._extents: list[torch.Tensor] = []
        self._hooks = self._set_hooks(model)

    def _set_hooks(self, model: torch.nn.Module) -> list[Any]:
        optimizer, homes = self._optimizer, self._homes
        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(lambda parameter: self._add(parameter)) for parameter in homes
        ]
        for module in model.modules():
            own = {homes[parameter] for parameter in module.parameters(recurse=False) if parameter in homes}
            if own:
                receiving = _receiving(optimizer, [optimizer.buckets[number] for number in sorted(own)])
                hooks.append(module.register_forward_pre_hook(_Hook(receiving)))
            # of any part of the model: neither is read before new values are there, nor overwritten by them
            hooks.append(module.register_state_dict_pre_hook(_Hook(optimizer.drain)))
            hooks.append(module.register_load_state_dict_pre_hook(_Hook(optimizer.drain)))
        return hooks

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _add(self, parameter: torch.nn.Parameter) -> None:
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
            self._forget()
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
        self._start(complete)

    def _start(self, complete: int) -> None:
        """The exchange of the first so many buckets begins, those that are on their way already aside."""
        started = self._optimizer.started
        if complete == started:
            return
        if not started:
            self._optimizer.begin_step()
        self._optimizer.start_buckets(complete)
        leaving = [parameter for parameter, home in self._homes.items() if started <= home < complete]
        gradients = [parameter.grad for parameter in leaving]
        self._extents.append(_extents(gradients))
        self._left += zip(leaving, gradients, map(_version, gradients), strict=True)

    def refuse_changes(self) -> None:
        """At the step: what has left during backward must still be what the model has."""
        changed = [
            parameter
            for parameter, gradient, version in self._left
            if parameter.grad is not gradient or _version(gradient) != version
        ]
        if changed:
            raise self._changed(changed[0])
        if self._left:
            self._compare_extents(self._left[0][0])
        self._forget()
        self._iteration = -1  # load_state_dict may go back to this iteration
        if self._optimizer.flat.moved:
            raise ConfigError("parameters were replaced between backward and step: with bucket_mb do it after the step")

    def _compare_extents(self, first: torch.nn.Parameter) -> None:
        """Gradients may have been changed by way of .data, which torch does not count; on a GPU seen a step later."""
        evidence = self._optimizer.transport.evidence
        before, now = torch.cat(self._extents), _extents([gradient for _, gradient, _ in self._left])
        if evidence is None:
            if not torch.equal(now, before):
                raise self._changed(first)
            return

        def check(number: float) -> None:
            if number:
                raise self._changed(first)

        evidence.note_number((now != before).any(), check)

    def _changed(self, parameter: torch.nn.Parameter) -> ConfigError:
        return ConfigError(
            f"the gradient of {self._names[parameter]} was changed after backward (by clip_grad_norm_, a "
            "GradScaler or zero_grad?), but with bucket_mb it had left by then: set bucket_mb=0, or change it "
            "during backward, in a hook of Tensor.register_hook"
        )

    def _forget(self) -> None:
        self._left.clear()
        self._extents.clear()


def _version(gradient: torch.Tensor | None) -> int:
    return gradient._version if gradient is not None else 0


def _extents(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The norm of each: clipping makes it smaller, also where torch does not count the change."""
    dense = [gradient.detach() for gradient in gradients if gradient is not None and not gradient.is_sparse]
    return torch.stack([norm.float() for norm in torch._foreach_norm(dense)]) if dense else torch.zeros(0)


def _receiving(optimizer: NeighbourOptimizer, buckets: list[Bucket]) -> Callable[[], None]:
    def receive() -> None:
        optimizer.advance()
        for bucket in buckets:
            bucket.receive_parameters()

    return receive


class _Hook:
    """Copies of the model share it and do not copy the optimizer; with a model that is read from a file it does
    nothing."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do

    def __call__(self, *_: Any) -> None:
        # called, not compiled with the model, nor is what it calls; the compiler takes seconds to import
        (torch.compiler.disable(self._do) if "torch._dynamo" in sys.modules else self._do)()

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: object) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing() -> None:
    """No optimizer, nothing to receive."""
