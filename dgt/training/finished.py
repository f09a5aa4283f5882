"""Resuming a run that has nothing left to do: at its last iteration already, or past it."""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgt.config import Config
from dgt.config.files import parsed_json, read_text
from dgt.errors import SharedError, printable
from dgt.processes.agreement import broadcast_text
from dgt.processes.node import Node
from dgt.runs.layout import SUMMARY
from dgt.runs.lines import records_in
from dgt.runs.measures import in_words
from dgt.training import schedules

MOST_SUMMARY = 2**20
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """The run that was to be continued had ended; nothing was written."""

    iteration: int
    run_dir: str
    summary: dict[str, Any]
    more: str = "a larger iterations=N continues it"

    def __str__(self) -> str:
        more = self.more
        return f"run_dir={self.run_dir}: already finished at iteration {self.iteration}, nothing to do; {more}"

    def show(self, how: str) -> None:
        """Say so, and again what the run said at its end: as text, json or nothing."""
        log.info("%s", self)
        final = self.summary["final"]
        text = f"iteration {final['iteration']}  {printable(in_words(final))}\nrun directory  {self.run_dir}"
        if how != "nothing":
            print(text if how == "text" else json.dumps(self.summary, indent=2), flush=True)


def finished_before(config: Config, node: Node, first: int) -> Finished | None:
    """Whether a run resumed at iteration `first` has ended, as its own summary says; all ranks call it.

    A checkpoint past the last iteration is an error: a run that ends earlier than its own metrics is none.
    """
    if config.resume == "none" or config.warm_start:
        return None
    if first > config.iterations:
        raise SharedError(
            f"iterations={config.iterations}: resume={config.resume} is at iteration {first} already, nothing was "
            f"changed; iterations=N with N above {first} continues it"
        )
    may_have_ended = first and (first == config.iterations or config.stop.when is not None)
    summary = _summary(config, first) if node.is_main and may_have_ended else {}
    if not broadcast_text(node, "ended" if summary else "", 8):
        return None
    if first < config.iterations:
        return Finished(first, str(config.run_dir), summary, "without stop.when, or with another, it goes on")
    schedule = schedules.of(config)
    if schedule.depends_on_length:
        return Finished(first, str(config.run_dir), summary, f"its schedule={config.schedule.name} ends there, too")
    return Finished(first, str(config.run_dir), summary)


def evaluated_before(config: Config, node: Node, first: int, history: Path | None) -> bool:
    """Whether iteration `first`, from which a run goes on, was evaluated before it was saved; all ranks call it.

    Those that are due were. The last one is due only since it is the last: a run that went further did not evaluate it.
    """
    if first != config.iterations or first % config.eval_every == 0:
        return first > 0
    found = node.is_main and history is not None and _has_line_of(first, history)
    return bool(broadcast_text(node, "yes" if found else "", 8))


def _has_line_of(iteration: int, metrics: Path) -> bool:
    try:
        return any(record["iteration"] == iteration for record, _ in records_in(metrics))
    except OSError:
        return False


def _summary(config: Config, first: int) -> dict[str, Any]:
    """What the run in its own directory said at its end, at iteration `first`; nothing if it did not come to it.

    A run that stopped early by another rule than that of the config has not come to its end.
    """
    try:
        found: dict[str, Any] = parsed_json(read_text(Path(str(config.run_dir)) / SUMMARY, MOST_SUMMARY))
        final = found["final"]
        numbers = all(isinstance(value, int | float) for value in final.values())
        ended = first == config.iterations or found.get("stop") == dataclasses.asdict(config.stop)
        return found if numbers and ended and final["iteration"] == first else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
