"""`dgt join 3 run_dir=long`: a node that is away from a run under way is started and taken in again."""

from __future__ import annotations

import argparse

from dgt.commands import asking
from dgt.commands.base import Command, refuse_ranks
from dgt.errors import ConfigError

SETTINGS = """settings:
  NODE           the number of the node; without it the lowest that is away
  run_dir=DIR    of a run that dgt train has started on this host, with on_peer_loss=continue or replace"""


def run(options: argparse.Namespace) -> None:
    """Ask rank 0, whose launcher starts the process, and wait until the others have taken it in."""
    from dgt.runs.requests import JOIN

    refuse_ranks("join")
    node, run_dir = asking.target("join", options.overrides)
    if node is None:
        members, nodes = asking.members_of(run_dir)
        away = sorted(set(range(nodes)) - set(members))
        if not away:
            raise ConfigError(f"run_dir={run_dir}: all {nodes} nodes are there")
        node = away[0]
    asking.wait_for_answer(run_dir, JOIN, node)


COMMAND = Command(
    name="join",
    help="have a node come back to a run under way",
    example="dgt join run_dir=long",
    run=run,
    settings=SETTINGS.splitlines,
    order=12,
    takes="NODE run_dir=DIR",
)
