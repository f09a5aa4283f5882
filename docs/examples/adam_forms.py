"""Adam on a decentralized network: ways to combine it with gradient tracking, side by side in one process.

python docs/examples/adam_forms.py --steps 300 --seeds 0 1 2 --forms centralised own mixed late --graph ring
python docs/examples/adam_forms.py --exact        # does a form reach the weighted optimum when there is no noise?

Everything is stacked, node axis first; Strategy II unless said otherwise. P(d) is Adam's direction m / (sqrt(v) + eps):

    y' = W y + G (g' - g),  y_0 = G g_0       the tracker
    theta' = FORMS[name]                      the rest of the step
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import dgt
from dgt.network.mixing import mixing_matrix, strategy
from dgt.problems.base import ProblemContext
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings
from dgt.problems.text import CharacterModel

WEIGHTS = [4, 1, 2, 1, 1, 3, 2, 2]
LAZINESS = 0.3
SCHEDULES = ("hypercube", "matchings")  # one partner per step, in place of a graph

Gradient = Callable[[Tensor, int], Tensor]  # (theta [nodes, parameters], step) -> g of the same shape


@dataclass(frozen=True)
class Form:
    """theta' = update; vectors per neighbour and step; how often a step waits for neighbours, one after the other."""

    equation: str
    vectors: int
    waits: int
    tracked: bool = True  # False: Adam sees the node's own gradient
    rounds: int = 1  # how often y is mixed per step
    momentum: bool = False  # the tracker follows Adam's first moment in place of the gradient


FORMS = {
    "centralised": Form("theta - a P(mean of g)", 1, 1, tracked=False),
    "dsgd": Form("W (theta - a P(g))", 1, 1, tracked=False),
    "own": Form("W (theta - a P(y))", 2, 1),
    "mixed": Form("W (theta - a P(W y))", 2, 2),
    "together": Form("W theta - a P(W y)", 2, 1),
    "late": Form("W (theta - a P(W y of the step before))", 2, 1),
    "late_together": Form("W theta - a P(W y of the step before)", 2, 0),
    "scaled": Form("W (theta - a P), m of y, v of W y", 2, 2),
    "predicted": Form("W (theta - a P), m of y, v of W y before + W_ii (g' - g)", 2, 1),
    "twice": Form("W (theta - a P(W W y)), y mixed twice", 3, 3, rounds=2),
    "momentum": Form("W (theta - a W y / sqrt(v)), y tracks m, v of W y", 2, 2, momentum=True),
}


@dataclass(frozen=True)
class Settings:
    """Of Adam and of the step size."""

    lr: float = 0.003
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    relative_eps: bool = False  # eps is a share of the mean of sqrt(v)
    warmup: int = 0
    amsgrad: bool = False
    schedule: str = "cosine"

    def alpha(self, step: int, steps: int) -> float:
        """Cosine to 0; or constant for a third, then down by a factor of 1e11."""
        if self.schedule == "cosine":
            decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        else:
            decay = 10 ** (-11 * max(0.0, step / steps - 1 / 3) * 1.5)
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup)) * decay


class Adam:
    """Adam's direction of all nodes at once; the second moment may come from another vector than the first."""

    def __init__(self, like: Tensor, settings: Settings, beta1: float) -> None:
        self.settings, self.beta1, self.step = settings, beta1, 0
        self.m, self.v, self.most = (torch.zeros_like(like) for _ in range(3))

    def __call__(self, direction: Tensor, scale: Tensor | None = None) -> Tensor:
        self.step += 1
        scale, beta2 = direction if scale is None else scale, self.settings.beta2
        self.m.lerp_(direction, 1 - self.beta1)
        self.v.mul_(beta2).addcmul_(scale, scale, value=1 - beta2)
        v = torch.maximum(self.most, self.v, out=self.most) if self.settings.amsgrad else self.v
        root = (v / (1 - beta2**self.step)).sqrt_()
        eps = self.settings.eps * (root.mean(1, keepdim=True) if self.settings.relative_eps else 1)
        return self.m / (1 - self.beta1**self.step) / (root + eps)


