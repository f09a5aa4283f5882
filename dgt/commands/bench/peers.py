"""What dgt is measured against: DDP, Decent-DP where it is installed, and the exchange one would first write."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
import torch.distributed as dist

from dgt.bench.presets import Workload
from dgt.bench.variants import LR, Compute
from dgt.exchange.network import Network
from dgt.exchange.transport import message_order
from dgt.node import Node


class DDP(Compute):
    """torch's DistributedDataParallel with SGD: an all-reduce of the gradients."""

    def __init__(self, work: Workload, node: Node) -> None:
        super().__init__(work)
        group = node.data if node.backend == "nccl" else node.control
        self.parallel = torch.nn.parallel.DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, process_group=group
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self._per_step = 2 * (node.size - 1) * parameter_bytes(self.model) // node.size  # a ring all-reduce
        self._bytes = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward(self.parallel)
        self.optimizer.step()
        self._bytes += self._per_step

    def bytes_sent(self) -> int:
        return self._bytes


def has_decent_dp() -> bool:
    return importlib.util.find_spec("decent_dp") is not None


class DecentDP(Compute):
    """Decent-DP with SGD: parameters averaged with one neighbour at a time, no tracker, no node weights."""

    def __init__(self, work: Workload, node: Node) -> None:
        super().__init__(work)
        importlib.import_module("loguru").logger.remove()  # it speaks on every rank
        self.parallel = importlib.import_module("decent_dp.ddp").DecentralizedDataParallel(
            self.model,
            optim_fn=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=LR),
            topology="ring" if node.size % 2 == 0 else "complete",
            _local_world_size=node.placement.local_size,
        )
        self.parallel.train()
        self._per_step, self._bytes = parameter_bytes(self.model), 0

    def step(self) -> None:
        self.backward(self.parallel)
        self._bytes += self._per_step

    def bytes_sent(self) -> int:
        return self._bytes


class Naive(Compute):
    """Gradient tracking tensor by tensor: z and y of every parameter to every neighbour, one wait each."""

    def __init__(self, work: Workload, network: Network) -> None:
        super().__init__(work)
        self.network = network
        self.tracker: list[torch.Tensor] = []
        self.gradient: list[torch.Tensor] = []
        self._messages = self._bytes = 0

    def step(self) -> None:
        super().step()
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        scale, parameters = self.network.gradient_scale, list(self.model.parameters())
        gradient = [p.grad.clone() for p in parameters if p.grad is not None]
        if not self.tracker:
            self.tracker = [scale * g for g in gradient]
        else:
            mixed = [self._mix(y) for y in self.tracker]
            changes = zip(mixed, gradient, self.gradient, strict=True)
            self.tracker = [y + scale * (new - old) for y, new, old in changes]
        self.gradient = gradient
        for parameter, y in zip(parameters, self.tracker, strict=True):
            parameter.copy_(self._mix(parameter - LR * y))

    def _mix(self, own: torch.Tensor) -> torch.Tensor:
        row, own = self.network.row, own.contiguous()
        result = row.own * own
        for peer in self.network.neighbours:
            theirs = self._swap(own, peer)
            result = result + row.neighbours[peer] * theirs
            self._bytes += own.numel() * own.element_size()
        self._messages += 1
        return result

    def _swap(self, own: torch.Tensor, peer: int) -> torch.Tensor:
        node, theirs = self.network.node, torch.empty_like(own)
        works: list[Any]
        if node.backend == "nccl":
            ways = {"send": (dist.isend, own), "receive": (dist.irecv, theirs)}
            batch = [dist.P2POp(*ways[way], peer, node.data) for way, _ in message_order(node.rank, [peer])]
            works = dist.batch_isend_irecv(batch)
        else:
            tag = 2**30 + self._messages % 2**20  # above all tags of dgt's own messages
            works = [node.control.recv([theirs], peer, tag), node.control.send([own], peer, tag)]
        for work in works:
            work.wait()
        return theirs

    def bytes_sent(self) -> int:
        return self._bytes


def parameter_bytes(model: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
