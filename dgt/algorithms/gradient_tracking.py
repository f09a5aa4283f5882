"""Weighted decentralized gradient tracking, both strategies as one update.

    theta' = W (theta - alpha y)          y' = W y + G (g' - g)          y_0 = G g_0

Neighbours are sent z = theta - alpha y and y instead of theta and y: the same algorithm, but z is needed at
once and y only after the next gradient, so y travels while that gradient is computed. With buckets, z travels as well.

Between two steps a node keeps theta and B = g - W y / G_ii; then y' = G_ii (g' - B). Neighbours aside, the next B is
(1 - W_ii) g' + W_ii B, a mean of the two. A step passes over parameter-sized memory 2 degree + 10 times: B, g and
theta are read, y, z and B written; z and the neighbours' z read, theta written; B read and written, the neighbours' y
read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dgt.algorithms.machinery import Message, NeighbourOptimizer, Views
from dgt.exchange.streams import Stream


class GradientTracking(NeighbourOptimizer):
    """The paper's algorithm. Strategy I or II is in `network`: its mixing row and gradient scale.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks
    network                        a `dgt.Network`
    overlap, wire, local_steps, bucket_mb, model   how vectors travel: see `NeighbourOptimizer`

    Parameter-sized buffers on a CPU: theta, gradient, B, and z and y, twice each where neighbours share memory, else
    with three inboxes: eight, whatever the degree. A narrow wire needs up to four more.
    """

    messages = (Message("z", "parameters"), Message("y", "tracker", needed_at_once=False))
    state_vectors = {"B": "rest"}  # noqa: RUF012
    has_array_update = True

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """y = G (g - B),  z = theta - alpha y,  B = W_ii B + (1 - W_ii) g."""
        network = self.network
        torch.sub(gradient, at.B, out=at.y)
        if network.gradient_scale != 1:
            at.y.mul_(network.gradient_scale)
        torch.lerp(at.B, gradient.to(at.B.dtype), 1 - network.row.own, out=at.B)
        torch.add(at.theta, at.y, alpha=-float(group["lr"]), out=at.z)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        """theta = W z;  B -= sum_j W_ij y_j / G_ii."""
        if message == "z":
            stream.mix(at.theta)
        else:
            stream.add_neighbours(at.B, -1 / self.network.gradient_scale)

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha G (g - B); with W = I, B stays as it is."""
        descent = torch.sub(gradient, at.B, out=at.scratch)
        at.theta.add_(descent, alpha=-self.network.gradient_scale * float(group["lr"]))
        return descent

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
