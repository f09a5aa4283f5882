"""Metrics of the whole network, put together on rank 0 at evaluations; tensors, never objects.

    loss, accuracy, ...  1/n sum_i lambda_i (node i's value)
    consensus            sqrt(1/n sum_i lambda_i |theta_i - average|^2)
    tracking_residual    |sum_i pi_i (y_i - G_i g_i)|: zero but for rounding, unless a message was lost or stale

`average` is the strategy's own: sum_i pi_i theta_i with pi = 1/n (I) or lambda/n (II).
Small models are gathered on rank 0, where the sums are taken: one hop, and nobody waits. Large ones are summed
across the ranks, so that no rank ever holds more than a few copies of its own parameters.
"""

from __future__ import annotations

import numpy as np
import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.problems import Problem
from dgt.world import Node

Metrics = dict[str, np.ndarray]  # each [copies]

GATHER_BYTES = 1 << 20  # per rank


def evaluate(problem: Problem, optimizer: DecentralizedOptimizer, gather_bytes: int = GATHER_BYTES) -> Metrics | None:
    """Collective: every rank calls it at the same iteration; rank 0 gets the metrics, the others None."""
    network, node, copies = optimizer.network, optimizer.network.node, problem.copies
    share = network.weight / node.size
    mine = problem.measure()
    theta = optimizer.flat.values
    error = optimizer.tracking_error() if optimizer.iteration else None
    vectors = [theta * network.average_weight, *([] if error is None else [error])]
    weighted = [share * values.ravel() for values in mine.values()]
    small = torch.from_numpy(np.concatenate([*weighted, [float(network.bytes_sent)]]))

    put_together = _gathered if (len(vectors) + 1) * theta.numel() * 8 <= gather_bytes else _summed
    totals, sums, deviation = put_together(node, small, vectors, theta, share, copies)
    if not node.is_main:
        return None

    pieces = np.split(totals.numpy(), np.cumsum([values.size for values in mine.values()]))
    means = {name: piece.reshape(mine[name].shape) for name, piece in zip(mine, pieces, strict=False)}
    metrics = problem.summarise(means, sums[0].view(copies, -1).numpy())
    metrics["consensus"] = deviation.sqrt().numpy()
    if error is not None:
        metrics["tracking_residual"] = sums[1].view(copies, -1).norm(dim=-1).numpy()
    metrics["bytes_sent"] = np.full(copies, pieces[-1][0])
    return metrics


Parts = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]


def _gathered(
    node: Node,
    small: torch.Tensor,
    vectors: list[torch.Tensor],
    theta: torch.Tensor,
    share: float,
    copies: int,
) -> Parts:
    """Every rank hands rank 0 its numbers; the result means something there only."""
    flat = [vector.double().cpu() for vector in [*vectors, theta]]
    rows = node.collect(torch.cat([torch.tensor([share], dtype=torch.float64), small, *flat]))
    if rows is None:
        return small, flat, small
    shares, totals, *stacks = rows.split([1, small.numel(), *(vector.numel() for vector in flat)], dim=1)
    sums = [stack.sum(0) for stack in stacks[:-1]]
    distances = (stacks[-1] - sums[0]).view(node.size, copies, -1).square().sum(-1)
    return totals.sum(0), sums, (shares * distances).sum(0)


def _summed(
    node: Node,
    small: torch.Tensor,
    vectors: list[torch.Tensor],
    theta: torch.Tensor,
    share: float,
    copies: int,
) -> Parts:
    """Sums across all ranks, for models too large to gather."""
    sums = [node.sum(vector) for vector in vectors]
    deviation = (theta - sums[0]).view(copies, -1).square().sum(-1, dtype=torch.float64).cpu()
    return node.sum(small), [vector.double().cpu() for vector in sums], node.sum(deviation * share)
