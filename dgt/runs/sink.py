"""The base class of a sink: a place that a run is written to besides its own files, chosen by `logger=NAME`.

    class Printed(Sink):                                  # my_module.py
        def record(self, iteration, values, nodes):
            print(iteration, values["loss"])

    dgt train logger._target_=my_module.Printed

A file `runs/sinks/NAME.py` with `SINK = TheClass` makes it part of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgt.config.files import make_folder, read_text, write

MOST_ID = 200  # bytes
RUN_ID = "run_id"  # in the sink's folder: under what id a server knows this run


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a sink is told about a run.

    directory   the run directory
    config      everything that was set, as in config.yaml
    label       weights, topology and strategy in words
    iterations  how many are planned
    part        dgt compare writes many runs into one directory: which of them, A-ring-II/seed-0; else empty
    history     the run directory whose measurements this run continues, if it is another one
    """

    directory: Path
    config: Mapping[str, Any]
    label: str
    iterations: int
    part: str = ""
    history: Path | None = None

    @property
    def name(self) -> str:
        """By which people find it."""
        name = self.directory.resolve().name
        return f"{name}/{self.part}" if self.part else name

    def known_id(self, folder: str) -> str | None:
        """What `keep_id` has kept, in an earlier start of this run."""
        try:
            return read_text(self.directory / folder / RUN_ID, MOST_ID).strip() or None
        except (OSError, ValueError):
            return None

    def keep_id(self, folder: str, run_id: str) -> None:
        """Remember under what id a server knows this run; the runs of a comparison are never resumed."""
        if not self.part:
            make_folder(self.directory / folder, self.directory)
            write(self.directory / folder / RUN_ID, run_id + "\n")


class Sink:
    """Told what happens in a run, in this order: start, then record and event, finish if it came to its end, close.

    Rank 0 has one, in a thread of its own: it may be slow, and whatever it raises is one warning, not the end of the
    run. After a resume, or when another rank becomes rank 0, there is a new one for the same directory.

    `Settings` declares what can be set as `logger.KEY=VALUE`; `self.settings` has the values.
    """

    package = ""
    """The package it cannot do without, by the name it is imported under; `dgt[NAME]` must install it."""

    @dataclass(slots=True, kw_only=True)
    class Settings:
        """None."""

    def __init__(self, run: RunInfo, settings: Any) -> None:
        self.run, self.settings = run, settings

    def start(self, recorded_until: int) -> None:
        """Iterations up to this one are recorded already, by an earlier start of this run; -1 in a new one.

        Where a run goes on from before its last evaluation, later ones were recorded too, and are measured anew.
        """

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        """One evaluation: metrics of the network by name, and where they are known of every node."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened: `iteration`, `event` (membership, stopped, stopped_early, resumed), `words`."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run came to its end: what summary.json holds."""

    def close(self) -> None:
        """No more calls come; the run has finished, was stopped, or failed."""
