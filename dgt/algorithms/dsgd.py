"""Decentralized SGD, the baseline without a tracker: theta' = W (theta - alpha G g)."""

from __future__ import annotations

from typing import Any

from dgt.algorithms.base import DecentralizedOptimizer


class DSGD(DecentralizedOptimizer):
    """Half the traffic of gradient tracking; stalls away from the optimum when nodes differ."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._z = self.flat.like()

    def update(self) -> None:
        self.read_gradient()
        self.descend(self.flat.values, self.gradient, out=self._z, scale=self.network.gradient_scale)
        pending = self.transport.post("parameters", self.iteration, self._z)
        self.network.mix(self._z, pending, out=self.flat.values)
        pending.finish()
