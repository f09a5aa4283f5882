"""Exact diffusion: as exact as gradient tracking, with one vector per exchange in place of two.

    h = theta - alpha (G u + c)        theta' = W h        c = s / beta        s' = s + (h - W h) / H        s_0 = 0

u is g, or what momentum makes of it. H local steps are made per exchange, each of them theta -= alpha (G u + c). Only h
is sent. sum_i pi_i s_i = 0 holds for ever, since pi W = pi; at a fixed point h = W h, so all nodes are equal, and
G g + c = 0 on each of them: the weighted gradients sum to zero. Stable if the smallest eigenvalue of W is above -1/3,
hence if all W_ii > 1/3.

beta is the largest alpha so far, and lets alpha change at any time. To take off s itself, as textbooks do, is wrong
once alpha has fallen. c' = c + (h - W h) / (alpha H) is wrong once it has risen: what was gathered from disagreement
while alpha was small comes back as many times larger. Here c stays when alpha falls, and s when beta rises. With
r = alpha / beta an eigenvalue v of W gives z^2 - (1 + v - r (1 - v)) z + v = 0, stable for v > (r - 2) / (r + 2).

    form=extra        theta' = W theta - alpha (G u + c)        s' = s + (theta - W theta) / (2 H)

Its message theta is known before the gradient: it leaves as soon as the parameters are new and travels during forward
and backward. D = theta - W theta is kept when it has come in, and used at the next exchange:

    theta' = theta - D - alpha (G u + c)        s' = s + D / (2 H)        D_0 = 0

With H local steps D is that of the parameters after the exchange before, which is as stable as H = 1. Whatever is done
to the parameters of a node meanwhile counts as done after mixing: D sums to zero under pi, as it did when it left.

Momentum filters g only. To filter G u + c diverges: c closes the loop by which nodes agree, and must not lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgt.algorithms.machinery import Message, NeighbourOptimizer, Views
from dgt.algorithms.machinery.base import found
from dgt.algorithms.machinery.bucket import Bucket
from dgt.algorithms.machinery.descent import Descent
from dgt.config.settings import setting
from dgt.errors import ConfigError
from dgt.exchange.streams import Stream

FORMS = ("diffusion", "extra")


class ExactDiffusion(NeighbourOptimizer):
    """Half the traffic of gradient tracking, and exact as well.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks
    network                        a `dgt.Network` of laziness=0.35: every W_ii must be above 1/3
    momentum, nesterov             as of torch.optim.SGD, of the node's own gradient
    form                           diffusion, or extra, whose message travels during forward and backward; Strategy II
                                   only, and the largest stable lr is two thirds
    overlap, wire, local_steps, bucket_mb, model   how vectors travel: see `NeighbourOptimizer`; bucket_mb not with
                                                   form=extra, overlap for that only

    Parameter-sized buffers on a CPU: theta, gradient, s, and h twice where neighbours share memory, else once with two
    inboxes: six at most, whatever the degree. form=extra and momentum need one more each, a narrow wire up to five.
    """

    @dataclass(slots=True, kw_only=True)
    class Settings(Descent):
        base: Any = setting(None, "null: an optimizer of torch does not fit exact diffusion")
        base_options: Any = setting(None, "null")
        form: str = setting(
            "diffusion",
            "diffusion, or extra: its message travels during forward and backward (docs/cheaper.md)",
            choices=FORMS,
        )

        def check(self) -> None:
            if self.base is not None:
                raise ConfigError(
                    f"base={found(self.base)[1]}: not with exact diffusion, whose correction is stable only if every "
                    "node makes the step alpha itself, which a base would scale; leave it out, or take "
                    "gradient tracking"
                )
            Descent.check(self)

    messages = (Message("h", "parameters"),)
    state_vectors = {"s": "correction"}  # noqa: RUF012
    has_array_update = True
    gradient_room = "h"
    receives_moves = True
    usual_laziness = 0.35
    least_own_weight = 1 / 3
    needs_static_graph = True
    invariant = "the corrections of the nodes no longer add up to zero"

    @classmethod
    def check_strategy(cls, settings: Any, strategy: str) -> None:
        if settings.form == "extra" and strategy != "II":
            raise ConfigError(
                f"form=extra: not with Strategy {strategy}, where lambda scales the gradients and its gradient norm "
                "grows by up to 80 %; take strategy II, or form=diffusion"
            )

    def choose_vectors(self) -> None:
        for group in self.param_groups:
            group.setdefault("largest_lr", 0.0)  # beta, an entry of the groups so that it is part of `state_dict`
        self.is_extra = self.settings.form == "extra"
        if self.is_extra:
            self.messages, self.gradient_room = (Message("z", "parameters", needed_at_once=False),), "z"
            self.state_vectors = {"s": "correction", "D": "difference"}
            self.has_array_update = False

    def _make_buckets(self, wire: str, bucket_mb: float) -> list[Bucket]:
        if self.is_extra and bucket_mb:
            raise ConfigError(
                f"bucket_mb={bucket_mb:g}: not with form=extra, whose message travels during backward anyway; leave it "
                "out"
            )
        return super()._make_buckets(wire, bucket_mb)

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """h = theta - alpha (G u + c).  Extra: z = theta' = theta - D - alpha (G u + c),  s += D / (2 H)."""
        message, alpha = at.z if self.is_extra else at.h, float(group["lr"])
        torch.add(at.theta, gradient, alpha=-alpha * self.network.gradient_scale, out=message)
        message.add_(at.s, alpha=-alpha * self._inverse_beta(group))
        if self.is_extra:
            message.sub_(at.D)
            at.s.add_(at.D, alpha=0.5 / self.local_steps)
            at.theta.copy_(message)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        """theta = W h,  s += (h - W h) / H.  Extra: D = theta - W theta."""
        if self.is_extra:
            stream.difference(at.D)
        else:
            stream.mix_and_keep(at.theta, at.s, 1 / self.local_steps)

    def _inverse_beta(self, group: dict[str, Any]) -> float:
        """1 / beta, and c = s / beta; 0 where this node does not descend: without g, c alone would lead away."""
        beta = group["largest_lr"] = max(group["largest_lr"], float(group["lr"]))
        return 1 / beta if beta and not self.stays_out else 0.0

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha (G u + c)."""
        alpha = float(group["lr"])
        at.theta.add_(gradient, alpha=-alpha * self.network.gradient_scale)
        theta: torch.Tensor = at.theta.add_(at.s, alpha=-alpha * self._inverse_beta(group))
        return theta

    def compute_message_arrays(self, at: Views, gradient: np.ndarray) -> None:
        """h = theta - alpha (G u + c)."""
        self._descend_from(at, gradient, out=at.h)

    def receive_arrays(self, mixed: Views, at: Views, gradient: np.ndarray) -> None:
        """theta = h + (W h - h),  s -= (W h - h) / H."""
        moved = mixed.h
        np.add(at.h, moved, out=at.theta)
        if self.local_steps != 1:
            moved /= self.local_steps
        at.s -= moved

    def local_step_arrays(self, at: Views, gradient: np.ndarray) -> np.ndarray:
        """theta -= alpha (G u + c)."""
        descended = np.empty_like(at.theta)  # neighbours may still read what is in h
        self._descend_from(at, gradient, out=descended)
        at.theta[:] = descended
        return descended

    def _descend_from(self, at: Views, gradient: np.ndarray, out: np.ndarray) -> None:
        np.multiply(gradient, self.network.gradient_scale, out=out)
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            out[part] += self._inverse_beta(group) * at.s[part]
        self.descend_arrays(at.theta, out, out=out)

    @property
    def notice_steps(self) -> int:
        # with extra a message is received at the exchange after the one at which it was sent
        return super().notice_steps + self.local_steps * self.is_extra

    def tracking_error(self) -> torch.Tensor:
        """pi_i c_i, which sums to zero: W leaves sums under pi as they are."""
        self.drain()
        error = self.vectors["s"] * self.network.average_weight
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            error[part] /= group["largest_lr"] or 1.0
        return error


ALGORITHM = ExactDiffusion
