"""`dgt report RUN...`: one page for all of the runs, with tables and figures beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dgt.config.checks import nearest
from dgt.errors import ConfigError
from dgt.report import aggregate, compare, html
from dgt.runs import layout
from dgt.runs.reader import SILENCE, read
from dgt.runs.run import GOING_ON, SILENT, Run
from dgt.runs.searching import search

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.5
Advance = Callable[[int, int, str], None]


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


def page_path(paths: Sequence[str], out: Path | None) -> Path:
    """The page's file: in the given run or folder of runs; for several of them in ./report/."""
    if out is None:
        named = list(dict.fromkeys(path.parent if path.is_file() else path for path in map(Path, paths)))
        return (named[0] if len(named) == 1 else Path("report")) / layout.PAGE
    return out / layout.PAGE if out.is_dir() else out


def runs_in(paths: Sequence[str]) -> list[Run]:
    """All runs below these paths, also those of comparisons."""
    folders, comparisons = search(paths)
    runs = [read(folder) for folder in folders]
    runs += [run for folder in comparisons for run in compare.runs_of(folder)]
    if not runs:
        raise ConfigError(f"{' '.join(paths)}: no run in there; a run directory holds {layout.METRICS}")
    return runs


def write(paths: Sequence[str], out: Path | None = None, advance: Advance | None = None) -> tuple[list[Path], str]:
    """The page first, then tables and figures beside it; returns what was written, and the table in words.

    `advance(done, of, name)` is called after every figure.
    """
    runs = runs_in(paths)
    page = page_path(paths, out)
    _write_page(runs, page)
    written, words = [page], ""
    if any(run.records for run in runs):
        from dgt.report import figures  # matplotlib takes half a second to load

        try:
            words = aggregate.write(runs, page.parent)
            written += [page.parent / name for name in (layout.TABLE_CSV, layout.TABLE_TEXT)]
            written += figures.write(runs, page.parent / layout.FIGURES, advance)
        except OSError as error:
            raise ConfigError(f"out={page}: cannot write beside it ({error.strerror}); choose another file") from None
    return written, words


def follow(paths: Sequence[str], out: Path | None = None, refresh: float = REFRESH_SECONDS) -> bool:
    """Write the page again and again until all of its runs have ended; False if Ctrl-C came first.

    A run that has written no line for SILENCE seconds counts as ended, for example killed. One without any measurement
    may be starting, and is followed for the same time.
    """
    runs_in(paths)  # raises for paths without runs, before anything is written
    page = page_path(paths, out)
    log.info("following; open %s in a browser, it refreshes itself; Ctrl-C ends", page.resolve())
    before: object = None
    patience = time.monotonic() + SILENCE
    ended = True
    try:
        while True:
            runs = runs_in(paths)
            silent = [run for run in runs if run.state == SILENT]
            starting = time.monotonic() < patience and not all(run.records for run in silent)
            if not starting and not any(run.state == GOING_ON for run in runs):
                for run in silent:
                    words = f"no line for {SILENCE / 60:.0f} minutes or more, and no reason: no longer followed"
                    log.warning("%s: %s", run.name, words)
                break
            now = [(run.path, run.state, len(run.records), len(run.nodes), len(run.events)) for run in runs]
            if now != before:
                _write_page(runs, page, live=True)
            before = now
            time.sleep(refresh)
    except KeyboardInterrupt:
        ended = False
    _write_page(runs_in(paths), page)
    return ended


def _write_page(runs: Sequence[Run], page: Path, live: bool = False) -> None:
    try:
        html.write(runs, page, live)
    except OSError as error:
        raise ConfigError(f"out={page}: cannot write there ({error.strerror}); choose another file") from None
