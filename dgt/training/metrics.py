"""Metrics of the whole network, from sums over the ranks at evaluations; tensors, never objects.

    loss, accuracy, ...  1/n sum_i lambda_i (node i's value)
    consensus            sqrt(1/n sum_i lambda_i |theta_i - average|^2)
    tracking_residual    |sum_i pi_i (y_i - G_i g_i)|: zero but for rounding, unless a message was lost or stale

`average` is the strategy's own: sum_i pi_i theta_i with pi = 1/n (I) or lambda/n (II).
"""

from __future__ import annotations

import numpy as np
import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.problems import Problem

Metrics = dict[str, np.ndarray]  # each [copies]


def evaluate(problem: Problem, optimizer: DecentralizedOptimizer) -> Metrics:
    """Collective: every rank calls it at the same iteration, every rank gets the same metrics."""
    network, node, copies = optimizer.network, optimizer.network.node, problem.copies
    share = network.weight / node.size
    mine = problem.measure()
    sizes = [values.size for values in mine.values()]
    small = np.concatenate([*(share * values.ravel() for values in mine.values()), [network.transport.bytes_sent]])
    totals = node.sum(torch.from_numpy(small)).numpy()
    pieces = np.split(totals, np.cumsum(sizes))
    means = {name: piece.reshape(mine[name].shape) for name, piece in zip(mine, pieces, strict=False)}

    theta = optimizer.flat.values
    average = node.sum(theta * network.average_weight)
    deviation = (theta - average).double().view(copies, -1).square().sum(-1).cpu()
    consensus = node.sum(deviation * share).sqrt().numpy()

    metrics = problem.summarise(means, average.double().view(copies, -1).cpu().numpy())
    metrics["consensus"] = consensus
    error = optimizer.tracking_error() if optimizer.iteration else None
    if error is not None:
        residual = node.sum(error).double().view(copies, -1).norm(dim=-1)
        metrics["tracking_residual"] = residual.cpu().numpy()
    metrics["bytes_sent"] = np.full(copies, pieces[-1][0])
    return metrics
