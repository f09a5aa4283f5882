"""Metrics of the whole network, put together on rank 0 at evaluations; tensors, never objects.

    loss, accuracy, ...  1/n sum_i lambda_i (node i's value)
    average_accuracy     of the network's average model, the test set split over the ranks
    consensus            sqrt(1/n sum_i lambda_i |theta_i - average|^2)
    tracking_residual    |sum_i pi_i (y_i - G_i g_i)|, |sum_i pi_i c_i| with exact diffusion: zero but for rounding,
                         unless a message was lost or stale

`average` is the strategy's own: sum_i pi_i theta_i with pi = 1/n (I) or lambda/n (II).
Small models are gathered on rank 0, where the sums are taken: one hop, and nobody waits. Large ones are summed
across the ranks piece by piece, so that no rank ever holds the parameters of another.

What single nodes measured comes along: their losses, |theta_i - average| and the seconds they waited for neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.exchange.buffers import take_mean_of_node
from dgt.exchange.network import Network
from dgt.problems import Problem
from dgt.processes.local import Local
from dgt.processes.node import Node
from dgt.runs.measures import Metrics, NodeMetrics

GATHER_BYTES = 1 << 20  # per rank
PIECE = 1 << 21  # numbers summed at a time


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the network has achieved, as rank 0 knows it; arrays have one value per seed, [copies]."""

    metrics: Metrics
    """To be recorded, by name."""
    nodes: NodeMetrics
    """Of every node, [nodes] each."""
    average_norm: np.ndarray
    """|average|, against which `health.py` judges how far nodes are apart."""
    tracking_scale: np.ndarray | None = None
    """Size of what the tracking residual adds up, against which `health.py` judges rounding; None without trackers."""

    def with_times(self, seconds: float, evaluation_share: float) -> Evaluation:
        """The same with what it took, in the metrics."""
        times = {"seconds": seconds, "evaluation_share": evaluation_share}
        shape = self.average_norm.shape
        return dataclasses.replace(self, metrics=self.metrics | {k: np.full(shape, v) for k, v in times.items()})


def evaluate(
    problem: Problem,
    optimizer: DecentralizedOptimizer,
    extra: Mapping[str, float] | None = None,
    gather_bytes: int = GATHER_BYTES,
) -> Evaluation | None:
    """Collective: every rank calls it at the same iteration; rank 0 gets the network's and the nodes' metrics.

    `extra` are further quantities of this node whose lambda-weighted mean is wanted.
    """
    optimizer.drain()
    network, node, copies = optimizer.network, optimizer.network.node, problem.copies
    share = network.weight / node.size
    mine = _measured(problem, node.local, extra or {})
    weighted = [share * values.ravel() for values in mine.values()]
    theta = optimizer.flat.values.view(copies, -1)
    error = optimizer.tracking_error() if optimizer.iteration else None
    scale = [] if error is None else _tracking_scale(optimizer, error, copies)
    sent = float(node.local.all_reduce([float(network.bytes_sent)]))
    small = torch.from_numpy(np.concatenate([*weighted, [sent], scale]))
    vectors = [theta * network.average_weight, *([] if error is None else [error.view(copies, -1)])]
    plain = {name: values.ravel()[0] for name, values in mine.items() if values.size == copies}
    own = torch.tensor([*plain.values(), network.wait_seconds], dtype=torch.float64)
    put_together = _gathered if (len(vectors) + 1) * theta.numel() * 8 <= gather_bytes else _summed
    totals, average, squares, of_nodes = put_together(node, small, own, vectors, theta, share)
    if node.local.size > 1 and node.rank == 0:
        average, squares, of_nodes = _of_all_shares(node.local, average, squares, of_nodes)
        average = average[:, : optimizer.flat.whole.numel()]
    of_average = _measure_average(problem, network)
    if not node.is_main:
        return None

    pieces = np.split(totals.numpy(), np.cumsum([values.size for values in mine.values()]))
    means = {name: piece.reshape(mine[name].shape) for name, piece in zip(mine, pieces, strict=False)}
    metrics = problem.summarise(means, average.numpy())
    metrics |= {name: np.full(copies, value) for name, value in of_average.items()}
    metrics["consensus"] = squares[0].sqrt().numpy()
    if error is not None:
        metrics["tracking_residual"] = squares[1].sqrt().numpy()
    metrics["bytes_sent"] = np.full(copies, pieces[-1][0])
    nodes = dict(zip([*plain, "waited", "from_average"], of_nodes.T.numpy(), strict=True))
    norm = average.norm(dim=-1).numpy()
    return Evaluation(metrics, nodes, norm, None if error is None else pieces[-1][1:])


