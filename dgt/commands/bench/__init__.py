"""`dgt bench`: the cost of an iteration with each way of exchanging messages, measured in turns on the same ranks."""

from __future__ import annotations

import argparse

from dgt.commands.base import Command


def run(options: argparse.Namespace) -> None:
    """One comparison, or with `scaling` how the cost grows."""
    from dgt.commands.bench import measuring

    measuring.bench(list(options.overrides), options.json)


def settings() -> list[str]:
    from dgt.commands.bench.catalogue import VARIANTS
    from dgt.commands.bench.job import BenchConfig
    from dgt.config.settings import documented

    lines = ["settings:", *(f"  {line}" for line in documented(BenchConfig)), "", "variants:"]
    lines += [f"  {name:<14}{entry.meaning}" for name, entry in VARIANTS.items()]
    return [*lines, "", "dgt bench scaling measures how the cost grows with ranks (up to `nodes`), degree and bytes."]


COMMAND = Command(
    name="bench",
    help="what an iteration costs: compute, DDP, naive exchange, dgt; on the same ranks",
    example="dgt bench preset=resnet18 topology=exponential nodes=4",
    run=run,
    settings=settings,
    order=8,
    starts_ranks=True,
)
