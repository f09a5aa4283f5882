"""`dgt report RUN...`: one self-contained page, figures and tables of runs."""

from __future__ import annotations

import argparse
import json

from dgt.commands.base import Command

SETTINGS = """RUN is a run directory, a sweep, or a folder that holds runs; several are compared on one page.

settings:
  out: null         # the page; null: RUN/report.html; for several, report/report.html"""


def run(options: argparse.Namespace) -> None:
    """The page, figures and tables of runs."""
    from dgt.commands.report import pages
    from dgt.runs import layout
    from dgt.runs.sinks.progress import Progress

    paths, out = pages.parse(options.overrides)
    if options.follow and not pages.follow(paths, out):
        return
    progress: list[Progress] = []

    def advance(done: int, of: int, name: str) -> None:
        if not progress:
            progress.append(Progress(of, "figures", lines=1, unit="figure"))
        progress[0].update(done, {})

    written, words = pages.write(paths, out, advance)
    for bar in progress:
        bar.close()
    if options.json:
        print(json.dumps([str(path) for path in written], indent=2))
    else:
        beside = written[0].parent
        places = [f"page    {written[0]}"]
        if words:
            places += [
                f"tables  {beside / layout.TABLE_TEXT}, {layout.TABLE_CSV}",
                f"figures {beside / layout.FIGURES}",
            ]
        print("\n\n".join(part for part in (words, "\n".join(places)) if part))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="refresh the page until the run ends or falls silent")


COMMAND = Command(
    name="report",
    help="one self-contained page, figures and tables of runs",
    example="dgt report runs/20260101-120000-least_squares-A-ring-II",
    run=run,
    settings=SETTINGS.splitlines,
    order=9,
    add_arguments=add_arguments,
    takes="RUN",
)
