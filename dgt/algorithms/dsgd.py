"""Decentralized SGD, the baseline without a tracker.

    theta' = W (theta - alpha G g)

Neighbours are sent z = theta - alpha G g, which is needed at once; with buckets it travels during backward and forward.
"""

from __future__ import annotations

from typing import Any

import torch

from dgt.algorithms.machinery import Message, NeighbourOptimizer, Views
from dgt.algorithms.machinery.descent import Descent


class DSGD(NeighbourOptimizer):
    """Half the traffic of gradient tracking; stalls away from the optimum when nodes differ.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks
    network                        a `dgt.Network`
    momentum, nesterov             as of torch.optim.SGD: of the node's own gradients
    base, base_options             a torch optimizer for the node's own gradient G g. Biased, also where plain SGD is
                                   not: an adaptive base cancels the weight lambda of Strategy I, and its second moments
                                   belong to one node. Here for comparison
    overlap, wire, local_steps, bucket_mb, model   how z travels: see `NeighbourOptimizer`; there is nothing to overlap
                                                   without buckets
    """

    Settings = Descent
    messages = (Message("z", "parameters"),)
    gradient_room = "z"

    def choose_vectors(self) -> None:
        if self.base is not None:
            self.work_vectors, self.gradient_room = ("direction",), "direction"

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """z = theta - alpha G g."""
        if self.base is not None:
            torch.mul(gradient, self.network.gradient_scale, out=at.direction)
            return
        torch.add(at.theta, gradient, alpha=-self.network.gradient_scale * float(group["lr"]), out=at.z)

    def complete_messages(self, at: Views) -> None:
        """z = theta - alpha P(G g)."""
        if self.base is not None:
            self.base_step(at, at.z.copy_(at.theta), at.direction)

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha G g."""
        if self.base is not None:
            return torch.mul(gradient, self.network.gradient_scale, out=at.direction)
        at.theta.add_(gradient, alpha=-self.network.gradient_scale * float(group["lr"]))
        return gradient

    def complete_local_step(self, at: Views) -> None:
        """theta -= alpha P(G g)."""
        if self.base is not None:
            self.base_step(at, at.theta, at.direction)


ALGORITHM = DSGD
