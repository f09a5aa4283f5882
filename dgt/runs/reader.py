"""Run directories, read back: whatever is there, and in plain words what is not. Nothing here needs torch.

    run = read("runs/first"); print(run.label, run.state, run.records[-1])

A run may have crashed in the middle of a line, may still be going on, or may miss files: what can be read is
read, and `Run.notes` says what was left out. Only a path with nothing to show at all is an error.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from dgt.checks import ConfigError
from dgt.config import TopologyConfig, WeightsConfig
from dgt.failures import FOLDER, Failure, first

Record = dict[str, Any]

LABEL = ("weights", "topology", "strategy")  # by which runs are called
METRICS, COMPARISON = "metrics.jsonl", "compare.csv"
OF_A_RUN = (METRICS, "summary.json", "nodes.jsonl", "network.json", FOLDER)  # any of these, and it is one
NOT_RUNS = ("checkpoints", "figures", "tensorboard", FOLDER)
DEEPEST = 5  # folders below the one that was named
SILENCE = 120.0  # seconds without a new line after which a run may have been ended from outside

# those to which later versions added keys
SECTIONS: dict[str, WeightsConfig | TopologyConfig] = {"weights": WeightsConfig(), "topology": TopologyConfig()}

FINISHED, FAILED, STOPPED, GOING_ON, SILENT = "finished", "failed", "stopped", "going on", "silent"


@dataclass
class Run:
    """One run directory. `records` are the lines of metrics.jsonl by iteration, `nodes` those of nodes.jsonl.

    networks   the network from each `iteration` on: weights, degrees, edges, mixing rows; more than one if nodes
               were lost on the way
    state      finished, failed (a rank left a reason), stopped (asked to; can be resumed), going on, or silent (not
               ended, and nothing was written for a while)
    """

    path: Path
    name: str
    config: Record = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    nodes: list[Record] = field(default_factory=list)
    networks: list[Record] = field(default_factory=list)
    summary: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    events: list[Record] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    state: str = SILENT
    notes: list[str] = field(default_factory=list)

    def choice(self, key: str) -> str:
        """What was chosen for weights, topology, strategy, algorithm, problem or seed; '?' where nobody wrote it."""
        value = self.config.get(key, self.summary.get(key, "?"))
        return str(value.get("name", "?") if isinstance(value, dict) else value)

    def section(self, key: str) -> Record | None:
        """What is set for the weights or the topology; None where something else stands there.

        Keys that earlier versions did not write are at their defaults; they swapped no edges of tailored graphs.
        """
        written = self.config.get(key, {})
        written = {"name": written} if isinstance(written, str) else written
        if not isinstance(written, dict):
            return None
        unwritten = {name: value for name, value in asdict(SECTIONS[key]).items() if name != "name"}
        if written.get("name") == "tailored":
            unwritten["optimize"] = False
        return {name: value for name, value in (unwritten | written).items() if value is not None}

    @property
    def label(self) -> str:
        return " ".join(self.choice(key) for key in LABEL)

    @property
    def network(self) -> Record:
        """The last network of the run; empty if none was written."""
        return self.networks[-1] if self.networks else {}

    @property
    def iterations(self) -> int | None:
        """How many were asked for."""
        wanted = self.config.get("iterations", self.summary.get("iterations"))
        return wanted if isinstance(wanted, int) else None

    @cached_property
    def metrics(self) -> list[str]:
        """Names of everything that was measured, in the order of the file."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return [name for name in names if name != "iteration"]

    @property
    def reason(self) -> Failure | None:
        """The first failing rank's."""
        return first(self.failures) if self.failures else None

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(iteration, value) where the metric was measured and is a number."""
        pairs = ((record["iteration"], record.get(metric)) for record in self.records)
        return [(at, float(value)) for at, value in pairs if is_number(value) and math.isfinite(value)]


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def search(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The run directories, and the directories of `dgt compare`, in these paths; each once, in order."""
    runs: dict[Path, Path] = {}
    comparisons: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file() and path.name in (METRICS, COMPARISON, "summary.json"):
            path = path.parent
        if not os.path.isdir(path):  # pathlib's raises where a parent may not be entered
            what = "a file" if os.path.exists(path) else "no such directory"
            raise ConfigError(f"{path}: {what}; give a run directory, a sweep, or a folder that holds runs")
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfigError(f"{path}: may not be read; give a directory of yours")
        for folder in _walk(path, DEEPEST):
            kind = comparisons if (folder / COMPARISON).exists() else runs
            kind.setdefault(folder.resolve(), folder)
    return list(runs.values()), list(comparisons.values())


def _walk(path: Path, deeper: int) -> Iterator[Path]:
    if any(os.path.exists(path / name) for name in (*OF_A_RUN, COMPARISON)):
        yield path
    elif deeper:
        try:
            folders = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        except OSError:  # somebody else's
            return
        for name in folders:
            if name not in NOT_RUNS and not name.startswith("."):
                yield from _walk(path / name, deeper - 1)


