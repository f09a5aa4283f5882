"""Exact diffusion: as exact as gradient tracking, with one vector per exchange in place of two.

    h = theta - alpha (G u + c)        theta' = W h        c' = c + (h - W h) / (alpha H)        c_0 = 0

u is g, or what momentum makes of it. H local steps are made per exchange, each of them theta -= alpha (G u + c).
Only h is sent. The correction c is in units of the gradient, so that alpha may change at any time. sum_i pi_i c_i = 0
holds for ever, since pi W = pi; at a fixed point h = W h, so all nodes are equal, and G g + c = 0 on each of them:
the weighted gradients sum to zero. Stable if the smallest eigenvalue of W is above -1/3, hence if all W_ii > 1/3.

    form=extra        theta' = W theta - alpha (G u + c)        c' = c + (theta - W theta) / (2 alpha H)

Its message theta is known before the gradient: it leaves as soon as the parameters are new and travels during forward
and backward. D = theta - W theta is kept when it has come in, and used at the next exchange:

    theta' = theta - D - alpha (G u + c)        c' = c + D / (2 alpha H)        D_0 = 0

With H local steps D is that of the parameters after the exchange before, which is as stable as H = 1. Whatever is done
to the parameters of a node meanwhile counts as done after mixing: D sums to zero under pi, as it did when it left.

Momentum filters u only. To filter G u + c diverges: c closes the loop by which nodes agree, and must not lag.
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
                                   only, and lr about half as large
    overlap, wire, local_steps, bucket_mb, model   how vectors travel: see `NeighbourOptimizer`; bucket_mb not with
                                                   form=extra, overlap for that only

    Parameter-sized buffers on a CPU: theta, gradient, c, and h twice where neighbours share memory, else once with two
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
    state_vectors = {"c": "correction"}  # noqa: RUF012
    has_array_update = True
    receives_moves = True
    usual_laziness = 0.35
    least_own_weight = 1 / 3
    invariant = "the corrections of the nodes no longer add up to zero"

    @classmethod
    def check_strategy(cls, settings: Any, strategy: str) -> None:
        if settings.form == "extra" and strategy != "II":
            raise ConfigError(
                f"form=extra: not with Strategy {strategy}, where lambda scales the gradients and its gradient norm "
                "grows by up to 80 %; take strategy II, or form=diffusion"
            )

    def choose_vectors(self) -> None:
        self.is_extra = self.settings.form == "extra"
        if self.is_extra:
            self.messages = (Message("z", "parameters", needed_at_once=False),)
            self.state_vectors = {"c": "correction", "D": "difference"}
            self.has_array_update = False

    def _make_buckets(self, wire: str, bucket_mb: float) -> list[Bucket]:
        if self.is_extra and bucket_mb:
            raise ConfigError(
                f"bucket_mb={bucket_mb:g}: not with form=extra, whose message travels during backward anyway; leave it "
                "out"
            )
        return super()._make_buckets(wire, bucket_mb)

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """h = theta - alpha (G u + c).  Extra: z = theta' = theta - D - alpha (G u + c),  c += D / (2 alpha H)."""
        message = at.z if self.is_extra else at.h
        torch.add(at.c, gradient, alpha=self.network.gradient_scale, out=message)
        torch.add(at.theta, message, alpha=-float(group["lr"]), out=message)
        if self.is_extra:
            message.sub_(at.D)
            at.c.add_(at.D, alpha=self._gain(group) / 2)
            at.theta.copy_(message)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        """theta = W h,  c += (h - W h) / (alpha H).  Extra: D = theta - W theta."""
        if self.is_extra:
            stream.difference(at.D)
        else:
            stream.mix_and_keep(at.theta, at.c, [(part, self._gain(group)) for group, part in self.groups_in(at)])

    def _gain(self, group: dict[str, Any]) -> float:
        """1 / (alpha H); 0 where a schedule has alpha = 0, and the step is nothing but mixing."""
        alpha = float(group["lr"])
        return 1 / (alpha * self.local_steps) if alpha else 0.0

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha (G u + c)."""
        descent = torch.add(at.c, gradient, alpha=self.network.gradient_scale, out=at.scratch)
        at.theta.add_(descent, alpha=-float(group["lr"]))
        return descent

    def idle_gradient(self, at: Views) -> Any:
        """-c / G, so that G u + c = 0: c without the gradient that it cancels would lead away."""
        return at.c / -self.network.gradient_scale

    def compute_message_arrays(self, at: Views, gradient: np.ndarray) -> None:
        """h = theta - alpha (G u + c)."""
        np.multiply(gradient, self.network.gradient_scale, out=at.h)
        at.h += at.c
        self.descend_arrays(at.theta, at.h, out=at.h)

    def receive_arrays(self, mixed: Views, at: Views, gradient: np.ndarray) -> None:
        """theta = h + (W h - h),  c -= (W h - h) / (alpha H)."""
        moved = mixed.h
        np.add(at.h, moved, out=at.theta)
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            moved[part] *= self._gain(group)
        at.c -= moved

    def local_step_arrays(self, at: Views, gradient: np.ndarray) -> np.ndarray:
        """theta -= alpha (G u + c)."""
        direction = self.network.gradient_scale * gradient + at.c
        self.descend_arrays(at.theta, direction, out=direction)
        at.theta[:] = direction
        return direction

    @property
    def notice_steps(self) -> int:
        # with extra a message is received at the exchange after the one at which it was sent
        return super().notice_steps + self.local_steps * self.is_extra

    def tracking_error(self) -> torch.Tensor:
        """pi_i c_i, which sums to zero: W leaves sums under pi as they are."""
        self.drain()
        return self.vectors["c"] * self.network.average_weight


ALGORITHM = ExactDiffusion
