"""What a step is made with besides gradient and exchange: the lr of its iteration, the precision, the clipping."""

from __future__ import annotations

import contextlib

import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.config import Config
from dgt.problems import Problem
from dgt.training import schedules

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Stepping:
    """Of one optimizer, whose parameter groups have the lr that they were made with.

    schedule  in place of the config's
    """

    def __init__(
        self,
        config: Config,
        problem: Problem,
        optimizer: DecentralizedOptimizer,
        device: torch.device,
        schedule: schedules.Schedule | None = None,
    ) -> None:
        schedule = schedule or schedules.of(config)
        self._schedule = None if schedule.is_constant else schedule
        self._optimizer = optimizer
        self._lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._have_momentum = [bool(group.get("momentum")) for group in optimizer.param_groups]
        self._clip, self._copies = config.clip, problem.copies
        self._autocast: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if config.precision == "bf16":
            self._autocast = torch.autocast(device.type, torch.bfloat16)

    def set_lr(self, iteration: int) -> None:
        """Before backward: with buckets, messages that the lr is part of leave during it.

        Groups with an lr of their own keep their ratio to the others.
        """
        if self._schedule is None:
            return
        share, momentum = self._schedule.share(iteration), self._schedule.momentum(iteration)
        for group, lr, moves in zip(self._optimizer.param_groups, self._lrs, self._have_momentum, strict=True):
            group["lr"] = lr * share
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif momentum is not None and moves:
                group["momentum"] = momentum

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Around forward pass and loss."""
        return self._autocast

    def clip(self) -> None:
        """After backward: g <- g min(1, clip / |g|), the norm over all parameters; of stacked seeds, of each seed."""
        if self._clip is None:
            return
        if self._copies == 1:
            self._optimizer.clip_grad_norm_(self._clip)
        else:
            gradients = [parameter.grad for parameter in self._optimizer.flat.parameters]
            clip_each(gradients, self._clip, self._copies)


def clip_each(gradients: list[torch.Tensor | None], most: float, copies: int) -> None:
    """As clip_grad_norm_ for each of the copies into which the gradients, one after the other, split evenly."""
    there = [gradient for gradient in gradients if gradient is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in there]).view(copies, -1)
    flat *= (most / (flat.norm(dim=1, keepdim=True) + TINY)).clamp(max=1)
    parts = flat.view(-1).split([gradient.numel() for gradient in there])
    for gradient, part in zip(there, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