def read(path: str | Path) -> Run:
    """One run directory, as much of it as there is."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory; give a run directory")
    run = Run(path, path.name or path.resolve().name)
    notes = run.notes
    run.config = _config(path, notes)
    run.records = _lines(path / METRICS, notes)
    if not (path / METRICS).exists():
        notes.append(f"no {METRICS}: nothing was measured, or it was not copied here")
    elif not run.records and not any(note.startswith(METRICS) for note in notes):
        notes.append(f"{METRICS} has no complete line yet: nothing was measured so far")
    run.nodes = _lines(path / "nodes.jsonl", notes)
    run.events = _lines(path / "events.jsonl", notes, in_order=False)
    networks = read_json(path, "network.json", notes, list)
    run.networks = [network for network in networks if _is_network(network)]
    if len(run.networks) < len(networks):
        notes.append("network.json does not fit together: left out")
    run.summary = read_json(path, "summary.json", notes, dict)
    run.environment = read_json(path, "environment.json", notes, dict)
    run.failures = _failures(path, run.environment, notes)
    run.state = _state(run)
    notes += _remarks(run)
    return run


def _text(file: Path, notes: list[str]) -> str | None:
    """What stands in the file; None where there is none, or where it cannot be read, and then a remark."""
    if not os.path.lexists(file):
        return None
    try:
        if not file.is_file():  # a pipe would be waited for
            raise OSError(0, "not a file")
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({str(error.strerror).lower()}): left out")
        return None


def _config(path: Path, notes: list[str]) -> Record:
    text = _text(path / "config.yaml", notes)
    if text is None:
        if not os.path.lexists(path / "config.yaml"):
            notes.append("no config.yaml: what was chosen is known from the summary only")
        return {}
    try:
        found = yaml.safe_load(text)
        json.dumps(found, default=str, skipkeys=True)  # fails where an alias leads back to itself
    except (ValueError, RecursionError, yaml.YAMLError):  # ValueError: a date like 2020-13-45
        notes.append("config.yaml is damaged: left out")
        return {}
    if not isinstance(found, dict):
        notes.append("config.yaml is not a config: left out")
        return {}
    return found


def _lines(path: Path, notes: list[str], in_order: bool = True) -> list[Record]:
    """The complete lines; where an iteration comes twice, the later one counts, as after a resume."""
    text = _text(path, notes)
    if text is None:
        return []
    found, damaged = [], 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = _parsed(line)
            complete = isinstance(record, dict) and _is_count(record["iteration"])
        except (ValueError, KeyError, RecursionError):
            complete = False
        if complete:
            found.append(record)
        elif number == len(lines) and not text.endswith("\n"):
            notes.append(f"the last line of {path.name} is half-written: left out")
        elif line.strip():
            damaged += 1
    if damaged:
        notes.append(f"{damaged} damaged line{'s' * (damaged > 1)} in {path.name}: left out")
    if not in_order:
        return found
    latest = {record["iteration"]: record for record in found}
    return [latest[iteration] for iteration in sorted(latest)]


def read_json(path: Path, name: str, notes: list[str], kind: type[Any]) -> Any:
    text = _text(path / name, notes)
    if text is None:
        return kind()
    try:
        found = _parsed(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        notes.append(f"{name} is damaged: left out")
        return kind()
    return found


def _parsed(text: str) -> Any:
    """JSON; whole numbers that fit no machine word become floats, if need be infinite ones."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 18 else float(digits))


def _is_network(found: object) -> bool:
    """Whether lengths and indices fit together, so that nobody further on has to ask."""
    if not isinstance(found, dict) or not _is_count(found.get("iteration")):
        return False
    names, weights, degrees = (found.get(key) for key in ("nodes", "weights", "degrees"))
    if not (isinstance(names, list) and isinstance(weights, list) and isinstance(degrees, list)):
        return False
    n, edges, rows = len(names), found.get("edges") or [], found.get("mixing") or []
    if not (isinstance(edges, list) and isinstance(rows, list)):
        return False
    pairs = all(isinstance(edge, list) and len(edge) == 2 for edge in edges)
    return (
        len(weights) == len(degrees) == n > 0
        and all(isinstance(name, (int, str)) for name in names)
        and isinstance(found.get("size", n), int)
        and all(_is_sound(value) for value in [*weights, *degrees])
        and pairs
        and all(isinstance(end, int) and 0 <= end < n for edge in edges for end in edge)
        and len(rows) in (0, n)
        and all(isinstance(row, dict) for row in rows)
        and all(j.isdecimal() and int(j) < n and is_number(weight) for row in rows for j, weight in row.items())
    )


def _failures(path: Path, environment: Record, notes: list[str]) -> list[Failure]:
    """The notes that ranks left in the last start of the run; those of earlier starts no longer matter."""
    try:
        starts = sorted(entry for entry in (path / FOLDER).iterdir() if entry.is_dir())
    except OSError:
        return []
    if not starts or starts[-1].name < str(environment.get("start", "")):
        return []
    found = []
    for file in sorted(starts[-1].glob("rank-*.json")):
        try:
            note = Failure(**_parsed(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            note = None
        if note is not None and _is_note(note):
            found.append(note)
        else:
            notes.append(f"{file.relative_to(path)} is damaged: left out")
    return found


def _is_note(note: Failure) -> bool:
    words = (note.kind, note.reason, note.host, note.traceback)
    return isinstance(note.rank, int) and _is_sound(note.time) and all(isinstance(word, str) for word in words)


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
    return not_ended(run, (METRICS, "nodes.jsonl", "network.json", "environment.json", "config.yaml"))


def not_ended(run: Run, files: Sequence[str]) -> str:
    """Going on, or silent: no file was written for a while, not counting what usually passes between two lines."""
    written = [(run.path / name).stat().st_mtime for name in files if (run.path / name).exists()]
    seconds = run.curve("seconds")
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
        bad = [record["iteration"] for record in run.records if not _is_sound(record.get(metric, 0.0))]
        if bad:
            often = f"{len(bad)} of {len(run.records)} evaluations, first at iteration {bad[0]}"
            words.append(f"{metric} is not a finite number in {often}")
    return words


def _is_sound(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def problems_of(runs: Iterable[Run]) -> list[str]:
    """The problems these runs are about; values of different ones cannot be compared."""
    return list(dict.fromkeys(run.choice("problem") for run in runs))
