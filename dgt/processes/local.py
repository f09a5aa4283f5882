"""`node.local`: the ranks of one node, which share its data, its weight and its model.

    node.local.rank, node.local.size           0 and 1, unless `dgt.join(ranks_per_node=k)` says otherwise
    total = node.local.all_reduce(value)       all ranks of the node call it

What a sharded optimizer does at every step, `reduce_scatter` and `all_gather_into`, exchanges no header: the first
collective operation of the optimizer has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dgt.errors import ConfigError
from dgt.processes import call_header, collectives

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from dgt.processes.node import Node


class Local:
    """The ranks of one node; alone unless there are `ranks`, the scope of their collective operations."""

    def __init__(self, ranks: Node | None = None) -> None:
        self.ranks = ranks
        self._received: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        """The number of this process among the ranks of its node."""
        return 0 if self.ranks is None else self.ranks.rank

    @property
    def size(self) -> int:
        """How many ranks a node has."""
        return 1 if self.ranks is None else self.ranks.size

    @property
    def world_ranks(self) -> list[int]:
        """Which of all ranks they are."""
        first = 0 if self.ranks is None else self.ranks.world.rank - self.rank
        return list(range(first, first + self.size))

    def all_gather(self, values: Any) -> torch.Tensor:
        """The values of every rank of this node, stacked [size, ...], on all of them; all of them call it."""
        if self.ranks is None:
            return call_header.as_tensor("all_gather", values)[None]
        return collectives.all_gather(self.ranks, values)

    def all_reduce(self, values: Any, compared: bool = True) -> torch.Tensor:
        """The sum over the ranks of this node, on all of them; in place if `values` is a tensor. Arguments as of
        `node.all_reduce`."""
        if self.ranks is None:
            return call_header.as_tensor("all_reduce", values)
        return collectives.all_reduce(self.ranks, values, compared)

    def mesh(self) -> DeviceMesh:
        """For `fully_shard(model, mesh=node.local.mesh())`: the ranks of this node as a `DeviceMesh`."""
        from torch.distributed.device_mesh import DeviceMesh

        if self.ranks is None:
            raise ConfigError("node.local.mesh: this node has one rank; say how many, dgt.join(ranks_per_node=8)")
        return DeviceMesh.from_group(self.ranks.data, self.ranks.device.type)

    def barrier(self) -> None:
        """Wait until all ranks of this node are in this call."""
        if self.ranks is not None:
            collectives.barrier(self.ranks)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over the ranks of this node, in place."""
        return values if self.ranks is None else self.all_reduce(values).div_(self.size)

    def any(self, condition: bool) -> bool:
        """Whether it is so on any rank of this node."""
        return condition if self.ranks is None else bool(self.all_reduce([int(condition)], compared=False))

    def reduce_scatter(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """out [numbers] = the sum over the ranks of this node of their row number `rank`, of rows [size, numbers].

        Under gloo every rank is sent its rows and adds them up: gloo's own reduce_scatter takes longer, and does not
        end where a rank is lost.
        """
        import torch
        import torch.distributed as dist

        def start(group: dist.ProcessGroup, out: torch.Tensor, rows: torch.Tensor) -> dist.Work | None:
            if sums:
                return dist.reduce_scatter_tensor(out, rows, group=group, async_op=True)
            return dist.all_to_all_single(out, rows, group=group, async_op=True)

        sums = self.ranks is not None and self.ranks.backend == "nccl" and rows.is_cuda
        if sums:
            self._complete("reduce_scatter", start, out, rows)
            return
        if self._received is None or self._received.shape != rows.shape or self._received.dtype != rows.dtype:
            self._received = torch.empty_like(rows)
        self._complete("reduce_scatter", start, self._received, rows)
        torch.sum(self._received, 0, out=out)

    def all_gather_into(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        """rows [size, numbers] = `own` of every rank of this node; `own` may be its row itself."""
        import torch.distributed as dist

        def start(group: dist.ProcessGroup, rows: torch.Tensor, own: torch.Tensor) -> dist.Work | None:
            if rows.is_cuda:
                return dist.all_gather_into_tensor(rows.view(-1), own, group=group, async_op=True)
            return dist.all_gather(list(rows), own, group=group, async_op=True)

        self._complete("all_gather", start, rows, own)

    def broadcast(self, values: torch.Tensor) -> None:
        """Replace the values by those of the node's first rank."""
        import torch.distributed as dist

        def start(group: dist.ProcessGroup, values: torch.Tensor) -> dist.Work | None:
            return dist.broadcast(values, dist.get_global_rank(group, 0), group=group, async_op=True)

        self._complete("broadcast", start, values)

    def _complete(
        self, name: str, start: Callable[..., dist.Work | None], out: torch.Tensor, *given: torch.Tensor
    ) -> None:
        """Start the operation that writes `out`, and wait for it; gloo moves host memory only."""
        assert self.ranks is not None
        on_host = out.is_cuda and self.ranks.backend != "nccl"
        here = [tensor.cpu() for tensor in (out, *given)] if on_host else [out, *given]
        collectives.complete(self.ranks, name, here[0], lambda group: start(group, *here))
        if on_host:
            out.copy_(here[0])
