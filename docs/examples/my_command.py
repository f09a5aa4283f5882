"""`dgt degrees`: how many neighbours every node has."""

from __future__ import annotations

import argparse

from dgt.commands.base import Command, choices


def run(options: argparse.Namespace) -> None:
    from dgt.config.compose import compose  # imported here, because `dgt --help` looks at every command
    from dgt.processes.placement import Placement
    from dgt.training.setup import network_of

    _, graph = network_of(compose(options.overrides), Placement("alone"))
    print(*(degree for _, degree in graph.degree))


COMMAND = Command(
    name="degrees",
    help="how many neighbours every node has",
    example="dgt degrees topology=star nodes=5",
    run=run,
    settings=choices,
    order=20,
    composes=True,
)