class Mixing:
    """W of every step: a graph's, the same at all steps, or of pairs that change with the step."""

    def __init__(self, graph: str, weights: np.ndarray, dtype: torch.dtype, strategy_name: str = "II") -> None:
        chosen = strategy(strategy_name, weights)
        self.scale = torch.tensor(chosen.gradient_scale, dtype=dtype)[:, None]  # G
        self.average = torch.tensor(chosen.average_weights, dtype=dtype)  # pi
        self.mean = torch.tensor(weights / weights.size, dtype=dtype)  # lambda / n
        self.graph, self._weights, self._dtype = graph, chosen.mixing_weights, dtype
        if graph in SCHEDULES:
            self.partners = 1.0
        else:
            name, _, rounds = graph.partition("^")
            made: nx.Graph = getattr(dgt.graphs, name)(weights.size)
            self.partners = 2 * made.number_of_edges() / weights.size * int(rounds or 1)
            W = mixing_matrix(made, self._weights, LAZINESS).toarray()
            self._static = torch.tensor(np.linalg.matrix_power(W, int(rounds or 1)), dtype=dtype)

    def at(self, step: int) -> Tensor:
        """[nodes, nodes]."""
        if self.graph not in SCHEDULES:
            return self._static
        W = np.eye(self._weights.size)
        for i, j in self._pairs(step):
            total = self._weights[i] + self._weights[j]
            W[[i, i, j, j], [i, j, i, j]] = np.tile(self._weights[[i, j]] / total, 2)
        return torch.tensor(W, dtype=self._dtype)

    def _pairs(self, step: int) -> list[tuple[int, int]]:
        nodes = self._weights.size
        if self.graph == "matchings":
            order = np.random.default_rng([step, nodes]).permutation(nodes)
            return list(zip(order[::2].tolist(), order[1::2].tolist(), strict=False))
        bits = nodes.bit_length() - 1
        if 2**bits != nodes:
            raise ValueError(f"hypercube: {nodes} nodes; must be a power of two")
        order = np.argsort(self._weights, kind="stable")  # partners of like weight
        return [(int(order[k]), int(order[k ^ 1 << step % bits])) for k in range(nodes) if not k >> step % bits & 1]


def states(name: str, gradient: Gradient, start: Tensor, mixing: Mixing, settings: Settings, steps: int) -> Any:
    """theta after every step, [nodes, parameters]."""
    form, G = FORMS[name], mixing.scale
    adam = Adam(start, settings, 0.0 if form.momentum else settings.beta1)
    theta, tracked, mixed, u = start.clone(), torch.zeros_like(start), torch.zeros_like(start), torch.zeros_like(start)
    for t in range(steps):
        g, W, alpha, before = gradient(theta, t), mixing.at(t), settings.alpha(t, steps), mixed
        if name == "centralised":
            theta = theta - alpha * adam((mixing.mean @ g).expand_as(theta))
        elif name == "dsgd":
            theta = W @ (theta - alpha * adam(G * g))
        else:
            u = u.lerp(g, 1 - settings.beta1) if form.momentum else g
            y = mixed + G * (u - tracked)
            tracked, mixed = u.clone(), torch.linalg.matrix_power(W, form.rounds) @ y
            if name in ("own", "scaled"):
                theta = W @ (theta - alpha * adam(y, mixed if name == "scaled" else y))
            elif name == "together":
                theta = W @ theta - alpha * adam(mixed)
            elif name == "predicted":  # W y as far as a node knows it before its neighbours answer
                theta = W @ (theta - alpha * adam(y, before + W.diagonal()[:, None] * (y - before)))
            elif not name.startswith("late"):
                theta = W @ (theta - alpha * adam(mixed))
            elif t == 0:  # nothing has been mixed yet
                theta = W @ theta
            else:
                z = alpha * adam(before)
                theta = W @ theta - z if name == "late_together" else W @ (theta - z)
        yield theta


