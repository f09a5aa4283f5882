"""Mixing what a model keeps besides its parameters: floating-point buffers such as BatchNorm's running statistics.

buffers = dgt.MixedBuffers(model, network)
...
optimizer.step()
buffers.mix()                    # b_i' = W_ii b_i + sum_j W_ij b_j; integer buffers are left alone
"""

from __future__ import annotations

import torch

from dgt.errors import TrainingError
from dgt.exchange.network import Network
from dgt.processes.agreement import agree
from dgt.processes.local import Local


@torch.no_grad()
def take_mean_of_node(model: torch.nn.Module, local: Local) -> None:
    """Floating-point buffers become the mean over the ranks of a node, each of which has seen a part of its data."""
    if local.size > 1:
        for _, buffer in model.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(local.mean(buffer.clone()))


class MixedBuffers:
    """The floating-point buffers of one model, mixed with the neighbours' by the node's own row."""

    def __init__(self, model: torch.nn.Module, network: Network) -> None:
        self._network, self._transport = network, network.open_transport()
        names = [name.rpartition(".") for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        self._places = [(model.get_submodule(owner), name) for owner, _, name in names]
        shapes = (f"{tuple(buffer.shape)}:{buffer.dtype}" for buffer in self._buffers())
        agree(network.node, {"buffers": " ".join(shapes)})
        self._steps = 0

    def _buffers(self) -> list[torch.Tensor]:
        """Those that the modules have now: `model.to()` and the like put new ones in their place."""
        return [getattr(module, name) for module, name in self._places]

    @torch.no_grad()
    def mix(self) -> None:
        """One exchange with the neighbours; all ranks call it."""
        buffers = self._buffers()
        if not buffers:
            return
        # running statistics are small, so one message in the widest dtype, whatever theirs are
        dtype = torch.float64 if any(buffer.dtype == torch.float64 for buffer in buffers) else torch.float32
        own = self._network.node.local.mean(torch.cat([buffer.detach().flatten().to(dtype) for buffer in buffers]))
        if not bool(torch.isfinite(own.sum())) and not bool(torch.isfinite(own).all()):
            name = self._network.node.name
            raise TrainingError(f"node {name}: a buffer of the model is not finite at iteration {self._steps}")
        network = self._network
        # on a schedule partners follow the optimizer's steps, which a resumed run counts on
        mixed = network.exchange(self._transport, network.node.steps, "buffers", self._steps, own)
        pieces = mixed.split([buffer.numel() for buffer in buffers])
        for buffer, piece in zip(buffers, pieces, strict=True):
            buffer.copy_(piece.view_as(buffer))
        self._steps += 1
