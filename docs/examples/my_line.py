from dataclasses import dataclass

import torch

import dgt
from dgt.config.settings import setting


class Line(dgt.Problem):
    """Fit y = a x + b; every node has points of its own."""

    @dataclass(slots=True, kw_only=True)
    class Settings:
        points: int = setting(32, "points of every node", low=2)
        noise: float = setting(0.1, "standard deviation of their error", low=0)

    def __init__(self, context: dgt.ProblemContext, points: int, noise: float) -> None:
        draw = torch.Generator().manual_seed(1000 * context.seed + context.node)
        x, error = torch.randn(2, points, 1, generator=draw)
        self.x, self.y = (values.to(context.device, context.dtype) for values in (x, 2 * x + 1 + noise * error))
        torch.manual_seed(context.seed)  # all nodes start alike
        self.model = torch.nn.Linear(1, 1).to(context.device, context.dtype)

    def backward(self, iteration: int) -> float:
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        return loss.item()

    def measure(self) -> dict[str, float]:
        return {"slope": self.model.weight.item()}
