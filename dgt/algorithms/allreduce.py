"""Centralised weighted SGD, the baseline with a global sum: theta' = theta - alpha 1/n sum_i lambda_i g_i.

All nodes hold one model. It starts at the strategy's network average of their models, so that it begins where
the average of a decentralized run begins.
"""

from __future__ import annotations

from typing import Any

import torch

from dgt.algorithms.base import DecentralizedOptimizer
from dgt.notices import NEVER


class AllReduce(DecentralizedOptimizer):
    """What a decentralized run is compared with; the only optimizer here that talks to everyone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._message = torch.zeros(self.flat.values.numel() + 2).to(self.flat.values)
        self._sum, self._asked = self._message[:-2], self._message[-2:]  # the gradient; stop and save notices
        self.flat.values.mul_(self.network.average_weight)
        self.network.node.sum(self.flat.values)

    @torch.no_grad()
    def update(self) -> None:
        node = self.network.node
        notices = node.notices
        self.read_gradient(out=self._sum)
        self.refuse_non_finite(float(self._sum.sum()))
        self._sum.mul_(self.network.weight / node.size)
        self._asked[0], self._asked[1] = notices.stop_at != NEVER, notices.save_at != NEVER
        node.sum(self._message)
        # everybody hears at once
        notices.stop_at, notices.save_at = (self.iteration + 1 if asked else NEVER for asked in self._asked.tolist())
        # counted as a ring all-reduce: 2 (n-1)/n of the buffer leaves every rank
        buffer_bytes = self._sum.numel() * self._sum.element_size()
        self.transport.bytes_sent += 2 * (node.size - 1) * buffer_bytes // node.size
        self.descend(self.flat.values, self._sum, out=self.flat.values)
