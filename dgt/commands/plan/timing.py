"""Seconds of a step of every candidate on the stated or measured link, and of DDP beside them."""

from __future__ import annotations

from dgt.algorithms.machinery.neighbours import ONE_MESSAGE_BYTES
from dgt.commands.plan.candidates import Candidate
from dgt.commands.plan.settings import PlanConfig
from dgt.network.links import Exchange, Link, step_seconds
from dgt.network.schedules import Schedule


def link_of(settings: PlanConfig) -> Link | None:
    """The link, if one is known."""
    if settings.bandwidth is None:
        return None
    return Link(1e9 * settings.bandwidth, 1e-6 * settings.latency, 1e-3 * settings.compute)


def seconds_of(candidate: Candidate, link: Link | None) -> float | None:
    """Of a step, on average over local steps."""
    return None if link is None else step_seconds(link, exchange_of(candidate), candidate.config.local_steps)


def exchange_of(candidate: Candidate) -> Exchange:
    """What the node with most partners sends, and when it must have arrived.

    Gradient tracking waits for z, and y travels behind the next gradient; with a base it needs W y before it makes z.
    Exact diffusion waits for its one vector. In the EXTRA form that travels behind all gradients up to the next
    exchange. With buckets everything travels during the gradient.
    """
    config, traffic = candidate.config, candidate.traffic
    vector = candidate.partners * traffic.vector_bytes
    all_vectors = traffic.vectors * vector
    values = config.algorithm.values
    if traffic.rounds > 1:
        return Exchange(now=traffic.rounds * all_vectors, waits=traffic.rounds)
    if values.get("form") == "extra":
        return Exchange(waits=0, later=vector, behind=config.local_steps) if config.overlap else Exchange(now=vector)
    if config.bucket_mb and config.overlap:
        return Exchange(waits=0, later=all_vectors)
    if traffic.vectors == 1:
        return Exchange(now=vector)
    base_form = values.get("base_form") if values.get("base") is not None else None
    if base_form == "mixed":
        return Exchange(now=all_vectors, waits=2)
    if base_form == "together" or not config.overlap or _is_one_message(candidate):
        return Exchange(now=all_vectors)
    return Exchange(now=vector, later=all_vectors - vector)


def _is_one_message(candidate: Candidate) -> bool:
    """Whether the vectors are so short that they travel together."""
    small = candidate.traffic.vectors * candidate.traffic.vector_bytes <= ONE_MESSAGE_BYTES
    return small and candidate.config.wire == "full" and not isinstance(candidate.graph, Schedule)
