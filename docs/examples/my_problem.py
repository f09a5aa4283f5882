import torch

import dgt


class Parity(dgt.Problem):
    def __init__(self, context: dgt.ProblemContext, width: int = 32) -> None:
        draw = torch.Generator().manual_seed(context.node)  # this node's own data
        self.x = torch.randint(0, 2, (256, 6), generator=draw).to(context.device, context.dtype)
        self.y = self.x.sum(1).long() % 2
        torch.manual_seed(context.seed)  # all nodes start alike
        self.model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
        self.model.to(context.device, context.dtype)

    def backward(self, iteration: int) -> float:
        loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss.item()  # reported as `loss`; the run stops if it is no number

    def measure(self) -> dict[str, float]:  # optional: what else to report, lambda-weighted
        return {"accuracy": (self.model(self.x).argmax(1) == self.y).float().mean().item()}