def _tracking_scale(optimizer: DecentralizedOptimizer, error: torch.Tensor, copies: int) -> list[float]:
    """|pi_i (y_i - G_i g_i)| + |pi_i G_i g_i|: rounding is in proportion to both, and the first may vanish."""
    gradient = optimizer.flat.like()
    optimizer.read_gradient(out=gradient)
    network = optimizer.network
    gradient *= network.average_weight * network.gradient_scale
    squares = torch.stack([part.view(copies, -1).norm(dim=-1).double() ** 2 for part in (error, gradient)])
    norms = network.node.local.all_reduce(squares.cpu()).sqrt()
    return (norms[0] + norms[1]).tolist()


def _measured(problem: Problem, local: Local, extra: Mapping[str, float]) -> dict[str, np.ndarray]:
    """What this node measures, its `extra` quantities first; of several ranks the first one has it all."""
    if local.size == 1:
        return _arrays({**extra, **problem.measure()})
    take_mean_of_node(problem.model, local)
    means = local.mean(torch.tensor([*extra.values()], dtype=torch.float64)).tolist() if extra else []
    arrays = _arrays(problem.measure_part(local.rank, local.size) or {})
    sizes = local.all_gather(sum(values.size for values in arrays.values())).tolist()
    if min(sizes):  # all ranks have measured a part
        total = local.all_reduce(np.concatenate([values.ravel() for values in arrays.values()])).numpy()
        pieces = np.split(total, np.cumsum([values.size for values in arrays.values()]))
        arrays = {name: piece.reshape(arrays[name].shape) for name, piece in zip(arrays, pieces, strict=False)}
    return {} if local.rank else {**_arrays(dict(zip(extra, means, strict=True))), **arrays}


def _arrays(found: Mapping[str, float | np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def _of_all_shares(
    local: Local, average: torch.Tensor, squares: list[torch.Tensor], of_nodes: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """On node 0, whose ranks know average, sums of squares and distances each of its own share: of all shares."""
    squares = [local.all_reduce(each) for each in squares]
    of_nodes[:, -1] = local.all_reduce(of_nodes[:, -1].square()).sqrt()
    return torch.cat(list(local.all_gather(average)), dim=1), squares, of_nodes


def _measure_average(problem: Problem, network: Network) -> dict[str, float]:
    """Each rank tests the average model on its part of the test set; the parts are added up."""
    if type(problem).measure_average is Problem.measure_average:
        return {}
    node = network.node.world
    with network.average(problem.model, problem.recalibration()):
        parts = problem.measure_average(node.rank, node.size)
    totals = node.all_reduce(torch.tensor(list(parts.values()), dtype=torch.float64))
    return dict(zip(parts, totals.tolist(), strict=True))


# totals, average, sums of squares [copies] each, and on rank 0 every node's own numbers and |theta_i - average|
Parts = tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor]


def _gathered(
    node: Node, small: torch.Tensor, own: torch.Tensor, vectors: list[torch.Tensor], theta: torch.Tensor, share: float
) -> Parts:
    """Every rank hands rank 0 its numbers; the result means something there only."""
    flat = [vector.double().cpu().flatten() for vector in [*vectors, theta]]
    rows = node.gather(torch.cat([torch.tensor([share], dtype=torch.float64), small, own, *flat]), dst=0)
    if rows is None:
        return small, flat[0], [], own
    sizes = [1, small.numel(), own.numel(), *(vector.numel() for vector in flat)]
    shares, totals, of_nodes, *stacks = rows.split(sizes, dim=1)
    average, *errors = (stack.sum(0).view(theta.shape) for stack in stacks[:-1])
    distances = (stacks[-1].view(node.size, *theta.shape) - average).square().sum(-1)
    squares = [(shares * distances).sum(0), *(error.square().sum(-1) for error in errors)]
    return totals.sum(0), average, squares, torch.cat([of_nodes, distances[:, :1].sqrt()], dim=1)


def _summed(
    node: Node, small: torch.Tensor, own: torch.Tensor, vectors: list[torch.Tensor], theta: torch.Tensor, share: float
) -> Parts:
    """Sums across all ranks, for models too large to gather; only rank 0 keeps the average."""
    length = max(1, PIECE // len(theta))
    squares = [torch.zeros(len(theta), dtype=torch.float64) for _ in vectors]
    kept = []
    for start in range(0, theta.shape[1], length):
        part = slice(start, start + length)
        average, *errors = (node.all_reduce(vector[:, part].contiguous()) for vector in vectors)
        squares[0] += share * (theta[:, part] - average).square().sum(-1, dtype=torch.float64).cpu()
        for total, error in zip(squares[1:], errors, strict=True):
            total += error.square().sum(-1, dtype=torch.float64).cpu()
        if node.rank == 0:
            kept.append(average.cpu())
    of_nodes = node.gather(torch.cat([own, (squares[0][:1] / share).sqrt()]), dst=0)
    squares[0] = node.all_reduce(squares[0])
    average = torch.cat(kept, dim=1) if kept else small
    return node.all_reduce(small), average, squares, own if of_nodes is None else of_nodes
