"""The strategy's network average of a model: sum_i pi_i theta_i, with pi = 1/n (I) or lambda/n (II).

Parameters and floating-point buffers are averaged, one message per dtype; integer buffers are left alone. BatchNorm
statistics of averaged models do not fit averaged parameters exactly: `recalibrate` measures them anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dgt.errors import ConfigError
from dgt.exchange.fsdp import collect_shards, local_part, whole_of

if TYPE_CHECKING:
    from dgt.exchange.network import Network
    from dgt.processes.node import Node


@contextlib.contextmanager
def averaged(
    network: Network, model: torch.nn.Module, recalibrate: Callable[[], None] | None = None, call: str = "average"
) -> Iterator[torch.nn.Module]:
    """The model holds the network average inside the block and its own values again after it. All ranks call it."""
    for bring_up_to_date in network.before_reading:
        bring_up_to_date()
    collect_shards(model)
    parameters = list(model.parameters())
    tensors = [*parameters, *model.buffers()]
    own, before = [tensor.detach().clone() for tensor in tensors], network.averaging
    network.averaging = before | set(map(id, tensors))
    try:
        with torch.no_grad(), network.node.world.during(f"{call}(model of {len(tensors)} tensors)"):
            _sum_over_nodes(network, tensors, network.average_weight)
            if recalibrate is not None:
                recalibrate()
                _pool_statistics(network, model)
        versions = _versions(parameters)
        yield model
        changed = _versions(parameters) != versions
    finally:
        network.averaging = before
        with torch.no_grad():
            for tensor, value in zip(tensors, own, strict=True):
                tensor.copy_(value)
    if changed:  # by an optimizer of torch's, or load_state_dict
        raise ConfigError("network.average: parameters were changed inside the block, which is lost; do it outside")


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    """How often each was changed in place, where torch counts that."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def save_average(
    network: Network, model: torch.nn.Module, path: str | Path, recalibrate: Callable[[], None] | None = None
) -> None:
    """Rank 0 writes the averaged `state_dict`, complete or not at all; all ranks call it."""
    with averaged(network, model, recalibrate, "save_average"):
        wholes = {name: whole_of(tensor) for name, tensor in model.state_dict().items()}
        if network.node.is_main:
            path = Path(path)
            draft = path.with_name(path.name + ".part")
            torch.save({name: tensor.detach().cpu().clone() for name, tensor in wholes.items()}, draft)
            draft.replace(path)


def _sum_over_nodes(network: Network, tensors: Iterable[torch.Tensor], share: float) -> None:
    """t = sum_i share_i t_i for every floating-point tensor, in place."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    node, shards = network.node, [tensor for tensor in floating if hasattr(tensor, "to_local")]
    if shards:  # of FSDP: each is added up with the same shard of other nodes
        _sum_tensors(node, [local_part(tensor) for tensor in shards], share)
        floating = [tensor for tensor in floating if not hasattr(tensor, "to_local")]
    # of a node of several ranks, the mean of theirs: BatchNorm's statistics are of each rank's own data
    _sum_tensors(node.world, floating, share / node.local.size)


def _sum_tensors(node: Node, floating: Sequence[torch.Tensor], share: float) -> None:
    for dtype in sorted({tensor.dtype for tensor in floating}, key=str):
        same = [tensor for tensor in floating if tensor.dtype == dtype]
        wide = torch.promote_types(dtype, torch.float32)  # 16 bits are too few to add up in
        flat = torch.cat([tensor.flatten() for tensor in same]).to(wide).mul_(share)
        node.all_reduce(flat)
        for tensor, piece in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(piece.view_as(tensor))


def _pool_statistics(network: Network, model: torch.nn.Module) -> None:
    """BatchNorm statistics of all nodes' data together: means are averaged, and E[x^2] in place of the variances."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    statistics = [
        (layer.running_mean, layer.running_var)
        for layer in layers
        if layer.running_mean is not None and layer.running_var is not None
    ]
    for mean, variance in statistics:
        variance.add_(mean.square())
    _sum_over_nodes(network, [tensor for pair in statistics for tensor in pair], network.weight / network.node.size)
    for mean, variance in statistics:
        variance.sub_(mean.square()).clamp_(min=0)  # rounding
