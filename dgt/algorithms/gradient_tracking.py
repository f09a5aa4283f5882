"""Weighted decentralized gradient tracking, both strategies as one update.

    theta' = W (theta - alpha y)          y' = W y + G (g' - g)          y_0 = G g_0

Neighbours are sent z = theta - alpha y and y instead of theta and y: the same algorithm, but z is needed at
once and y only after the next gradient, so y travels while that gradient is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dgt.algorithms.base import DecentralizedOptimizer
from dgt.exchange.network import Network
from dgt.exchange.transport import Pending

# Below this size a message costs the same whatever it holds, so z and y share one.
ONE_MESSAGE_BYTES = 64 * 1024


class GradientTracking(DecentralizedOptimizer):
    """The paper's algorithm. Strategy I or II is in `network`: its mixing row and gradient scale."""

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
        size = self.flat.values.numel()
        # z and y side by side, so that one message can carry both
        self._published = torch.zeros(2 * size, dtype=self.flat.values.dtype, device=self.flat.values.device)
        self._z, self.tracker = self._published[:size], self._published[size:]
        self._mixed_tracker = self.flat.like()
        self._one_message = self._published.numel() * self._published.element_size() <= ONE_MESSAGE_BYTES
        self._travelling: Pending | None = None

    def update(self) -> None:
        self._next_tracker()
        self.descend(self.flat.values, self.tracker, out=self._z)
        size = self._z.numel()
        if self._one_message:
            pending = self.transport.post("both", self.iteration, self._published)
            self.network.mix(self._z, pending, out=self.flat.values, part=slice(0, size))
            self.network.mix(self.tracker, pending, out=self._mixed_tracker, part=slice(size, None))
            pending.finish()
            return
        parameters = self.transport.post("parameters", self.iteration, self._z)
        self._travelling = self.transport.post("tracker", self.iteration, self.tracker)
        self.network.mix(self._z, parameters, out=self.flat.values)
        parameters.finish()
        if not self.overlap:
            self.drain()

    def _next_tracker(self) -> None:
        """y' = W y + G (g' - g); the first one is G g_0."""
        scale = self.network.gradient_scale
        self.drain()
        self._mixed_tracker.sub_(self.gradient, alpha=scale)
        self.read_gradient()
        torch.add(self._mixed_tracker, self.gradient, alpha=scale, out=self.tracker)

    def drain(self) -> None:
        """Take in the neighbours' trackers: W y."""
        if self._travelling is not None:
            self.network.mix(self.tracker, self._travelling, out=self._mixed_tracker)
            self._travelling.finish()
            self._travelling = None

    def buffers(self) -> dict[str, torch.Tensor]:
        return {**super().buffers(), "tracker": self.tracker, "mixed_tracker": self._mixed_tracker}

    def tracking_error(self) -> torch.Tensor:
        error = torch.sub(self.tracker, self.gradient, alpha=self.network.gradient_scale)
        return error.mul_(self.network.average_weight)
