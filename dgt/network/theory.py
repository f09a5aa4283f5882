"""The paper's constants, step-size limits and bounds, as numbers.

on = on_network(graph, weights, "II")                     # rho, kappa_lambda, ... of a strategy on a network
step_limit(on, smoothness)                                # the largest step size with a convergence guarantee
convergence_bound(on, Run(lr=..., smoothness=..., ...))   # on the mean squared gradient norm of T iterations

Both strategies share their formulas; Strategy I pays lambda_max and kappa_lambda where Strategy II has 1 (its constants
are the primed ones of the paper). Whether II is the better choice on a graph: `conditions.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx

from dgt.errors import ConfigError
from dgt.network.mixing import strategy
from dgt.network.spectral import spectral_gap
from dgt.network.weights import Weights, uniform


def rho_J(graph: nx.Graph, laziness: float = 0.3) -> float:
    """||W^ds - J||_2, J = 1 1^T / n: the second largest modulus of the doubly stochastic W's eigenvalues."""
    return 1.0 - spectral_gap(graph, uniform(graph.number_of_nodes()), laziness)


def rho_Lambda(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> float:
    """||W - Lambda||_lambda, Lambda = 1 lambda^T / n: the same of the row-stochastic W of these weights."""
    return 1.0 - spectral_gap(graph, weights, laziness)


def kappa_lambda(weights: Weights) -> float:
    """kappa_lambda = sqrt(lambda_max / lambda_min)."""
    return math.sqrt(float(weights.max()) / float(weights.min()))


def c_lambda(weights: Weights) -> float:
    """c_lambda = n^-2 sum_i lambda_i^2; 1/n with uniform weights."""
    return float(weights @ weights) / weights.size**2


def A(rho: float) -> float:
    """A(rho) = (1 + rho^2) / (1 - rho^2)^3, which bounds sum_k (k^2 + 1) rho^2k."""
    return (1 + rho**2) / (1 - rho**2) ** 3


def B(rho: float) -> float:
    """B(rho) = 2 (1 + 3 rho^4) / ((1 - rho^2)^3 (1 - rho)).

    It bounds sum_k (k^2 + 1) rho^2k + (rho k/(1-rho) + 1) rho^k/(1-rho). This is the main text's form; the proof of the
    comparison leaves the 2 out, where it cancels.
    """
    return 2 * (1 + 3 * rho**4) / ((1 - rho**2) ** 3 * (1 - rho))


def start_factor(rho: float) -> float:
    """(4 rho^4 - 5 rho^2 + 3) / (1 - rho^2)^3 = sum_t (t^2 + 3) rho^2t.

    It bounds sum_t ||A_II^t||_lambda^2.
    """
    return (4 * rho**4 - 5 * rho**2 + 3) / (1 - rho**2) ** 3


@dataclass(frozen=True, slots=True)
class OnNetwork:
    """What the bounds know of a strategy on a network."""

    strategy: str
    nodes: int
    rho: float
    """rho_J for Strategy I, rho_Lambda for II."""
    largest: float
    """lambda_max for Strategy I, 1 for II: the largest factor on a gradient."""
    distortion: float
    """kappa_lambda for Strategy I, whose W is not self-adjoint under lambda; 1 for II."""
    c_lambda: float


def on_network(graph: nx.Graph, weights: Weights, name: str, laziness: float = 0.3) -> OnNetwork:
    """The constants of Strategy I or II on this graph."""
    plan = strategy(name, weights)
    rho = 1.0 - spectral_gap(graph, plan.mixing_weights, laziness)
    distortion = kappa_lambda(weights) if name == "I" else 1.0
    return OnNetwork(name, int(weights.size), rho, float(plan.gradient_scale.max()), distortion, c_lambda(weights))


def recursion_step_limit(on: OnNetwork, smoothness: float) -> float:
    """alpha <= 1/(9 beta lambda_max) sqrt(3 (1 - rho) / (2 - rho)): the consensus error's recursion holds."""
    return math.sqrt(3 * (1 - on.rho) / (2 - on.rho)) / (9 * smoothness * on.largest)


def consensus_step_limit(on: OnNetwork, smoothness: float) -> float:
    """alpha < 1/(2 lambda_max beta) sqrt(1 / (15 B(rho))), without lambda_max for II: `consensus_bound` holds."""
    return math.sqrt(1 / (15 * B(on.rho))) / (2 * on.largest * smoothness)


def step_limit(on: OnNetwork, smoothness: float) -> float:
    """alpha < 1/(lambda_max beta) sqrt(1 / (62 B(rho))), without lambda_max for II: `convergence_bound` holds."""
    return math.sqrt(1 / (62 * B(on.rho))) / (on.largest * smoothness)


def largest_step(graph: nx.Graph, weights: Weights, name: str, laziness: float, smoothness: float) -> float:
    """`recursion_step_limit` of a strategy on a graph: up to here consensus is proved to hold."""
    return recursion_step_limit(on_network(graph, weights, name, laziness), smoothness)


def power_norm(on: OnNetwork, t: int) -> float:
    """||A_II^t||_lambda = (t + sqrt(t^2 + 4))/2 rho_Lambda^t, A = [[W - Lambda, -(W - Lambda)], [0, W - Lambda]].

    For Strategy I this times kappa_lambda (with rho_J) is an upper bound: the main text prints an equality, the
    appendix proves the inequality.
    """
    return (t + math.sqrt(t**2 + 4)) / 2 * on.distortion * on.rho**t


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the bounds know of a run and its problem."""

    lr: float
    """alpha."""
    smoothness: float
    """beta: every local gradient is beta-Lipschitz."""
    noise: float
    """upsilon^2: bound on E|grad f_i - grad F_i|^2."""
    iterations: int
    """T."""
    start_error: float
    """||E^(0)||^2_{F,lambda} = sum_i lambda_i (|theta_i - mean|^2 + alpha^2 |y_i - mean y|^2) at t = 0."""
    start_loss: float = 0.0
    """F(mean theta^(0)) - F(theta*)."""


def C1(on: OnNetwork, lr: float, smoothness: float) -> float:
    """C_1 = 1 - 60 alpha^2 beta^2 B(rho_Lambda); C_1' with lambda_max^2 and rho_J for Strategy I."""
    return 1 - 60 * (on.largest * lr * smoothness) ** 2 * B(on.rho)


def C2(on: OnNetwork, lr: float, smoothness: float) -> float:
    """C_2 = 1 - 2 alpha^2 beta^2 B(rho_Lambda) / C_1; C_2' with lambda_max^2, rho_J and C_1' for Strategy I."""
    return 1 - 2 * (on.largest * lr * smoothness) ** 2 * B(on.rho) / C1(on, lr, smoothness)


def consensus_bound(on: OnNetwork, run: Run, gradients: float) -> float:
    """sum_{t<T} E||E^(t)||^2_{F,lambda} <=
           kappa^2/C_1 6 (4 rho^4 - 5 rho^2 + 3)/(1 - rho^2)^3 ||E^(0)||^2
         + lambda_max^2/C_1 2 n alpha^2 B(rho) sum_t E|grad F(mean theta^(t))|^2
         + lambda_max^2/C_1 18 n alpha^2 upsilon^2 T (A(rho) + 3/2 c_lambda alpha^2 beta^2 B(rho))

    `gradients` is the sum over t in the second line; kappa and lambda_max are 1 for Strategy II.
    """
    _check_step(run, consensus_step_limit(on, run.smoothness), "the consensus bound")
    c1, scaled = C1(on, run.lr, run.smoothness), on.nodes * (on.largest * run.lr) ** 2
    start = on.distortion**2 * 6 * start_factor(on.rho) * run.start_error
    descent = 2 * scaled * B(on.rho) * gradients
    noise = 18 * scaled * run.noise * run.iterations * _noise_factor(on, run)
    return (start + descent + noise) / c1


def convergence_bound(on: OnNetwork, run: Run) -> float:
    """1/T sum_{t<T} E|grad F(mean theta^(t))|^2 <=
           1/C_2 (2 (F(mean theta^(0)) - F*) / (alpha T) + alpha c_lambda beta upsilon^2)
         + kappa^2/(C_1 C_2) 6 (4 rho^4 - 5 rho^2 + 3) beta^2 / ((1 - rho^2)^3 n T) ||E^(0)||^2
         + lambda_max^2/(C_1 C_2) 18 alpha^2 beta^2 upsilon^2 (A(rho) + 3/2 c_lambda alpha^2 beta^2 B(rho))

    with the mean 1/n sum_i theta_i for Strategy I, 1/n sum_i lambda_i theta_i for II; kappa = lambda_max = 1 for II.
    """
    _check_step(run, step_limit(on, run.smoothness), "the convergence bound")
    alpha, beta = run.lr, run.smoothness
    c1, c2 = C1(on, alpha, beta), C2(on, alpha, beta)
    descent = 2 * run.start_loss / (alpha * run.iterations) + alpha * on.c_lambda * beta * run.noise
    start = 6 * start_factor(on.rho) * beta**2 / (on.nodes * run.iterations) * run.start_error
    noise = 18 * (alpha * beta) ** 2 * run.noise * _noise_factor(on, run)
    return descent / c2 + (on.distortion**2 * start + on.largest**2 * noise) / (c1 * c2)


def euclidean_bound(on: OnNetwork, run: Run, *, substituted: bool = False) -> float:
    """The same mean for Strategy I without the weighted norm, beta -> lambda_max beta, upsilon -> lambda_max upsilon:

           1/C_2' (2 (F(mean theta^(0)) - F*) / (alpha T) + lambda_max^3/n alpha beta upsilon^2)
         + lambda_max^2/(C_1' C_2') 6 (4 rho^4 - 5 rho^2 + 3) beta^2 / ((1 - rho^2)^3 n T) ||E^(0)||^2
         + lambda_max^4/(C_1' C_2') 18 alpha^2 beta^2 upsilon^2 A(rho)
         + lambda_max^6/(C_1' C_2') 24 c_lambda alpha^4 beta^4 upsilon^2 B(rho)

    The last line is as printed; putting the two constants into the uniform bound gives 27/n for 24 c_lambda, which
    `substituted` asks for. Shown for comparison: it grows with lambda_max^6.
    """
    if on.strategy != "I":
        raise ConfigError(f"strategy={on.strategy}: the Euclidean bound is one of Strategy I")
    _check_step(run, step_limit(on, run.smoothness), "the Euclidean bound")
    alpha, beta, most = run.lr, run.smoothness, on.largest
    c1, c2 = C1(on, alpha, beta), C2(on, alpha, beta)
    descent = 2 * run.start_loss / (alpha * run.iterations) + most**3 / on.nodes * alpha * beta * run.noise
    start = 6 * start_factor(on.rho) * (most * beta) ** 2 / (on.nodes * run.iterations) * run.start_error
    second_order = 18 * most**4 * (alpha * beta) ** 2 * run.noise * A(on.rho)
    factor = 27 / on.nodes if substituted else 24 * on.c_lambda
    fourth_order = factor * most**6 * (alpha * beta) ** 4 * run.noise * B(on.rho)
    return descent / c2 + (start + second_order + fourth_order) / (c1 * c2)


def _noise_factor(on: OnNetwork, run: Run) -> float:
    """A(rho) + 3/2 c_lambda alpha^2 beta^2 B(rho)."""
    return A(on.rho) + 1.5 * on.c_lambda * (run.lr * run.smoothness) ** 2 * B(on.rho)


def _check_step(run: Run, limit: float, what: str) -> None:
    if not 0 < run.lr < limit:
        raise ConfigError(f"lr={run.lr:g}: {what} holds for steps above 0 and below {limit:.4g} on this network")
