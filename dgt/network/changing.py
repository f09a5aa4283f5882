"""Mixing on a schedule: a node's row at every exchange, the matrices of it, and how quickly word gets around.

    pair mean   theta_i' = (lambda_i theta_i + lambda_j theta_j) / (lambda_i + lambda_j)

where every node has one partner at most, else the Metropolis-Hastings row of that exchange's graph. Both keep
lambda^T W_t = lambda^T and are in detailed balance with lambda, at every exchange. lambda is 1 in Strategy I.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse

from dgt.network.mixing import MixingRow, mixing_matrix, mixing_row
from dgt.network.schedules import Schedule
from dgt.network.weights import Weights


def rows(schedule: Schedule, node: int, lambdas: Mapping[int, float], laziness: float) -> list[MixingRow]:
    """The node's rows, exchange by exchange until they repeat.

    lambdas  of the node itself and of all neighbours it ever has; degrees are known, as all ranks know the schedule
    """
    found = []
    for number, partners in enumerate(schedule.partners(node)):
        if not partners:
            found.append(MixingRow(1.0, {}))
        elif schedule.is_matching(number):
            (partner,) = partners
            share = lambdas[partner] / (lambdas[node] + lambdas[partner])
            found.append(MixingRow(1.0 - share, {partner: share}))
        else:
            degrees = schedule.degrees(number)
            told = {j: (lambdas[j], int(degrees[j])) for j in partners}
            found.append(mixing_row(lambdas[node], len(partners), told, laziness))
    return found


def mean_row(each: list[MixingRow]) -> MixingRow:
    """Their mean: what a node gives itself and every neighbour over a period."""
    shares: dict[int, float] = {}
    for row in each:
        for peer, share in row.neighbours.items():
            shares[peer] = shares.get(peer, 0.0) + share / len(each)
    return MixingRow(sum(row.own for row in each) / len(each), dict(sorted(shares.items())))


def own_share(each: list[MixingRow], own_weight: float, lambdas: Mapping[int, float], first: int, rounds: int) -> float:
    """W_ii of the step that begins at exchange `first`: of W_b W_a where it has two rounds.

    (W_b W_a)_ii = W_b,ii W_a,ii + sum_j W_b,ij W_a,ji, and W_ji = lambda_i W_ij / lambda_j: all of it the node knows.
    """
    row = each[first % len(each)]
    if rounds == 1:
        return row.own
    later = each[(first + 1) % len(each)]
    there_and_back = sum(
        share * own_weight * row.neighbours[peer] / lambdas[peer]
        for peer, share in later.neighbours.items()
        if peer in row.neighbours
    )
    return later.own * row.own + there_and_back


def matrix(schedule: Schedule, number: int, weights: Weights, laziness: float = 0.3) -> scipy.sparse.csr_array:
    """W of one exchange, made of the same rows."""
    n, pairs = schedule.size, schedule.at(number)
    if not schedule.is_matching(number):
        return mixing_matrix(schedule.graph(number), weights, laziness)
    i, j = np.concatenate([pairs, pairs[:, ::-1]]).T
    share = weights[j] / (weights[i] + weights[j])
    own = np.ones(n)
    own[i] = 1.0 - share
    everyone = np.arange(n)
    entries = np.concatenate([own, share]), (np.concatenate([everyone, i]), np.concatenate([everyone, j]))
    return scipy.sparse.csr_array(entries, shape=(n, n))


def matrices(schedule: Schedule, weights: Weights, laziness: float = 0.3) -> list[scipy.sparse.csr_array]:
    """W of every step until they repeat: the product of the step's rounds, the last one to the left."""
    single = [matrix(schedule, number, weights, laziness) for number in range(schedule.period)]
    found = []
    for step in range(schedule.period_in_steps):
        product = single[step * schedule.rounds % schedule.period]
        for number in range(step * schedule.rounds + 1, (step + 1) * schedule.rounds):
            product = scipy.sparse.csr_array(single[number % schedule.period] @ product)
        found.append(product)
    return found


def mean_matrix(schedule: Schedule, weights: Weights, laziness: float = 0.3) -> scipy.sparse.csr_array:
    """The mean over a period of exchanges: its off-diagonal entries are where the edges are."""
    total = sum(matrix(schedule, number, weights, laziness) for number in range(schedule.period))
    return scipy.sparse.csr_array(total / schedule.period)


def steps_to_reach_all(schedule: Schedule, node: int) -> int:
    """Steps after which what this node says has come to all others, from whichever step of the period it starts.

    What a node hears at an exchange it passes on from the next one on: the spread is followed, step by step, from every
    start.
    """
    return max(_spread(schedule, node, start) for start in range(schedule.period_in_steps))


def _spread(schedule: Schedule, node: int, start: int) -> int:
    heard = np.zeros(schedule.size, dtype=bool)
    heard[node] = True
    steps = 0
    while not heard.all():  # it ends: all exchanges together join all nodes
        for number in range((start + steps) * schedule.rounds, (start + steps + 1) * schedule.rounds):
            i, j = schedule.at(number).T
            passed = np.concatenate([j[heard[i]], i[heard[j]]])
            heard[passed] = True
        steps += 1
    return steps
