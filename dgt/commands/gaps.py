"""`dgt gaps`: the paper's spectral-gap table beside the published values, and better graphs beside both."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from dgt.commands.base import Command
from dgt.errors import ConfigError

log = logging.getLogger(__name__)

SETTINGS = """settings:
  laziness: 0.3        # epsilon
  topology.seed: 0     # which draw of the tailored graphs"""


def run(options: argparse.Namespace) -> None:
    """Compute and print the table; with --figures also draw it."""
    from dgt.config import compose as composing
    from dgt.network.gaps import PUBLISHED, gap_rows
    from dgt.report.tables import gap_lines
    from dgt.runs.sinks.progress import Progress

    for item in composing.parse(options.overrides):
        if item.key_or_group not in ("laziness", "topology.seed"):
            raise ConfigError(
                f"{item.key_or_group}: the table is the paper's; only laziness and topology.seed can be set"
            )
    config = composing.compose(["topology=tailored", *options.overrides])
    rows, progress = [], Progress(len(PUBLISHED), "best weights", speaks=options.optimal, unit="gap")
    for row in gap_rows(config.laziness, config.topology.seed, optimal=options.optimal):
        rows.append(row)
        progress.update(len(rows), {})
    progress.close()
    if options.figures:
        from dgt.report import gaps as gaps_report  # matplotlib takes half a second to load

        written = gaps_report.write_all(rows, config.topology, Path(options.figures))
        log.info("%s has %s", options.figures, ", ".join(path.name for path in written))
    print(json.dumps(rows, indent=2) if options.json else gap_lines(rows))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    best = "add the gap of the best weights for each graph; takes seconds and the extra 'optimal' (cvxpy)"
    parser.add_argument("--optimal", action="store_true", help=best)
    drawn = "write the table (Markdown, CSV), its figure and the tailored graphs' adjacency matrices there"
    parser.add_argument("--figures", metavar="DIR", help=drawn)


COMMAND = Command(
    name="gaps",
    help="the paper's spectral-gap table, recomputed; better graphs beside it",
    example="dgt gaps laziness=0.5",
    run=run,
    settings=SETTINGS.splitlines,
    order=6,
    add_arguments=add_arguments,
    computes_alone=True,
)
