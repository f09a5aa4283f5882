"""Weighted decentralized gradient tracking, both strategies as one update.

    theta' = W (theta - alpha y)          y' = W y + G (g' - g)          y_0 = G g_0

Neighbours are sent z = theta - alpha y and y instead of theta and y: the same algorithm, but z is needed at
once and y only after the next gradient, so y travels while that gradient is computed. With buckets, z travels as well.

Between two steps a node keeps theta and B = g - W y / G_ii; then y' = G_ii (g' - B). Neighbours aside, the next B is
(1 - W_ii) g' + W_ii B, a mean of the two. A step passes over parameter-sized memory 2 degree + 10 times: B, g and
theta are read, y, z and B written; z and the neighbours' z read, theta written; B read and written, the neighbours' y
read.

With momentum b the tracked vector is u' = b u + g' in place of g' (n' = g' + b u' with Nesterov): inside the tracker,
where it is right for any W. A base P, such as AdamW, is a step of torch's optimizer with the tracked direction for its
gradient:

    mixed       theta' = W (theta - alpha P(W y))     two latencies per step: y, then z
    together    theta' = W theta - alpha P(W y)       one: y and theta leave together
    predicted   theta' = W (theta - alpha P(y; s))    one: y travels while the next gradient is computed
    own         theta' = W (theta - alpha P(y))       one, as predicted

At a fixed point y is the same on all nodes, so every node's direction is, number by number, a positive multiple of one
vector, which is therefore zero: exact for any elementwise base. The second moment of y itself is that of one node's
noise, and steps are too small; W y averages the noise of neighbours first. Bases like Adam can have their first moment
of y and only the second of s = W y_before + W_ii G (g' - g), what a node knows of W y before its neighbours answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgt.algorithms.machinery import Message, NeighbourOptimizer, Views
from dgt.algorithms.machinery.descent import Descent
from dgt.config.settings import setting
from dgt.errors import ConfigError
from dgt.exchange.streams import Stream

FORMS = ("mixed", "together", "predicted", "own")


class GradientTracking(NeighbourOptimizer):
    """The paper's algorithm. Strategy I or II is in `network`: its mixing row and gradient scale.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks; with a base as the base has them
    network                        a `dgt.Network`
    momentum, nesterov             as of torch.optim.SGD, inside the tracker
    base, base_options             a torch optimizer for the tracked direction, such as torch.optim.AdamW. A decoupled
                                   weight decay is not tracked: it leaves a disagreement of order lr
    base_form                      mixed, together, predicted (for bases with a first moment of their own) or own: see
                                   above
    overlap, wire, local_steps, bucket_mb, model   how vectors travel: see `NeighbourOptimizer`

    Parameter-sized buffers on a CPU: theta, gradient, B, and z and y, twice each where neighbours share memory: seven,
    whatever the degree. By messages z and y once each, and two inboxes per neighbour: 5 + 2 degree, while all inboxes
    take at most 1 GiB, beyond it three inboxes: eight, whatever the degree. A narrow wire has ten more (float32);
    momentum one; a base one (predicted three), and what it keeps itself.
    """

    may_leave_out_steps = True

    @dataclass(slots=True, kw_only=True)
    class Settings(Descent):
        base_form: str = setting(
            "mixed",
            "what a base sees: mixed, together, predicted or own (docs/optimizers.md)",
            choices=FORMS,
        )

        def check(self) -> None:
            Descent.check(self)
            if self.base is None and self.base_form != FORMS[0]:
                raise ConfigError(f"base_form={self.base_form}: of which base? base=adamw, for example")

    messages = (Message("z", "parameters"), Message("y", "tracker", needed_at_once=False))
    state_vectors = {"B": "rest"}  # noqa: RUF012
    has_array_update = True
    gradient_room = "y"

    form = ""
    """How a base is applied, one of `FORMS`; nothing without one."""

    def choose_vectors(self) -> None:
        if self.base is None:
            return
        self.form = self.settings.base_form
        if self.form == "predicted":
            if not self.base.has_first_moment:
                raise ConfigError(f"base_form=predicted: {self.base.name} has no first moment apart (exp_avg, betas)")
            self.state_vectors = {"B": "rest", "g": "last_gradient"}
            self.work_vectors, self.gradient_room = ("direction", "missing"), "direction"
            return
        self.work_vectors, self.gradient_room = ("direction",), "direction"
        if self._sees_mixed:
            together = Message("z", "parameters", sent_with_previous=self.form == "together")
            self.messages = (Message("y", "tracker"), together)

    @property
    def _sees_mixed(self) -> bool:
        """Whether a base is applied to W y."""
        return self.form in ("mixed", "together")

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """y = G (g - B),  z = theta - alpha y,  B = W_ii B + (1 - W_ii) g; before W y is there B = g."""
        network = self.network
        # the gradient may be in the memory of y, or of the direction, which are written when it is no longer needed
        if self.form == "predicted":
            torch.sub(gradient, at.g, out=at.missing).mul_((1 - self.own_share) * network.gradient_scale)
            at.g.copy_(gradient)
        torch.sub(gradient, at.B, out=at.y)
        if self._sees_mixed:
            at.B.copy_(gradient)
        else:
            at.B.add_(at.y, alpha=1 - self.own_share)
        if network.gradient_scale != 1:
            at.y.mul_(network.gradient_scale)
        if self.form == "together":
            at.z.copy_(at.theta)
        if self.form == "predicted":
            torch.sub(at.y, at.missing, out=at.direction)
        if self.base is None:
            torch.add(at.theta, at.y, alpha=-float(group["lr"]), out=at.z)

    @property
    def completes_first_message(self) -> bool:
        return self.base is not None and not self._sees_mixed

    def complete_messages(self, at: Views) -> None:
        """z = theta - alpha P(y), or P(y; s)."""
        if self.form == "predicted":
            self.base_step(at, at.z.copy_(at.theta), at.direction, at.missing)
        elif self.form == "own":
            self.base_step(at, at.z.copy_(at.theta), at.y)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        """theta = W z;  B -= sum_j W_ij y_j / G_ii.

        Mixed base: B -= W y / G_ii,  z = theta - alpha P(W y).  Together: theta = W theta - alpha P(W y).
        """
        if message == "z":
            self._receive_parameters(stream, at)
        elif self._sees_mixed:
            self._receive_direction(stream, at)
        else:
            stream.add_neighbours(at.B, -1 / self.network.gradient_scale)

    def _receive_parameters(self, stream: Stream, at: Views) -> None:
        """Each piece is worked on while it is in the cache, here and below."""
        if self.form != "together":
            stream.mix(at.theta)
            return
        total = 0.0
        for piece, theta in stream.mixed_pieces(at.theta):
            self.base_step(at, theta, at.direction[piece], piece=piece)
            total += self.sum_of(theta)
        self.refuse_non_finite(total)

    def _receive_direction(self, stream: Stream, at: Views) -> None:
        total = 0.0
        for piece, direction in stream.mixed_pieces(at.direction, keep=self.form == "together"):
            at.B[piece].sub_(direction, alpha=1 / self.network.gradient_scale)
            if self.form == "mixed":
                z = at.z[piece].copy_(at.theta[piece])
                self.base_step(at, z, direction, piece=piece)
                total += self.sum_of(z)
        self.refuse_non_finite(total)

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha G (g - B); with W = I, B stays as it is."""
        if self.form == "predicted":
            at.g.copy_(gradient)
        if self.base is not None:
            return torch.sub(gradient, at.B, out=at.direction).mul_(self.network.gradient_scale)
        descent = torch.sub(gradient, at.B, out=at.scratch)
        at.theta.add_(descent, alpha=-self.network.gradient_scale * float(group["lr"]))
        return descent

    def complete_local_step(self, at: Views) -> None:
        """theta -= alpha P(y)."""
        if self.base is not None:
            self.base_step(at, at.theta, at.direction)

    def idle_gradient(self, at: Views) -> Any:
        """B, so that y = 0."""
        return at.B

    def compute_message_arrays(self, at: Views, gradient: np.ndarray) -> None:
        """y = G (g - B),  z = theta - alpha y."""
        np.subtract(gradient, at.B, out=at.y)
        if self.network.gradient_scale != 1:
            at.y *= self.network.gradient_scale
        self.descend_arrays(at.theta, at.y, out=at.z)

    def receive_arrays(self, mixed: Views, at: Views, gradient: np.ndarray) -> None:
        """theta = W z,  B = g - W y / G."""
        at.theta[:] = mixed.z
        if self.network.gradient_scale != 1:
            mixed.y /= self.network.gradient_scale
        np.subtract(gradient, mixed.y, out=at.B)

    def local_step_arrays(self, at: Views, gradient: np.ndarray) -> np.ndarray:
        """theta -= alpha G (g - B)."""
        direction = self.network.gradient_scale * (gradient - at.B)
        self.descend_arrays(at.theta, direction, out=direction)
        at.theta[:] = direction
        return direction

    def tracking_error(self) -> torch.Tensor:
        """-pi_i G_i B_i, which sums to sum_i pi_i (y_i - G_i g_i): W leaves sums under pi as they are."""
        self.drain()
        return self.vectors["B"] * (-self.network.average_weight * self.network.gradient_scale)


ALGORITHM = GradientTracking