class Text:
    """The character transformer on all nodes: each node's parameters and gradients are views of one row."""

    def __init__(self, weights: np.ndarray, seed: int, **settings: Any) -> None:
        device, self.dtype = torch.device("cpu"), torch.float32
        self.nodes = [
            CharacterModel(ProblemContext(i, weights, seed, device, self.dtype), **settings)
            for i in range(weights.size)
        ]
        self.start = torch.stack([_flat(node.model) for node in self.nodes])
        self.grad, self.losses = torch.zeros_like(self.start), torch.zeros(weights.size)

    def _place(self, node: int, theta: Tensor) -> CharacterModel:
        first = 0
        for parameter in self.nodes[node].model.parameters():
            last = first + parameter.numel()
            parameter.data = theta[first:last].view_as(parameter)
            parameter.grad = self.grad[node, first:last].view_as(parameter)
            first = last
        return self.nodes[node]

    def gradient(self, theta: Tensor, step: int) -> Tensor:
        self.grad.zero_()
        for i, own in enumerate(theta.contiguous()):
            self.losses[i] = self._place(i, own).backward(step)
        return self.grad

    def test_loss(self, theta: Tensor) -> Tensor:
        """[nodes]"""
        return torch.tensor([self._place(i, own).measure()["test_loss"] for i, own in enumerate(theta.contiguous())])


