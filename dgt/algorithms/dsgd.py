"""Decentralized SGD, the baseline without a tracker: theta' = W (theta - alpha G g)."""

from __future__ import annotations

from typing import Any

import torch

from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer
from dgt.exchange.streams import Stream


class DSGD(DecentralizedOptimizer):
    """Half the traffic of gradient tracking; stalls away from the optimum when nodes differ."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._z = Stream(self.network, self.transport, "parameters", self.flat.values)

    @torch.no_grad()
    def update(self) -> None:
        self.note_settings()
        z = self._z.buffer
        self.read_gradient(out=z)
        self.descend(self.flat.values, z, out=z, scale=self.network.gradient_scale)
        self.refuse_non_finite(float(z.sum()))
        self._z.post(self.iteration)
        self._z.mix(self.flat.values)
