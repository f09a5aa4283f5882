"""A model that FSDP2 has divided among the ranks of a node: dgt exchanges the local shards, FSDP does the rest.

    fully_shard(model, mesh=node.local.mesh())
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)

FSDP adds up gradients within the node, and collects parameters for forward and backward. Its shards stay where they
are, so the flat parameters are a copy of them, a share of the model, that is part of `optimizer.state_dict()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dgt.exchange.flat import FlatParameters, shape_in_words
from dgt.processes.local import Local
from dgt.processes.notices import Notices


class LocalShards(FlatParameters):
    """`values` holds this rank's shard of every trainable parameter, one after the other.

    groups  DTensors, on a mesh of the ranks of this node
    """

    def __init__(self, groups: Sequence[Sequence[Any]], names: Sequence[str], local: Local) -> None:
        self._local = local
        shards = [[torch.nn.Parameter(local_part(each), each.requires_grad) for each in group] for group in groups]
        self._pairs = [
            (whole, shard)
            for group, own in zip(groups, shards, strict=True)
            for whole, shard in zip(group, own, strict=True)
            if whole.requires_grad
        ]
        super().__init__(shards, names)
        self.has_masters = True

    def _stays(self, parameter: torch.Tensor, view: torch.Tensor) -> bool:
        return True

    def follow(self) -> None:
        """FSDP may have moved its shards, as `load_state_dict` does; the gradients are those of now."""
        for whole, shard in self._pairs:
            now = local_part(whole)
            if now.data_ptr() != shard.data_ptr():
                shard.data = now
            shard.grad = None if whole.grad is None else local_part(whole.grad)
        super().follow()

    def reduce_gradients(self, notices: Notices) -> tuple[bool, bool]:
        """FSDP has; whether any rank of this node was asked to stop, and to save."""
        asked = bool(notices.stop_asked), notices.save_asked
        stop, save = self._local.all_reduce([int(each) for each in asked], compared=False).tolist()
        if asked[1]:
            notices.save_asked = False
        return bool(stop), bool(save)

    def layout(self) -> str:
        """The same on all ranks, whose shards may differ in length."""
        wholes = [whole for whole, _ in self._pairs]
        shapes = " ".join(f"{shape_in_words(each)}:{str(each.dtype).removeprefix('torch.')}" for each in wholes)
        return f"{sum(each.numel() for each in wholes)} of {self.values.dtype}, in shards: {shapes}"


@torch.no_grad()
def local_part(tensor: Any) -> torch.Tensor:
    """The memory of this rank's shard of a DTensor; any other tensor itself."""
    part: torch.Tensor = tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor
    return part


def whole_of(tensor: Any) -> torch.Tensor:
    """All of a DTensor, which all ranks of the node ask for; any other tensor itself."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def collect_shards(model: torch.nn.Module) -> None:
    """Have FSDP hand out its shards, and not the whole parameters of the last forward pass."""
    module: Any
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
