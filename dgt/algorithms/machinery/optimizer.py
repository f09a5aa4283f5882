"""What all decentralized optimizers share: torch's interface, flat parameters, the step counter, state_dict."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import optimizer as torch_optimizer

from dgt.algorithms.machinery.base import PREFIX, Base
from dgt.algorithms.machinery.descent import Descent
from dgt.algorithms.machinery.groups import group_facts, group_values
from dgt.algorithms.machinery.saved import checked
from dgt.algorithms.machinery.scaling import unscaled
from dgt.algorithms.machinery.traffic import check_ranks_per_node, check_schedule, check_traffic
from dgt.config.checks import check_range
from dgt.config.schema import LAZINESS
from dgt.config.settings import meanings
from dgt.errors import ConfigError, TrainingError
from dgt.exchange.network import Network
from dgt.exchange.shares import SharedParameters, flat_parameters
from dgt.network.mixing import check_own_weights
from dgt.processes import wrappers
from dgt.processes.agreement import agree, together


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(method, "__wrapped__", method)


@dataclasses.dataclass(slots=True, kw_only=True)
class NoSettings:
    """An algorithm without hyperparameters of its own."""


class DecentralizedOptimizer(torch.optim.Optimizer, abc.ABC):
    """One step is: read the gradients, exchange with other nodes, write the new parameters.

    An algorithm that exchanges vectors with its neighbours derives from `NeighbourOptimizer`; this class knows no more
    than that there are other nodes.

    Groups may have their own `lr` and `weight_decay` (the gradient becomes g + weight_decay * theta; with a base, what
    that makes of it), the same on all ranks at every step: z_j = theta_j - alpha y_j is mixed under a common alpha.

    With a `torch.amp.GradScaler`, a node whose gradients overflow stays out of that step: it does not descend, but
    exchanges and mixes as ever, so that it keeps in step with neighbours who need not know (see `scaling.unscaled`).
    """

    Settings: ClassVar[type[Any]] = NoSettings
    """Hyperparameters of the algorithm, a dataclass of `setting`s: keyword arguments of the constructor, entries of the
    parameter groups, and `algorithm.NAME=` in configs; the constructor's values are in `self.settings`."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """Which of wire, local_steps and bucket_mb may be given; without, they keep their defaults."""
    needs_static_graph: ClassVar[bool] = False
    """Whether neighbours must be the same at every exchange, so that the algorithm is refused on a schedule."""
    may_leave_out_steps: ClassVar[bool] = False
    """Whether the optimum stays where it is if a node makes fewer local steps than others (`leave_out_step`)."""
    usual_laziness: ClassVar[float] = LAZINESS
    """`laziness` in configs that do not say another."""
    least_own_weight: ClassVar[float] = 0.0
    """What W_ii must be above, on every node."""
    invariant: ClassVar[str] = "the trackers no longer track"
    """What is said where `tracking_error` does not sum to zero."""
    twin: ClassVar[Callable[..., Any] | None] = None
    """The same algorithm on stacked arrays, for `dgt simulate`; one of this package is found in `dgt/reference/`."""

    _step_supports_amp_scaling = True  # GradScaler always calls `step`, and says what it found
    found_inf: torch.Tensor | None = None  # set by GradScaler for the time of a step
    base: Base | None = None
    """The optimizer of torch that makes a step of a direction, if the settings ask for one (`descent.Descent`)."""
    has_momentum = False
    """Whether gradients are replaced by u' = b u + g before the algorithm gets them (`descent.Descent`)."""
    sends_non_finite = False
    """Whether numbers that are not finite are sent, and not refused: in trials, whose losses tell all ranks at once."""
    stays_out = False
    """Whether this step is made without a gradient, so that theta is mixed only."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float | None = None,
        overlap: bool = True,
        wire: str = "full",
        local_steps: int = 1,
        bucket_mb: float = 0,
        model: torch.nn.Module | None = None,
        **settings: Any,
    ) -> None:
        """overlap, wire, local_steps, bucket_mb and model are explained in `NeighbourOptimizer`, which uses them."""
        traffic = {"wire": wire, "local_steps": local_steps, "bucket_mb": bucket_mb}
        check_traffic(type(self), traffic)
        if network.schedule is not None:
            check_schedule(type(self), network.schedule.rounds, traffic)
        check_ranks_per_node(network.node.local.size, bucket_mb)
        self.settings = self.Settings(**settings)
        super().__init__(parameters, self._group_defaults(lr, weight_decay))
        self._check_groups()
        groups = [group["params"] for group in self.param_groups]
        everyone = [parameter for group in groups for parameter in group]
        local = network.node.local
        self._has_mates = local.size > 1
        of_fsdp = local.size > 1 and wrappers.are_shards(everyone, local.world_ranks)
        self._wrappers = wrappers.made if of_fsdp else wrappers.refuse(everyone)
        self.network = network
        self.transport = network.open_transport()
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        self.flat = flat_parameters(groups, names, network.node.local, network.transport)
        uses_descent = isinstance(self.settings, Descent) and self.base is None
        self.has_momentum = uses_descent and any(group["momentum"] for group in self.param_groups)
        self.flat.let_go = self._let_go
        made_of = {"parameters": self.flat.layout(), "algorithm": type(self).__name__}
        made_of |= group_facts(self.param_groups) | {name: str(value) for name, value in traffic.items()}
        agree(network.node, made_of | {"settings": self._settings_in_words()})
        self._check_network()
        self._noted: list[Any] = []
        self.iteration = 0
        if not self.flat.values.is_cuda:
            self.transport.evidence = None
        if self.transport.evidence is not None:
            network.before_reading.append(self.settle)
        self._warned = False

    @classmethod
    def check_strategy(cls, settings: Any, strategy: str) -> None:
        """Raise `ConfigError` if these settings are not for this strategy."""

    def _check_network(self) -> None:
        """The same error on all ranks, if the algorithm is not for this strategy, or for the row of any of them."""
        node, row = self.network.node, self.network.row
        self.check_strategy(self.settings, self.network.strategy)
        if self.least_own_weight:
            name = type(self).__name__
            together(node, lambda: check_own_weights({node.name: row.own}, self.least_own_weight, name))

    def _settings_in_words(self) -> str:
        """The same on all ranks: a base by its name, as a function's own words hold an address."""
        if self.base is None:
            return str(self.settings)
        return str({**dataclasses.asdict(self.settings), "base": self.base.name})

    def _group_defaults(self, lr: float, weight_decay: float | None) -> dict[str, Any]:
        """What a parameter group has, unless it says otherwise."""
        defaults = {"lr": lr, "weight_decay": 0.0}
        if isinstance(self.settings, Descent):
            self.settings.check()
            self.base = self.settings.made_base()
            defaults |= self.settings.of_groups()
        else:
            defaults |= dataclasses.asdict(self.settings)
        defaults |= self.base.defaults if self.base else {}
        return defaults | ({} if weight_decay is None else {"weight_decay": weight_decay})

    def _check_groups(self) -> None:
        for group in self.param_groups:
            check_range("lr", float(group["lr"]), 0, open_low=True)
            check_range("weight_decay", float(group["weight_decay"]), 0)
            for name, meaning in meanings(self.settings):
                meaning.check(name, group.get(name, getattr(self.settings, name)))

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
        self.begin_step()
        evidence = self.transport.evidence
        if self.found_inf is not None:
            self.stays_out = self.network.node.local.any(not unscaled(self, self.flat.parameters))
        self._announce()
        # no_grad is for the updates to enter, where they need it: it takes as long as a small model's arithmetic
        self.update()
        self.flat.write_parameters()
        self.iteration += 1
        if evidence is not None:
            evidence.send()
        self.stays_out, self.network.node.steps = False, self.iteration
        return loss

    def leave_out_step(self) -> None:
        """In place of a local step: this node's parameters and tracker stay as they are."""
        assert self.may_leave_out_steps, "checked before"
        self.iteration += 1
        self.network.node.steps = self.iteration

    def note_settings(self) -> None:
        """Whenever lr is about to be used: what this step is made with goes into the heads of its messages."""
        values = group_values(self.param_groups)
        if values != self._noted:
            self._noted = values
            self._refuse_late_momentum()
            self.transport.settings.note(values)

    def _refuse_late_momentum(self) -> None:
        late = max((float(group.get("momentum", 0)) for group in self.param_groups), default=0.0)
        if late and self.base is None and not self.has_momentum and isinstance(self.settings, Descent):
            raise ConfigError(
                f"momentum={late:g} from step {self.iteration} on: the optimizer was made without; give momentum "
                "when it is made, or cycle_momentum=False to OneCycleLR"
            )

    def begin_step(self) -> None:
        """Before anything of this step leaves: are these still the model's parameters, and are they to be trained?"""
        if wrappers.made != self._wrappers:
            self._wrappers = wrappers.refuse(self.flat.parameters)
        if self.transport.evidence is not None:
            self.transport.evidence.confirm()
        self.flat.follow()
        if self.network.averaging:
            self.refuse_inside_average("step")
        if self.flat.parameters[0].grad is None and not self._warned:
            self._warn_without_gradients()

    def refuse_inside_average(self, what: str) -> None:
        """There the model is the network's average, and its own values come back afterwards."""
        if not self.network.averaging.isdisjoint(map(id, self.flat.parameters)):
            raise ConfigError(f"{what} inside `with network.average(model)`: it would be lost; do it outside")

    def _warn_without_gradients(self) -> None:
        if any(parameter.grad is not None for parameter in self.flat.parameters):
            return
        wrappers.refuse_shards()
        self._warned = True
        warnings.warn(
            f"node {self.network.node.name}: no parameter has a gradient at step {self.iteration}; has the model got "
            "new ones since the optimizer was made, by load_state_dict(assign=True) or another layer?",
            stacklevel=5,
        )

    def _announce(self) -> None:
        """Send a request that came to this node, to stop or to save, for the step at which it has reached all ranks."""
        notices = self.network.node.notices
        if self._has_mates:  # all ranks of a node announce what one of them was asked, at once
            stop, save = self.flat.reduce_gradients(notices)
            notices.announce(self.iteration + self.notice_steps, stop, save)
        elif notices.stop_asked or notices.save_asked:
            notices.announce(self.iteration + self.notice_steps, bool(notices.stop_asked), notices.save_asked)
            notices.save_asked = False

    @property
    def notice_steps(self) -> int:
        """Steps until a notice in this node's next message has reached every node."""
        return max(1, self.network.eccentricity)

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
        return state | {"dgt": saved | {"layout": self.flat.layout()}}

    def live_state(self) -> dict[str, Any]:
        """The same without copies: it changes with the next step."""
        self.refuse_inside_average(f"{type(self).__name__}.state_dict")
        self.drain()
        self.flat.follow()
        self.settle()
        state: dict[str, Any] = _plain(torch.optim.Optimizer.state_dict)(self)
        return state | {"dgt": {"algorithm": type(self).__name__, "iteration": self.iteration, **self.buffers()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, on every rank its own; the model's parameters are loaded separately."""
        own, given = self.buffers(), self._checked_state(state_dict)
        self.refuse_inside_average(f"{type(self).__name__}.load_state_dict")
        self.drain()
        self.flat.follow()
        groups = {key: value for key, value in state_dict.items() if key != "dgt"}
        _plain(torch.optim.Optimizer.load_state_dict)(self, groups)
        self.iteration = int(given["iteration"])
        for key, tensor in own.items():
            if key.startswith(PREFIX):
                continue
            tensor.copy_(given[key])
        if self.base is not None:
            self.base.load(given)
        self.flat.write_parameters()

    def _checked_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The part of it that is dgt's, if it is one of an optimizer like this."""
        return checked(self, state_dict)

    def buffers(self) -> dict[str, torch.Tensor]:
        """The tensors that make up the state, by name."""
        masters = {"masters": self.flat.values} if self.flat.has_masters else {}
        return masters | (self.base.state() if self.base is not None else {})

    @abc.abstractmethod
    def update(self) -> None:
        """The algorithm itself: from `self.flat` and its gradients to the next `self.flat`."""

    @property
    def decays_gradient(self) -> bool:
        """Whether weight decay is part of the gradient; if not, the base decays in its own way."""
        return self.base is None or "weight_decay" not in self.base.defaults

    def read_gradient(self, out: torch.Tensor, parts: Sequence[torch.Tensor] | None = None) -> None:
        """out = the gradient [parameters], weight decay included.

        parts   of `out`, one for each parameter: then one kernel fills them all
        """
        if self.stays_out:
            out.zero_()
            return
        if parts is None:
            self.flat.gather_gradients(out)
        else:
            self.flat.collect_gradients(parts)
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            if group["weight_decay"] and self.decays_gradient:
                out[part].add_(self.flat.values[part], alpha=group["weight_decay"])

    def descend(self, start: torch.Tensor, direction: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
        """out = start - lr * scale * direction, with each group's own lr."""
        if len(self.param_groups) == 1:
            torch.add(start, direction, alpha=-scale * float(self.param_groups[0]["lr"]), out=out)
            return
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            torch.add(start[part], direction[part], alpha=-scale * float(group["lr"]), out=out[part])

    def sum_of(self, vector: torch.Tensor) -> float:
        """The sum over a vector that is sent, to be added to others; of a GPU's it is looked at a step later, and 0."""
        if self.transport.evidence is None:
            return float(vector.sum())
        self.check_finite(vector)
        return 0.0

    def check_finite(self, vector: torch.Tensor) -> None:
        """Raise unless these numbers are finite, before anything is sent; with nccl before the next step sends."""
        evidence, iteration = self.transport.evidence, self.iteration
        if evidence is None:
            self.refuse_non_finite(float(vector.sum()))
        elif not self.sends_non_finite:
            evidence.note_sum(vector, lambda total: self._refuse_late(total, iteration))

    def _refuse_late(self, total: float, iteration: int) -> None:
        if not math.isfinite(total):
            raise TrainingError(
                f"node {self.network.node.name}: the gradient or a parameter is not finite at iteration {iteration}, "
                "noticed a step later and not saved; a smaller lr may help, if the data is sound"
            )

    def settle(self) -> None:
        """Before anything is saved or averaged: what is checked a step later is checked now."""
        if self.transport.evidence is None or self.sends_non_finite:
            return
        self.drain()
        for vector in (self.flat.values, *self.buffers().values()):
            if vector.is_floating_point() and vector.is_cuda:
                self.check_finite(vector)
        self.transport.evidence.settle()

    def refuse_non_finite(self, total: float) -> None:
        """Raise before anything is sent, unless this sum over what is to be sent is finite."""
        if math.isfinite(total) or self.sends_non_finite:
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

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the node's gradient down to this norm, after backward; returns the norm it had.

        As `torch.nn.utils.clip_grad_norm_`, which with several ranks per node would see one rank's share of the batch.
        """
        if not isinstance(self.flat, SharedParameters):
            return torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], max_norm)
        self.flat.reduce_gradients(self.network.node.notices, anew=True)
        return self.flat.clip_gradient(max_norm)

    def tracking_error(self) -> torch.Tensor | None:
        """pi_i (y_i - G_i g_i) [parameters], or what else sums to zero over the nodes; None without a tracker."""
        return None

    @classmethod
    def bytes_per_exchange(cls, nodes: int, edges: int, numbers: int, width: int, wire_width: float) -> int:
        """Bytes that all nodes together send at an exchange of so many parameters.

        width, wire_width  bytes per number in memory, and as it is sent with `wire`, scales included
        """
        raise NotImplementedError(f"{cls.__name__} does not say how much it sends")

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        """With buckets: around every backward of a step but the last, so that gradients add up before they are used."""
        return contextlib.nullcontext()

    def drain(self) -> None:
        """Receive every message that is under way."""

    def _let_go(self) -> None:
        """Another optimizer takes the parameters over: leave them as they are after the last step."""
        if self.network.node.groups:  # else nothing arrives any more
            self.drain()
        self.close()

    def close(self) -> None:
        """Detach from the model, which another optimizer may train then."""
        self.flat.let_go = None
        if self.settle in self.network.before_reading:
            self.network.before_reading.remove(self.settle)


_watched_step = torch.optim.Optimizer.profile_hook_step(DecentralizedOptimizer._step)


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    )
