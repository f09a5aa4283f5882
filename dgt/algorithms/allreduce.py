"""Centralised weighted SGD, the baseline with a global sum.

    theta' = theta - alpha 1/n sum_i lambda_i g_i

All nodes hold one model. It starts at the strategy's network average of their models, so that it begins where
the average of a decentralized run begins.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from dgt.algorithms.machinery import DecentralizedOptimizer
from dgt.algorithms.machinery.descent import Descent, with_momentum
from dgt.algorithms.machinery.groups import group_facts
from dgt.processes.agreement import agree
from dgt.processes.notices import NEVER


class AllReduce(DecentralizedOptimizer):
    """What a decentralized run is compared with; the only optimizer here that needs all ranks in every step.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks
    network                        a `dgt.Network`; of it, lambda only
    momentum, nesterov             as of torch.optim.SGD
    base, base_options             a torch optimizer for the mean gradient: centralised AdamW, for example

    wire, local_steps and bucket_mb are refused: the sum is made by the process group, at every step.
    """

    Settings = Descent
    supports: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        values, size = self.flat.values, self.network.node.size
        self._message = torch.zeros(values.numel() + 2).to(values)
        self._sum, self._notices = self._message[:-2], self._message[-2:]  # the gradient; notices and settings
        self._digests = _digests(values.dtype, size)
        if self._digests < FEWEST_DIGESTS:  # a message of their own, wide enough
            self._message = self._sum
            self._notices = torch.zeros(2, dtype=torch.float64, device=values.device)
            self._digests = _digests(torch.float64, size)
        self._parts = self.flat.views_of(self._sum) if values.is_cuda else None
        self._momentum = self.flat.like() if self.has_momentum else None
        if self.base is not None:
            self.base.attach(values, self.param_groups, [slice(0, values.numel())], self.flat.slices)
        values.mul_(self.network.average_weight)
        self.network.node.all_reduce(values)
        self.flat.write_parameters()

    @torch.no_grad()
    def update(self) -> None:
        node = self.network.node
        notices = node.notices
        self.note_settings()
        self.read_gradient(self._sum, self._parts)
        self.check_finite(self._sum)
        self._sum.mul_(self.network.weight / node.size)
        self._write_notices()
        node.all_reduce(self._message, compared=False)
        if self._message is self._sum:
            node.all_reduce(self._notices, compared=False)
        # a sum reaches all ranks in the same step
        notices.stop_at, notices.save_at = (self.iteration + 1 if asked else NEVER for asked in self._read_notices())
        self.transport.bytes_sent += _ring_bytes(node.size, self._sum.nbytes)
        self._descend(self._sum)

    def _descend(self, gradient: torch.Tensor) -> None:
        """The step of torch.optim.SGD, or of the base, with the mean gradient."""
        values = self.flat.values
        if self.base is not None:
            self.base.step(slice(0, values.numel()), values, gradient, self.param_groups)
            return
        if self._momentum is not None:
            for group, part in zip(self.param_groups, self.flat.slices, strict=True):
                gradient[part] = with_momentum(gradient[part], self._momentum[part], group, out=gradient[part])
        self.descend(values, gradient, out=values)

    def buffers(self) -> dict[str, torch.Tensor]:
        return super().buffers() | ({} if self._momentum is None else {"momentum": self._momentum})

    def _write_notices(self) -> None:
        """Whole numbers that are added up exactly: stop + (n + 1) d and save + (n + 1) d^2, d a digest of settings."""
        notices, step = self.network.node.notices, self.network.node.size + 1
        digest = self.transport.settings.digest % self._digests
        self._notices[0] = (notices.stop_at != NEVER) + step * digest
        self._notices[1] = (notices.save_at != NEVER) + step * digest**2

    def _read_notices(self) -> tuple[int, int]:
        """How many ranks want to stop, and to save. Settings are the same on all n ranks iff n sum d^2 = (sum d)^2."""
        node = self.network.node
        (total, stop), (squares, save) = (divmod(int(value), node.size + 1) for value in self._notices.tolist())
        if node.size * squares != total**2:
            agree(node, {"iteration": str(self.iteration), **group_facts(self.param_groups)})
        return stop, save

    @classmethod
    def bytes_per_exchange(cls, nodes: int, edges: int, numbers: int, width: int, wire_width: float) -> int:
        return nodes * _ring_bytes(nodes, numbers * width)


FEWEST_DIGESTS = 16


def _ring_bytes(nodes: int, buffer_bytes: int) -> int:
    """Counted as a ring all-reduce: 2 (n-1)/n of the buffer leaves every rank."""
    return 2 * (nodes - 1) * buffer_bytes // nodes


def _digests(dtype: torch.dtype, size: int) -> int:
    """How many digests d there may be so that n + (n + 1) n d^2 is a whole number that the dtype holds exactly."""
    largest = int(2 / torch.finfo(dtype).eps)
    return math.isqrt(max(largest - size, 0) // ((size + 1) * size))


ALGORITHM = AllReduce
