"""Decentralized SGD, the baseline without a tracker: theta' = W (theta - alpha G g)."""

from __future__ import annotations

from typing import Any

from dgt.algorithms.base import DecentralizedOptimizer


class DSGD(DecentralizedOptimizer):
    """Half the traffic of gradient tracking; stalls away from the optimum when nodes differ."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._outbox = self.transport.outbox("parameters", self.flat.values)

    def update(self) -> None:
        z = self._outbox.buffer
        self.read_gradient(out=z)
        self.descend(self.flat.values, z, out=z, scale=self.network.gradient_scale)
        pending = self._outbox.post(self.iteration)
        self.network.mix(z, pending, out=self.flat.values)
        pending.finish()
