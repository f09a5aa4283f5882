"""The run's own files of measurements: metrics.jsonl, nodes.jsonl, events.jsonl, summary.json. Every run has them.

Unlike a mirror it is never given up: lines that find no room wait, and files that somebody has removed are made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgt.config.files import appending, write
from dgt.runs.folders import has
from dgt.runs.layout import EVENTS, METRICS, NODES, SUMMARY, SUPERSEDED
from dgt.runs.lines import Lines, cut
from dgt.runs.messages import say
from dgt.runs.sink import RunInfo, Sink


class Jsonl(Sink):
    """The source of truth: all else, also after a resume, is made from these lines."""

    def __init__(self, run: RunInfo, settings: Any, removed: Callable[[], None] = lambda: None) -> None:
        """`removed` is called before files are made again that somebody has removed."""
        super().__init__(run, settings)
        self.metrics = Lines(run.directory / METRICS, say, removed)
        self._nodes = Lines(run.directory / NODES, say, removed)

    @property
    def source(self) -> Path:
        """The run directory with the lines that this run continues: its own, once it has any."""
        own = self.run.directory
        return own if has(own / METRICS) or self.run.history is None else self.run.history

    def start(self, recorded_until: int) -> None:
        """Keep the lines up to this iteration; what was measured later is measured anew, and goes to `SUPERSEDED`."""
        own, source = self.run.directory, self.source
        superseded = own / SUPERSEDED if source == own else None
        cut(source / METRICS, own / METRICS, recorded_until, superseded)
        cut(source / NODES, own / NODES, recorded_until)

    def flush(self) -> None:
        """Open the files, so that even an empty one shows that a run has begun."""
        self.metrics.flush()
        self._nodes.flush()

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        self.metrics.write({"iteration": iteration, **values})
        if nodes is not None:
            self._nodes.write({"iteration": iteration, **nodes})

    def event(self, event: Mapping[str, Any]) -> None:
        try:
            self.run.directory.mkdir(parents=True, exist_ok=True)
            with appending(self.run.directory / EVENTS) as file:
                file.write((json.dumps(event) + "\n").encode())
        except OSError as error:
            say(f"{EVENTS}: {error.strerror}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary comes last: whoever sees it finds all lines."""
        self.close()
        try:
            self.run.directory.mkdir(parents=True, exist_ok=True)
            write(self.run.directory / SUMMARY, json.dumps(summary, indent=2) + "\n")
        except OSError as error:
            say(f"{SUMMARY}: {error.strerror}")

    def close(self) -> None:
        self.metrics.close()
        self._nodes.close()


SINK = Jsonl
