"""`dgt plan`: for given weights, which strategy, algorithm and graph; from overrides to a ranked list.

    dgt plan weights=A                                        # the usual graphs and algorithms, both strategies
    dgt plan weights=A topology=ring,tailored budget.degree=6 parameters=11000000 bandwidth=1.2 latency=50 compute=100
    dgt plan weights=A algorithm=gradient_tracking,exact_diffusion wire=full,int8 local_steps=1,4 topology=ring,one_peer
    dgt plan weights=A topology=file topology.path=one.txt,two.txt

What is varied is in `variants.py`, what the library takes and a budget allows in `candidates.py`, their numbers in
`examining.py` and `timing.py`, their order in `ranking.py`, the answer as plain values in `answer.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dgt import problems
from dgt.commands.doctor import examination
from dgt.commands.plan.candidates import selected
from dgt.commands.plan.examining import centralised, examine, quadratic_of
from dgt.commands.plan.ranking import Plan, best_step, ordered
from dgt.commands.plan.settings import PlanConfig, split
from dgt.commands.plan.variants import variants
from dgt.config import AlgorithmConfig, Config
from dgt.errors import ConfigError
from dgt.network.weights import Weights
from dgt.processes import environment
from dgt.processes.placement import Placement
from dgt.training.setup import network_of


def plan(overrides: Sequence[str]) -> Plan:
    """The ranked candidates for these overrides."""
    settings, rest = split(overrides)
    varied = variants(rest, settings.has_link)
    first = varied.first
    plain = dataclasses.replace(first, algorithm=AlgorithmConfig(), wire="full", bucket_mb=0)  # fits any network
    weights, _ = network_of(plain, Placement("alone"), as_drawn=True)
    if weights.size == 1:
        raise ConfigError("dgt plan: a network of one node has nothing to choose")
    numbers = model_numbers(first, settings, weights)
    if settings.measure:
        talk = examination.measured(first.transport)
        settings = dataclasses.replace(settings, measure=False, latency=talk.microseconds, bandwidth=talk.gigabytes)
    selection = selected(varied, settings.budget, weights, numbers)
    quadratic = quadratic_of(first, int(weights.size))
    rows = ordered(examine(selection.found, weights, quadratic, settings, varied.lr_is_given))
    ddp = centralised(rows[0], weights, quadratic, settings, numbers)
    best_lr, best_error = best_step(rows[0], weights, quadratic)
    return Plan(
        rows, settings, weights, selection.left_out, quadratic.noise, best_lr, best_error, ddp, varied.lr_is_given
    )


def model_numbers(config: Config, settings: PlanConfig, weights: Weights) -> int:
    """Parameters of the model that will be trained."""
    if settings.parameters is not None:
        return settings.parameters
    if config.problem.target is not None:
        problems.custom.check(config.problem)
    return problems.parameter_count(config, weights, environment.cache_dir())
