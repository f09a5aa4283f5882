"""Decentralized SGD, the baseline without a tracker.

    theta' = W (theta - alpha G g)

Neighbours are sent z = theta - alpha G g, which is needed at once; with buckets it travels during backward and forward.
"""

from __future__ import annotations

from typing import Any

import torch

from dgt.algorithms.machinery import Message, NeighbourOptimizer, Views


class DSGD(NeighbourOptimizer):
    """Half the traffic of gradient tracking; stalls away from the optimum when nodes differ.

    parameters, lr, weight_decay   as of torch.optim.SGD, the same on all ranks
    network                        a `dgt.Network`
    overlap, wire, local_steps, bucket_mb, model   how z travels: see `NeighbourOptimizer`; there is nothing to overlap
                                                   without buckets
    """

    messages = (Message("z", "parameters"),)

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """z = theta - alpha G g."""
        torch.add(at.theta, gradient, alpha=-self.network.gradient_scale * float(group["lr"]), out=at.z)

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """theta -= alpha G g."""
        at.theta.add_(gradient, alpha=-self.network.gradient_scale * float(group["lr"]))
        return gradient


ALGORITHM = DSGD
