"""Progress on standard error: a bar on a terminal, a few plain lines elsewhere. Every run has it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from dgt.runs.measures import in_words
from dgt.runs.sink import Sink


class Progress:
    """A bar on a terminal, a few plain lines elsewhere, nothing on ranks that do not speak; on standard error."""

    def __init__(
        self, total: int, label: str, speaks: bool = True, lines: int = 10, unit: str = "iteration", first: int = 0
    ) -> None:
        shows_bar = speaks and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=label, unit="it", leave=False, initial=first) if shows_bar else None
        self._speaks, self._label, self._total, self._unit = speaks, label, total, unit
        self._every = max(total / lines, 1.0)
        self._next_line = float(first) if lines > 1 else self._every

    def update(self, done: int, values: Mapping[str, float]) -> None:
        text = in_words(values)
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._speaks and (done >= self._next_line or done == self._total):
            self._next_line += self._every
            print(f"{self._label}  {self._unit} {done}/{self._total}  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class ProgressOfRun(Sink):
    """The progress of one training run."""

    def start(self, recorded_until: int) -> None:
        self._progress = Progress(self.run.iterations, self.run.label, first=max(recorded_until, 0))

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        self._progress.update(iteration, values)

    def close(self) -> None:
        self._progress.close()


SINK = ProgressOfRun
