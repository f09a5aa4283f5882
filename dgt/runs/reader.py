"""Run directories, read back: whatever is there, and in plain words what is not. Nothing here needs torch.

    run = read("runs/first"); print(run.label, run.state, run.records[-1])

A run may have crashed in the middle of a line, may still be going on, or may miss files: what can be read is
read, and `Run.notes` says what was left out. Only a path with nothing to show at all is an error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dgt.errors import ConfigError
from dgt.runs import contents
from dgt.runs.layout import ENVIRONMENT, EVENTS, METRICS, NODES, SUMMARY, WRITTEN
from dgt.runs.measures import SECONDS
from dgt.runs.run import FAILED, FINISHED, GOING_ON, SILENT, STOPPED, Run, is_number, is_sound, short

SILENCE = 120.0  # seconds without a new line after which a run may have been ended from outside


def read(path: str | Path) -> Run:
    """One run directory, as much of it as there is."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory; give a run directory")
    run = Run(path, short(path.name or path.resolve().name))
    notes = run.notes
    run.config = contents.config(path, notes)
    run.records = contents.few_metrics(contents.lines(path / METRICS, notes), notes)
    if not (path / METRICS).exists():
        notes.append(f"no {METRICS}: nothing was measured, or it was not copied here")
    elif not run.records and not any(note.startswith(METRICS) for note in notes):
        notes.append(f"{METRICS} has no complete line yet: nothing was measured so far")
    run.nodes = contents.few_metrics(contents.lines(path / NODES, notes), notes)
    run.events = contents.lines(path / EVENTS, notes, in_order=False)
    run.networks = contents.networks(path, notes)
    run.summary = contents.read_json(path, SUMMARY, notes, dict)
    run.environment = contents.read_json(path, ENVIRONMENT, notes, dict)
    run.failures = contents.failures(path, run.environment, notes)
    run.state = _state(run)
    notes += _remarks(run)
    return run


def _state(run: Run) -> str:
    """Files alone tell: a summary that fits the last line, a reason, a stop, or how long ago something was written."""
    last = run.records[-1]["iteration"] if run.records else -1
    final = run.summary.get("final")
    ended_at = final.get("iteration") if isinstance(final, dict) else None
    as_wanted = run.summary.get("iterations") in (None, run.iterations)  # else it was made longer since
    if run.summary and as_wanted and (not is_number(ended_at) or ended_at >= last):
        return FINISHED
    if run.failures:
        return FAILED
    stops = [event for event in run.events if event.get("event") == "stopped"]
    if stops and stops[-1]["iteration"] >= last and stops[-1].get("start") == run.environment.get("start"):
        return STOPPED
    return not_ended(run, WRITTEN)


def not_ended(run: Run, files: Sequence[str]) -> str:
    """Going on, or silent: no file was written for a while, not counting what usually passes between two lines."""
    written = [(run.path / name).stat().st_mtime for name in files if (run.path / name).exists()]
    seconds = run.curve(SECONDS.metric)
    pause = seconds[-1][1] / len(seconds) if seconds else 0.0
    return GOING_ON if time.time() - max(written, default=0.0) - 5 * pause < SILENCE else SILENT


def _remarks(run: Run) -> list[str]:
    words = []
    if run.state in (GOING_ON, SILENT):
        words.append(
            "no summary: the run is going on"
            if run.state == GOING_ON
            else "no summary: the run was ended from outside, or crashed without a word"
        )
    for metric in run.metrics:
        bad = [record["iteration"] for record in run.records if not is_sound(record.get(metric, 0.0))]
        if bad:
            often = f"{len(bad)} of {len(run.records)} evaluations, first at iteration {bad[0]}"
            words.append(f"{metric} is not a finite number in {often}")
    return words
