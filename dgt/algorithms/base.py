"""What the decentralized optimizers share: flat parameters, gradients with weight decay, the step counter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dgt.config import check_range
from dgt.exchange.agreement import agree
from dgt.exchange.flat import FlatParameters
from dgt.exchange.network import Network


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(method, "__wrapped__", method)


class DecentralizedOptimizer(torch.optim.Optimizer):
    """One step is: take the gradients, exchange with the neighbours, write the new parameters.

    Groups may have their own `lr` and `weight_decay` (the gradient becomes g + weight_decay * theta).
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float = 0.0,
    ) -> None:
        check_range("lr", lr, 0, open_low=True)
        check_range("weight_decay", weight_decay, 0)
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        self.network = network
        self.transport = network.open_transport()
        self.flat = FlatParameters([group["params"] for group in self.param_groups])
        agree(network.node, {"parameters": self.flat.layout(), "algorithm": type(self).__name__})
        self.iteration = 0
        self.gradient = self.flat.like()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of this node, in step with its neighbours."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        self.iteration += 1
        return loss

    # torch wraps these two only to keep its compiler from tracing them, and the wrapper imports that compiler:
    # two seconds of start-up on every rank. The plain methods do the same work.
    add_param_group = _plain(torch.optim.Optimizer.add_param_group)
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)

    def update(self) -> None:
        """The algorithm itself."""
        raise NotImplementedError

    def read_gradient(self) -> None:
        """Bring `self.gradient` up to date from the parameters' gradients."""
        self.flat.gather_gradients(self.gradient)
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            if group["weight_decay"]:
                self.gradient[part].add_(self.flat.values[part], alpha=group["weight_decay"])

    def descend(self, start: torch.Tensor, direction: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
        """out = start - lr * scale * direction, with each group's own lr."""
        for group, part in zip(self.param_groups, self.flat.slices, strict=True):
            torch.add(start[part], direction[part], alpha=-scale * float(group["lr"]), out=out[part])

    def tracking_error(self) -> torch.Tensor | None:
        """pi_i (y_i - G_i g_i) [parameters], which sums to zero over the nodes; None without a tracker."""
        return None

    def drain(self) -> None:
        """Finish whatever is still travelling; call before leaving the network."""