def _flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(name: str, graph: str, seed: int, steps: int, settings: Settings, size: dict[str, Any]) -> dict[str, float]:
    """Final losses under lambda; disagreement sqrt(sum lambda_i / n |theta_i - average|^2) halfway and at the end."""
    weights = dgt.weights.normalise(WEIGHTS)
    problem, began = Text(weights, seed, **size), time.monotonic()
    mixing = Mixing(graph, weights, problem.dtype)
    last, apart = [], []
    for t, theta in enumerate(states(name, problem.gradient, problem.start, mixing, settings, steps)):
        if t >= steps - max(1, steps // 10):
            last.append(float(mixing.mean @ problem.losses))
        if t + 1 in (max(1, steps // 2), steps):
            apart.append(float((mixing.mean @ (theta - mixing.average @ theta).square().sum(1)).sqrt()))
    average = (mixing.average @ theta).expand_as(theta)
    return {
        "train": float(np.mean(last)),
        "test": float(mixing.mean @ problem.test_loss(theta)),
        "average": float(problem.test_loss(average[:1])),
        "half": apart[0],
        "end": apart[-1],
        "seconds": time.monotonic() - began,
    }


def table(runs: dict[tuple[str, int], dict[str, float]], forms: list[str], seeds: list[int], graph: str) -> str:
    """Markdown: per form and seed the training loss over the last tenth, then means over the seeds."""
    partners = Mixing(graph, dgt.weights.normalise(WEIGHTS), torch.float64).partners
    lines = [
        "| form | theta' | sent | waits | " + " | ".join(f"seed {seed}" for seed in seeds) + " | to centralised "
        "| test, nodes | test, average | disagreement, half | end |",
        "|---" * (9 + len(seeds)) + "|",
    ]
    for name in forms:
        of_seeds = [runs[name, seed] for seed in seeds]
        mean = {key: float(np.mean([run[key] for run in of_seeds])) for key in of_seeds[0]}
        base = [runs["centralised", seed]["train"] for seed in seeds if ("centralised", seed) in runs]
        more = f"{mean['train'] - np.mean(base):+.3f}" if len(base) == len(seeds) else ""
        sent = "all-reduce" if name == "centralised" else f"{FORMS[name].vectors * partners:.2g}"
        losses = " | ".join(f"{run['train']:.3f}" for run in of_seeds)
        lines.append(
            f"| {name} | `{FORMS[name].equation}` | {sent} | {FORMS[name].waits} | {losses} | {more} "
            f"| {mean['test']:.3f} | {mean['average']:.3f} | {mean['half']:.2g} | {mean['end']:.2g} |"
        )
    return "\n".join(lines)


def quadratics(kind: str, nodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F_i = 1/2 (theta - c_i)^T H_i (theta - c_i): H [nodes, d, d], c [nodes, d], the start [nodes, d]."""
    if kind == "paper":
        local = LeastSquares(LeastSquaresSettings(noise=0.0, regularization=0.0), [seed], range(nodes))
        return local.curvature[:, 0, :, None] * np.eye(10), local.center[:, 0], local.start[:, 0]
    random, d = np.random.default_rng(seed), 10
    Q = np.linalg.qr(random.standard_normal((d, d)))[0]  # of all nodes: the sum is as ill-conditioned as they are
    curvature = np.logspace(-1.5, 0.5, d) * random.uniform(0.5, 1.5, (nodes, d))
    return (Q * curvature[:, None]) @ Q.T, 3 * random.standard_normal((nodes, d)), random.standard_normal((nodes, d))


def exact(forms: list[str], steps: int, settings: Settings) -> str:
    """The largest distance of any node to the weighted optimum, without noise, in float64; worst of all cells."""
    lines = ["| form | Adam, graphs | Adam, one partner | AMSGrad, graphs | AMSGrad, one partner |"]
    lines.append("|---" * 5 + "|")
    for name in forms:
        cells = [
            max(
                _distance(name, kind, graph, nodes, which, steps, replace(settings, amsgrad=amsgrad))
                for kind in ("paper", "ill-conditioned")
                for graph, nodes in networks
                for which in ("I", "II")
            )
            for amsgrad in (False, True)
            for networks in ((("ring", 8), ("exponential", 16)), (("hypercube", 8), ("matchings", 5)))
        ]
        lines.append(f"| {name} | {' | '.join(f'{cell:.0e}' for cell in cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def _distance(name: str, kind: str, graph: str, nodes: int, which: str, steps: int, settings: Settings) -> float:
    weights = dgt.weights.named("A") if nodes == 16 else dgt.weights.normalise(WEIGHTS[:nodes])
    H, c, start = quadratics(kind, nodes)
    weighted = weights[:, None, None] * H
    optimum = torch.from_numpy(np.linalg.solve(weighted.sum(0), (weighted @ c[..., None]).sum(0)[:, 0]))
    curvature, center = torch.from_numpy(H), torch.from_numpy(c)
    mixing = Mixing(graph, weights, torch.float64, which)
    if graph in SCHEDULES and not settings.amsgrad:  # stable steps are smaller with one partner
        settings = replace(settings, lr=settings.lr / 3)
    first = torch.from_numpy(start)
    if name == "centralised":
        first = first[:1].expand_as(first)
    for theta in states(
        name, lambda at, t: (curvature @ (at - center)[..., None])[..., 0], first, mixing, settings, steps
    ):
        pass
    return float((theta - optimum).norm(dim=1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", action="store_true", help="noise-free quadratics in place of the transformer")
    parser.add_argument("--steps", type=int, help="default 300; with --exact 12000")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument(
        "--graph", default="ring", help=f"a graph of dgt.graphs (ring^2: two rounds), or {', '.join(SCHEDULES)}"
    )
    parser.add_argument("--lr", type=float, help="default 0.003; with --exact 0.03")
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--relative-eps", action="store_true", help="eps is a share of the mean of sqrt(v)")
    parser.add_argument("--warmup", type=int, default=0, help="steps over which lr grows from 0")
    parser.add_argument("--size", type=json.loads, default={}, help='settings of problem=text, as {"width": 32}')
    parser.add_argument("--results", type=Path, help="finished runs are added to this file, and not repeated")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tuned = Settings(beta2=args.beta2, eps=args.eps, relative_eps=args.relative_eps, warmup=args.warmup)
    if args.exact:
        settings = replace(tuned, lr=args.lr or 0.03, schedule="down")
        print(exact(args.forms, args.steps or 12000, settings))
        return
    settings, steps = replace(tuned, lr=args.lr or 0.003), args.steps or 300
    done: dict[str, dict[str, float]] = {}
    if args.results and args.results.exists():
        done = dict(map(json.loads, args.results.read_text().splitlines()))
    runs = {}
    for seed in args.seeds:
        for name in args.forms:
            graph = "complete" if name == "centralised" else args.graph
            key = json.dumps([name, graph, seed, steps, vars(settings), args.size])
            if key not in done:
                done[key] = train(name, graph, seed, steps, settings, args.size)
                print(key, json.dumps(done[key]), file=sys.stderr, flush=True)
                if args.results:
                    with args.results.open("a") as file:
                        print(json.dumps([key, done[key]]), file=file)
            runs[name, seed] = done[key]
    print(table(runs, args.forms, args.seeds, args.graph))


if __name__ == "__main__":
    main()
