"""`dgt leave 3 run_dir=long`: a node of a run under way leaves on purpose, at a step that all ranks agree on."""

from __future__ import annotations

import argparse

from dgt.commands import asking
from dgt.commands.base import Command, refuse_ranks
from dgt.errors import ConfigError

SETTINGS = """settings:
  NODE           the number of the node, from 0
  run_dir=DIR    of a run with on_peer_loss=continue or replace

SIGUSR2 to the process of a rank does the same."""


def run(options: argparse.Namespace) -> None:
    """Ask rank 0, and wait until the node has left."""
    from dgt.runs.requests import LEAVE

    refuse_ranks("leave")
    node, run_dir = asking.target("leave", options.overrides)
    if node is None:
        raise ConfigError(f"dgt leave: say which node, such as dgt leave 3 run_dir={run_dir}")
    asking.wait_for_answer(run_dir, LEAVE, node)


COMMAND = Command(
    name="leave",
    help="have a node leave a run under way",
    example="dgt leave 3 run_dir=long",
    run=run,
    settings=SETTINGS.splitlines,
    order=11,
    takes="NODE run_dir=DIR",
)
