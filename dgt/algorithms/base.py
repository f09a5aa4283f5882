"""What the decentralized optimizers share: flat parameters, gradients with weight decay, the step counter."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from dgt.checks import ConfigError, TrainingError, check_range
from dgt.exchange.agreement import agree
from dgt.exchange.flat import FlatParameters
from dgt.exchange.network import Network


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(method, "__wrapped__", method)


class DecentralizedOptimizer(torch.optim.Optimizer, abc.ABC):
    """One step is: take the gradients, exchange with the neighbours, write the new parameters.

    Groups may have their own `lr` and `weight_decay` (the gradient becomes g + weight_decay * theta).
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            check_range("lr", float(group["lr"]), 0, open_low=True)
            check_range("weight_decay", float(group["weight_decay"]), 0)
        self.network = network
        self.transport = network.open_transport()
        self.flat = FlatParameters([group["params"] for group in self.param_groups])
        agree(network.node, {"parameters": self.flat.layout(), "algorithm": type(self).__name__})
        self.iteration = 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of this node, in step with its neighbours."""
        if _is_watched(self):
            return _watched_step(self, closure)
        return self._step(closure)

    # torch would wrap `step` for profilers and step hooks: a twentieth of a small model's iteration, so only on demand
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._announce()
        # no_grad is for the updates to enter, where they need it: it takes as long as a small model's arithmetic
        self.update()
        self.flat.write_parameters()
        self.iteration += 1
        return loss

    def _announce(self) -> None:
        """Tell the others what this rank was asked for: a stop or a checkpoint, when all have heard of it."""
        notices = self.network.node.notices
        if notices.stop_asked or notices.save_asked:
            notices.announce(self.iteration + self.hearing_steps)

    @property
    def hearing_steps(self) -> int:
        """Steps until everybody has heard what this node's next message says."""
        return max(1, self.network.reach)

    @property
    def stop_now(self) -> bool:
        """True on all ranks before the same step, once any of them was asked to stop by SIGTERM or SIGUSR1."""
        return self.iteration >= self.network.node.notices.stop_at

    # torch wraps these only to keep its compiler from tracing them, and the wrapper imports that compiler: two
    # seconds of start-up on every rank. The plain methods do the same work.
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """For the constructor only: the layout of the messages is agreed on there, once."""
        if hasattr(self, "flat"):
            raise ConfigError("add_param_group: give all parameters when making the optimizer, or make a new one")
        _plain(torch.optim.Optimizer.add_param_group)(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs besides the model: groups, iteration and tracker."""
        state = self.live_state()
        saved = {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in state["dgt"].items()}
        return state | {"dgt": saved}

    def live_state(self) -> dict[str, Any]:
        """The same without copies: it changes with the next step."""
        self.drain()
        state: dict[str, Any] = _plain(torch.optim.Optimizer.state_dict)(self)
        return state | {"dgt": {"algorithm": type(self).__name__, "iteration": self.iteration, **self.buffers()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, on every rank its own; the model's parameters are loaded separately."""
        saved = dict(state_dict["dgt"])
        own, name = self.buffers(), saved.pop("algorithm")
        if name != type(self).__name__:
            raise ConfigError(f"state_dict: made by {name}, not by {type(self).__name__}")
        for key, tensor in own.items():
            if key not in saved or saved[key].shape != tensor.shape:
                found = tuple(saved[key].shape) if key in saved else "nothing"
                raise ConfigError(f"state_dict: {key} should have shape {tuple(tensor.shape)}, found {found}")
        self.drain()
        groups = {key: value for key, value in state_dict.items() if key != "dgt"}
        _plain(torch.optim.Optimizer.load_state_dict)(self, groups)
        self.iteration = int(saved["iteration"])
        for key, tensor in own.items():
            tensor.copy_(saved[key])
        if not self.flat.has_masters:
            self.flat.read_parameters()

    def buffers(self) -> dict[str, torch.Tensor]:
        """The tensors that make up the state, by name."""
        return {"masters": self.flat.values} if self.flat.has_masters else {}

    @abc.abstractmethod
    def update(self) -> None:
        """The algorithm itself: from `self.flat` and its gradients to the next `self.flat`."""

    def read_gradient(self, out: torch.Tensor) -> None:
        """out = the gradient [parameters], weight decay included."""
        self.flat.gather_gradients(out)
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            if group["weight_decay"]:
                out[part].add_(self.flat.values[part], alpha=group["weight_decay"])

    def descend(self, start: torch.Tensor, direction: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
        """out = start - lr * scale * direction, with each group's own lr."""
        if len(self.param_groups) == 1:
            torch.add(start, direction, alpha=-scale * float(self.param_groups[0]["lr"]), out=out)
            return
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            torch.add(start[part], direction[part], alpha=-scale * float(group["lr"]), out=out[part])

    def refuse_non_finite(self, total: float) -> None:
        """Raise before anything is sent, unless this sum over what is to be sent is finite."""
        if math.isfinite(total):
            return
        gradient = self.flat.like()
        self.read_gradient(out=gradient)
        parts = {"the gradient": gradient, "a parameter": self.flat.values, **self.buffers()}
        # the sum of large numbers may overflow though each of them is finite
        what = next((name for name, part in parts.items() if not bool(torch.isfinite(part).all())), None)
        if what is not None:
            raise TrainingError(
                f"node {self.network.node.name}: {what} is not finite at iteration {self.iteration}, nothing of it was "
                "sent; a smaller lr may help, if the data is sound"
            )

    def tracking_error(self) -> torch.Tensor | None:
        """pi_i (y_i - G_i g_i) [parameters], which sums to zero over the nodes; None without a tracker."""
        return None

    def drain(self) -> None:
        """Take in whatever is still travelling."""

    def close(self) -> None:
        """Let go of the model, which goes on with another optimizer."""


_watched_step = torch.optim.Optimizer.profile_hook_step(DecentralizedOptimizer._step)


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    )
