"""What an algorithm supports of the ways in which vectors travel: wire, local_steps, bucket_mb, schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgt.config import WIRES
from dgt.config.checks import check_choice, check_range
from dgt.errors import ConfigError

if TYPE_CHECKING:
    from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer

TRAFFIC: dict[str, Any] = {"wire": "full", "local_steps": 1, "bucket_mb": 0}  # and what each is if nothing is said


def check_traffic(algorithm: type[DecentralizedOptimizer], given: dict[str, Any]) -> None:
    """Raise `ConfigError` unless the algorithm supports these values of wire, local_steps and bucket_mb."""
    check_choice("wire", given["wire"], WIRES)
    check_range("local_steps", given["local_steps"], 1)
    check_range("bucket_mb", given["bucket_mb"], 0)
    for key, plain in TRAFFIC.items():
        if given[key] != plain and key not in algorithm.supports:
            raise ConfigError(f"{key}={given[key]}: not with {algorithm.__name__}; leave it out")


def check_schedule(algorithm: type[DecentralizedOptimizer], rounds: int, given: dict[str, Any]) -> None:
    """Raise `ConfigError` for what needs the same neighbours at every exchange, on a schedule of so many rounds."""
    if algorithm.needs_static_graph:
        raise ConfigError(
            f"{algorithm.__name__}: needs the same neighbours at every exchange, and on a schedule they change; take a "
            "graph (ring, tailored), or GradientTracking on the schedule"
        )
    if given["wire"] != "full":
        raise ConfigError(
            f"wire={given['wire']}: not on a schedule, whose partners change: a narrow wire sends changes of what the "
            "same neighbour has heard before; leave it at full"
        )
    if given["bucket_mb"] and rounds > 1:
        raise ConfigError(
            f"bucket_mb={given['bucket_mb']:g}: not with {rounds} rounds per step, of which each needs the one before; "
            "leave it at 0"
        )


def check_ranks_per_node(ranks: int, bucket_mb: float) -> None:
    """Raise `ConfigError` for what works with one rank per node only."""
    if ranks > 1 and bucket_mb:
        raise ConfigError(
            f"bucket_mb={bucket_mb:g}: not with ranks_per_node={ranks}, whose ranks add up their gradients after "
            "backward; leave it at 0"
        )
