"""`dgt report RUN...`: one page for all of the runs, and beside it whatever else is made of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dgt.checks import ConfigError, nearest
from dgt.report import html
from dgt.report.runs import GOING_ON, SILENT, Run, find

REFRESH_SECONDS = 1.5
Writer = Callable[[Sequence[Run], Path], Sequence[Path]]
WRITERS: tuple[Writer, ...] = ()  # figures and tables: each writes its files into a directory and returns them


def parse(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Runs, and where the page is to go: RUN... [out=FILE]."""
    paths, out = [], None
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or Path(argument).exists():
            paths.append(argument)
        elif key == "out" and value:
            out = Path(value)
        else:
            raise ConfigError(f"{argument}: no such setting; {nearest(key, ['out=FILE'])}")
    if not paths:
        raise ConfigError("which run? give a run directory, a sweep, or a folder that holds runs")
    return paths, out


def page_path(runs: Sequence[Run], out: Path | None) -> Path:
    """RUN/report.html, or ./report.html for several runs."""
    if out is None:
        return (runs[0].path if len(runs) == 1 else Path()) / "report.html"
    return out / "report.html" if out.is_dir() else out


def write(paths: Sequence[str], out: Path | None = None) -> list[Path]:
    """The page first, then figures and tables; returns what was written."""
    runs = find(paths)
    page = page_path(runs, out)
    _write_page(runs, page)
    return [page, *(made for writer in WRITERS for made in writer(runs, page.parent))]


def follow(paths: Sequence[str], out: Path | None = None, refresh: float = REFRESH_SECONDS) -> list[Path]:
    """Write the page again and again until all of its runs have ended, or Ctrl-C; then as `write`."""
    page = page_path(find(paths), out)
    print(f"dgt: following; open {page.resolve()} in a browser, it refreshes itself; Ctrl-C ends", file=sys.stderr)
    before: object = None
    try:
        while True:
            runs = find(paths)
            if not any(run.state in (GOING_ON, SILENT) for run in runs):
                break
            now = [(run.path, run.state, len(run.records), len(run.nodes), len(run.events)) for run in runs]
            if now != before:
                _write_page(runs, page, live=True)
            before = now
            time.sleep(refresh)
    except KeyboardInterrupt:
        pass
    return write(paths, out)


def _write_page(runs: Sequence[Run], page: Path, live: bool = False) -> None:
    try:
        html.write(runs, page, live)
    except OSError as error:
        raise ConfigError(f"out={page}: cannot write there ({error.strerror}); choose another file") from None
