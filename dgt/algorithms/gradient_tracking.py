"""Weighted decentralized gradient tracking, both strategies as one update.

    theta' = W (theta - alpha y)          y' = W y + G (g' - g)          y_0 = G g_0

Neighbours are sent z = theta - alpha y and y instead of theta and y: the same algorithm, but z is needed at
once and y only after the next gradient, so y travels while that gradient is computed.

Between two steps a node keeps theta and B = g - W y / G_ii; then y' = G_ii (g' - B). Neighbours aside, the next B is
(1 - W_ii) g' + W_ii B, a mean of the two. A step passes over parameter-sized memory 2 degree + 10 times: B, g and
theta are read, y, z and B written; z and the neighbours' z read, theta written; B read and written, the neighbours' y
read. Work goes piece by piece, so that what is read twice is still in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.base import DecentralizedOptimizer
from dgt.exchange.network import PIECE, Network
from dgt.exchange.transport import Pending

# Below this size a message costs the same whatever it holds, so z and y share one.
ONE_MESSAGE_BYTES = 64 * 1024


class GradientTracking(DecentralizedOptimizer):
    """The paper's algorithm. Strategy I or II is in `network`: its mixing row and gradient scale.

    Parameter-sized buffers on a CPU: theta, gradient, B, and z and y, twice each where neighbours share memory, else
    with three inboxes: eight, whatever the degree.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float = 0.0,
        overlap: bool = True,
    ) -> None:
        super().__init__(parameters, lr, network, weight_decay)
        self.overlap = overlap
        theta = self.flat.values
        self._rest = self.flat.like()  # B
        self._one_message = 2 * theta.numel() * theta.element_size() <= ONE_MESSAGE_BYTES
        if self._one_message:
            self._both = self.transport.outbox("both", torch.cat([theta, theta]), inboxes=len(network.neighbours))
        else:
            self._z = self.transport.outbox("parameters", theta)
            self._y = self.transport.outbox("tracker", theta, inboxes=1)
        self._travelling: Pending | None = None
        cut = PIECE if theta.device.type == "cpu" else theta.numel()
        self._pieces = self.flat.pieces(cut)
        self._views: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self._scratch = torch.empty(min(cut, theta.numel()), dtype=theta.dtype, device=theta.device)

    def update(self) -> None:
        self.drain()
        size = self.flat.values.numel()
        if self._one_message:
            message = self._both.buffer
            z, y = message[:size], message[size:]
            self._advance(z, y)
            pending = self._both.post(self.iteration)
            self.network.mix_both(pending, z, self.flat.values, self._rest, -1 / self.network.gradient_scale)
            pending.finish()
            return
        z, y = self._z.buffer, self._y.buffer
        self._advance(z, y)
        parameters = self._z.post(self.iteration)
        self._travelling = self._y.post(self.iteration)
        self.network.mix(z, parameters, out=self.flat.values)
        parameters.finish()
        if not self.overlap:
            self.drain()

    def _advance(self, z: torch.Tensor, y: torch.Tensor) -> None:
        """y = G (g - B),  z = theta - alpha y,  B = W_ii B + (1 - W_ii) g."""
        scale, own = self.network.gradient_scale, self.network.row.own
        for piece, (y_, z_, rest_, theta_) in zip(self._pieces, self._cut(z, y), strict=True):
            group = self.param_groups[piece.group]
            gradient = piece.gradient(self._scratch)
            if group["weight_decay"]:
                scratch = self._scratch[: theta_.numel()]
                gradient = torch.add(gradient, theta_, alpha=group["weight_decay"], out=scratch)
            torch.sub(gradient, rest_, out=y_)
            if scale != 1:
                y_.mul_(scale)
            torch.lerp(rest_, gradient.to(rest_.dtype), 1 - own, out=rest_)
            torch.add(theta_, y_, alpha=-float(group["lr"]), out=z_)

    def _cut(self, z: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """y, z, B and theta of every piece; made once per buffer, because cutting takes as long as adding."""
        views = self._views.get(z.data_ptr())
        if views is None:
            vectors = (y, z, self._rest, self.flat.values)
            views = [tuple(vector[piece.place] for vector in vectors) for piece in self._pieces]
            self._views[z.data_ptr()] = views
        return views

    def drain(self) -> None:
        """Take in the neighbours' trackers: B -= sum_j W_ij y_j / G_ii."""
        if self._travelling is not None:
            self.network.add_neighbours(self._travelling, self._rest, -1 / self.network.gradient_scale)
            self._travelling.finish()
            self._travelling = None

    def buffers(self) -> dict[str, torch.Tensor]:
        return {**super().buffers(), "rest": self._rest}

    def tracking_error(self) -> torch.Tensor:
        """-pi_i G_i B_i, which sums to sum_i pi_i (y_i - G_i g_i): W leaves sums under pi as they are."""
        self.drain()
        return self._rest * (-self.network.average_weight * self.network.gradient_scale)
