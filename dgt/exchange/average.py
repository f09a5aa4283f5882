"""The strategy's network average of a model: sum_i pi_i theta_i, with pi = 1/n (I) or lambda/n (II).

Parameters and floating-point buffers are averaged, one message per dtype; integer buffers are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dgt.exchange.network import Network


@contextlib.contextmanager
def averaged(network: Network, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model holds the network average inside the block and its own values again after it. All ranks call it."""
    tensors = _floating(model)
    own = [tensor.detach().clone() for tensor in tensors]
    with torch.no_grad():
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same]).mul_(network.average_weight)
            network.node.sum(flat)
            for tensor, piece in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(piece.view_as(tensor))
    try:
        yield model
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, own, strict=True):
                tensor.copy_(value)


def save_average(network: Network, model: torch.nn.Module, path: str | Path) -> None:
    """Rank 0 writes the averaged `state_dict`, complete or not at all; all ranks call it."""
    with averaged(network, model):
        if network.node.is_main:
            path = Path(path)
            draft = path.with_name(path.name + ".part")
            torch.save({name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}, draft)
            draft.replace(path)


def _floating(model: torch.nn.Module) -> list[torch.Tensor]:
    """Every floating-point parameter and buffer once, tied ones too, in the model's order."""
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]
