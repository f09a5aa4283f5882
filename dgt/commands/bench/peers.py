"""What dgt is compared with: DDP, Decent-DP if it is installed, and a straightforward exchange per tensor.

Peers run with the settings that are best for them; what they send is counted as gloo's and nccl's rings send it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from dgt.commands.bench.presets import Workload
from dgt.commands.bench.variants import LR, Compute
from dgt.exchange.network import Network
from dgt.exchange.pending import message_order
from dgt.processes.node import Node

MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


class DDP(Compute):
    """torch's DistributedDataParallel: an all-reduce of the gradients.

    gradients are views of the buckets, the graph is known not to change, the optimizer is a fused one; buffers stay on
    their rank (BatchNorm's statistics do so in dgt, too), which spares a broadcast before every forward
    """

    def __init__(
        self,
        work: Workload,
        node: Node,
        bucket_mb: float,
        make: MakeOptimizer | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(work)
        self.parallel = distributed(self.model, node, bucket_mb)
        self.optimizer = (make or fused_sgd)(self.model.parameters())
        sent = parameter_bytes(self.model)
        if bfloat16:
            self.parallel.register_comm_hook(_group(node), _bfloat16)
            sent = sum(2 * p.numel() for p in self.model.parameters())
        self._per_step, self._bytes = ring_bytes(sent, node.size), 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward(self.parallel)
        self.optimizer.step()
        self._bytes += self._per_step

    def bytes_sent(self) -> int:
        return self._bytes


def distributed(model: torch.nn.Module, node: Node, bucket_mb: float) -> torch.nn.parallel.DistributedDataParallel:
    """The model wrapped with the best settings there are."""
    wrapper = torch.nn.parallel.DistributedDataParallel
    renamed = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # torch 2.15 and later
    keep_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return wrapper(
        model,
        gradient_as_bucket_view=True,
        static_graph=True,
        bucket_cap_mb=bucket_mb,
        process_group=_group(node),
        **keep_buffers,
    )


def _group(node: Node) -> dist.ProcessGroup:
    """The group over which collective operations on the model's tensors run."""
    return node.data if node.backend == "nccl" else node.control


def _bfloat16(group, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    """torch's hook; under its own name builds of torch without CUDA refuse it, though gloo adds bfloat16."""
    return default_hooks.bf16_compress_hook(group, bucket)


class LocalSGD(Compute):
    """Local SGD: every rank makes steps of its own, and parameters are averaged after every `every`-th.

    What torch's PostLocalSGDOptimizer with a PeriodicModelAverager computes, at its best: parameters are views of one
    vector, so that nothing is copied before and after the one all-reduce.
    """

    def __init__(self, work: Workload, node: Node, every: int) -> None:
        super().__init__(work)
        parameters = list(self.model.parameters())
        self._flat = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
        torch.nn.utils.vector_to_parameters(self._flat, parameters)  # they are views of it from here on
        self.optimizer, self._group, self._every = fused_sgd(parameters), _group(node), every
        self._per_exchange = ring_bytes(parameter_bytes(self.model), node.size)
        self._steps = self._bytes = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward(self.model)
        self.optimizer.step()
        self._steps += 1
        if self._steps % self._every == 0:
            dist.all_reduce(self._flat, group=self._group)
            self._flat.div_(self._group.size())
            self._bytes += self._per_exchange

    def bytes_sent(self) -> int:
        return self._bytes


def fused_sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.SGD:
    """One kernel for all parameters."""
    return torch.optim.SGD(list(parameters), lr=LR, fused=True)


def fused_momentum(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The same with Nesterov momentum."""
    return torch.optim.SGD(list(parameters), lr=LR, momentum=0.9, nesterov=True, fused=True)


def fused_adamw(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """AdamW in one kernel for all parameters."""
    return torch.optim.AdamW(list(parameters), lr=LR, fused=True)


def load_code(node: Node) -> None:
    """Have torch import what DDP and SGD need, so that it does not count as memory of a variant. All ranks call it."""
    model = torch.nn.Linear(1, 1).to(node.device)
    optimizer, parallel = fused_sgd(model.parameters()), distributed(model, node, 1.0)
    parallel(torch.ones(1, 1, device=node.device)).sum().backward()  # `parallel` outlives its backward
    optimizer.step()
    if has_decent_dp():
        importlib.import_module("decent_dp.ddp")


def ring_bytes(size: int, ranks: int) -> int:
    """What each of `ranks` sends in a ring all-reduce of `size` bytes."""
    return 2 * (ranks - 1) * size // ranks


def has_decent_dp() -> bool:
    return importlib.util.find_spec("decent_dp") is not None


class DecentDP(Compute):
    """Decent-DP with SGD: parameters averaged with one neighbour at a time, no tracker, no node weights.

    Its defaults are its best: parameters are views of the buckets, and the exchange has until the next step's update.
    """

    def __init__(self, work: Workload, node: Node) -> None:
        super().__init__(work)
        importlib.import_module("loguru").logger.remove()  # its log handler prints on every rank
        self.parallel = importlib.import_module("decent_dp.ddp").DecentralizedDataParallel(
            self.model,
            optim_fn=lambda named: fused_sgd(parameter for _, parameter in named),
            topology="ring" if node.size % 2 == 0 else "complete",
            _local_world_size=node.placement.local_size,
        )
        self.parallel.train()
        self._steps = self._bytes = 0

    def step(self) -> None:
        self.backward(self.parallel)
        self._steps += 1
        # an all-reduce among two neighbours, or among all if their number is odd; the first steps record the order
        partners = len(self.parallel._topo.get_edge(self._steps).ranks)
        self._bytes += ring_bytes(parameter_bytes(self.model), partners)

    def finish(self) -> None:
        for exchange in self.parallel._comm_ops:
            if exchange is not None:
                exchange.wait()

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
