"""How long a step takes on a link: what a node waits for, and what travels while it computes.

    H compute + waits latency + now / bandwidth + max(0, latency + later / bandwidth - behind compute)

in H steps of which the last ends with an exchange: `now` bytes are needed before the next step begins, `later` ones
travel behind the next gradients.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    bandwidth: float
    """Bytes per second that a node sends."""
    latency: float
    """Seconds for a message to arrive."""
    compute: float
    """Seconds for a gradient."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a node sends at an exchange, and when it must have arrived."""

    now: float = 0.0
    """Bytes that are waited for."""
    waits: int = 1
    """Latencies that are waited for, one after the other."""
    later: float = 0.0
    """Bytes that travel during gradients."""
    behind: int = 1
    """How many gradients those may take."""


def step_seconds(link: Link, exchange: Exchange, local_steps: int = 1) -> float:
    """Of a step, on average over local steps."""
    waiting = exchange.waits * link.latency + exchange.now / link.bandwidth
    if exchange.later:
        travel = link.latency + exchange.later / link.bandwidth
        waiting += max(0.0, travel - exchange.behind * link.compute)
    return link.compute + waiting / local_steps


def all_reduce_seconds(link: Link, nodes: int, sent: float) -> float:
    """Of a step of DDP at best: a ring all-reduce of 2 (n-1) messages that travel while the gradient is computed.

    sent   bytes by every rank, 2 (n-1)/n of the model
    """
    return max(link.compute, 2 * (nodes - 1) * link.latency + sent / link.bandwidth)
