"""`dgt simulate`: a run on the single-process twin, with the files and numbers of a run on ranks."""

from __future__ import annotations

import argparse
import logging

from dgt.commands.base import Command, choices, refuse_ranks
from dgt.commands.train import add_arguments
from dgt.errors import LaunchError, TrainingError

log = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> None:
    """Like `dgt train`, but all nodes in this process."""
    from dgt.commands.simulate import twin
    from dgt.commands.train import sweeping
    from dgt.config import effect
    from dgt.launching.run import typed

    refuse_ranks("simulate")
    effect.refuse("simulate", options.overrides)
    _, swept, configs = sweeping.runs_of(options, options.overrides)
    for config in configs:
        twin.check(config)
    for words in effect.on_simulate(options.overrides):
        log.info(words)
    show = "text" if not options.json else "nothing" if options.multirun else "json"
    try:
        pairs = zip(configs, swept, strict=True)
        sweeping.show(options, [twin.simulate(config, show, typed(), named) for config, named in pairs], swept)
    except TrainingError as error:
        raise LaunchError(str(error)) from None


COMMAND = Command(
    name="simulate",
    help="the same run in one process, without ranks: least squares on up to 100,000 nodes and more",
    example="dgt simulate weights=lognormal nodes=100000 topology=exponential strategy=II iterations=100",
    run=run,
    settings=choices,
    order=2,
    add_arguments=lambda parser: add_arguments(parser, more=""),
    composes=True,
    computes_alone=True,
    writes_results=True,
)
