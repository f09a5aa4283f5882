"""Run directories, read back: whatever is there, and in plain words what is not. Nothing here needs torch.

    run = read("runs/first"); print(run.label, run.state, run.records[-1])

A run may have crashed in the middle of a line, may still be going on, or may miss files: what can be read is
read, and `Run.notes` says what was left out. Only a path with nothing to show at all is an error. It may be somebody
else's directory: only regular files are read, within bounds (`config.files`), and nothing of it reaches a terminal raw.
"""

from __future__ import annotations

import itertools
import math
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from dgt.config import WeightsConfig, files, plain_yaml
from dgt.config.choices import all_topology_settings
from dgt.errors import ConfigError, printable
from dgt.processes.failures import MOST_NOTES, Failure, read_note, root_cause
from dgt.runs.layout import (
    COMPARISON,
    CONFIG,
    ENVIRONMENT,
    EVENTS,
    FAILURES,
    METRICS,
    NETWORK,
    NODES,
    NOT_RUNS,
    OF_A_RUN,
    SUMMARY,
    WRITTEN,
)
from dgt.runs.measures import SECONDS

Record = dict[str, Any]

LABEL = ("weights", "topology", "strategy")  # by which runs are called
DEEPEST = 5  # folders below the one that was named
MOST_FOLDERS, MOST_RUNS = 100_000, 10_000  # that are looked into, and read
MOST_CONFIG, MOST_JSON = 4 * 2**20, 64 * 2**20  # bytes
MOST_LINES = 512 * 2**20  # bytes of metrics.jsonl, nodes.jsonl, events.jsonl
MOST_LINE = 16 * 2**20  # bytes of a line: the measurements of 100,000 nodes
MOST_LINE_VALUES = 30_000_000  # in all lines of a file
MOST_METRICS = 200  # names
LONGEST_WORD = 120
SILENCE = 120.0  # seconds without a new line after which a run may have been ended from outside

# those to which later versions added keys
SECTIONS: dict[str, Record] = {"weights": asdict(WeightsConfig()), "topology": all_topology_settings()}

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
        return short(str(value.get("name", "?") if isinstance(value, dict) else value))

    def section(self, key: str) -> Record | None:
        """What is set for the weights or the topology; None where something else stands there.

        Keys that earlier versions did not write are at their defaults; they swapped no edges of tailored graphs.
        """
        written = self.config.get(key, {})
        written = {"name": written} if isinstance(written, str) else written
        if not isinstance(written, dict):
            return None
        unwritten = {name: value for name, value in SECTIONS[key].items() if name != "name"}
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
        return root_cause(self.failures) if self.failures else None

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(iteration, value) where the metric was measured and is a number."""
        pairs = ((record["iteration"], record.get(metric)) for record in self.records)
        return [(at, float(value)) for at, value in pairs if is_number(value) and math.isfinite(value)]


def short(text: str, most: int = LONGEST_WORD) -> str:
    """In a line, without control characters; a long one is cut, and told from others by its checksum."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 12]}... {zlib.crc32(text.encode()):08x}"


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def search(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The run directories, and the directories of `dgt compare`, in these paths; each once, in order."""
    runs: dict[Path, Path] = {}
    comparisons: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file() and path.name in (METRICS, COMPARISON, SUMMARY):
            path = path.parent
        if not os.path.isdir(path):  # pathlib's raises where a parent may not be entered
            what = "a file" if os.path.exists(path) else "no such directory"
            raise ConfigError(f"{path}: {what}; give a run directory, a sweep, or a folder that holds runs")
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfigError(f"{path}: may not be read; give a directory of yours")
        for folder in _walk(path, DEEPEST, itertools.count()):
            kind = comparisons if os.path.exists(folder / COMPARISON) else runs
            kind.setdefault(folder.resolve(), folder)
            if len(runs) + len(comparisons) > MOST_RUNS:
                raise ConfigError(f"{path}: more than {MOST_RUNS} runs in there; name a part of them")
    return list(runs.values()), list(comparisons.values())


def _walk(path: Path, deeper: int, looked: Iterator[int]) -> Iterator[Path]:
    if any(os.path.exists(path / name) for name in (*OF_A_RUN, COMPARISON)):
        yield path
    elif deeper:
        folders = []
        try:
            for entry in os.scandir(path):
                if next(looked) > MOST_FOLDERS:
                    raise ConfigError(f"{path}: more than {MOST_FOLDERS} files to look through; name a run directory")
                if entry.name not in NOT_RUNS and not entry.name.startswith(".") and entry.is_dir():
                    folders.append(entry.name)
        except OSError:  # somebody else's, or a link that leads to itself
            return
        for name in sorted(folders):
            yield from _walk(path / name, deeper - 1, looked)


def read(path: str | Path) -> Run:
    """One run directory, as much of it as there is."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory; give a run directory")
    run = Run(path, short(path.name or path.resolve().name))
    notes = run.notes
    run.config = _config(path, notes)
    run.records = _few_metrics(_lines(path / METRICS, notes), notes)
    if not (path / METRICS).exists():
        notes.append(f"no {METRICS}: nothing was measured, or it was not copied here")
    elif not run.records and not any(note.startswith(METRICS) for note in notes):
        notes.append(f"{METRICS} has no complete line yet: nothing was measured so far")
    run.nodes = _few_metrics(_lines(path / NODES, notes), notes)
    run.events = _lines(path / EVENTS, notes, in_order=False)
    networks = read_json(path, NETWORK, notes, list)
    run.networks = [network for network in networks if _is_network(network)]
    if len(run.networks) < len(networks):
        notes.append(f"{NETWORK} does not fit together: left out")
    run.summary = read_json(path, SUMMARY, notes, dict)
    run.environment = read_json(path, ENVIRONMENT, notes, dict)
    run.failures = _failures(path, run.environment, notes)
    run.state = _state(run)
    notes += _remarks(run)
    return run


def _text(file: Path, notes: list[str], most: int) -> str | None:
    """What stands in the file; None where there is none, or where it cannot be read, and then a remark."""
    if not os.path.lexists(file):
        return None
    try:
        return files.read_text(file, most, errors="replace")
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({str(error.strerror).lower()}): left out")
        return None


def _config(path: Path, notes: list[str]) -> Record:
    text = _text(path / CONFIG, notes, MOST_CONFIG)
    if text is None:
        if not os.path.lexists(path / CONFIG):
            notes.append(f"no {CONFIG}: what was chosen is known from the summary only")
        return {}
    try:
        found = plain_yaml.parsed(text)
    except ValueError:  # a date like 2020-13-45 as well
        notes.append(f"{CONFIG} is damaged: left out")
        return {}
    if not isinstance(found, dict):
        notes.append(f"{CONFIG} is not a config: left out")
        return {}
    return found


def _lines(path: Path, notes: list[str], in_order: bool = True) -> list[Record]:
    """The complete lines; where an iteration comes twice, the later one counts, as after a resume."""
    if not os.path.lexists(path):
        return []
    found: list[Record] = []
    try:
        with files.opened(path) as file:
            damaged = _each_line(file, path.name, found, notes)
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({str(error.strerror).lower()}): left out")
        return []
    if damaged:
        notes.append(f"{damaged} damaged line{'s' * (damaged > 1)} in {path.name}: left out")
    if not in_order:
        return found
    latest = {record["iteration"]: record for record in found}
    return [latest[iteration] for iteration in sorted(latest)]


def _each_line(file: BinaryIO, name: str, found: list[Record], notes: list[str]) -> int:
    """Parse line by line, as far as the bounds allow; returns how many lines are damaged."""
    damaged = values = 0
    while line := file.readline(MOST_LINE):
        values += line.count(b",") + line.count(b"[") + line.count(b"{")
        if file.tell() > MOST_LINES or values > MOST_LINE_VALUES or (len(line) == MOST_LINE and line[-1:] != b"\n"):
            notes.append(f"{name} is too large: only the first {len(found)} lines are read")
            break
        try:
            record = files.parsed_json(line.decode("utf-8", "replace"))
            complete = isinstance(record, dict) and _is_count(record["iteration"])
        except (ValueError, KeyError):
            complete = False
        if complete:
            found.append(record)
        elif line[-1:] != b"\n":
            notes.append(f"the last line of {name} is half-written: left out")
        elif line.strip():
            damaged += 1
    return damaged


def _few_metrics(records: list[Record], notes: list[str]) -> list[Record]:
    """A metric has a curve of its own: nobody looks at thousands of them. Names are such that a terminal can show."""
    names = list(dict.fromkeys(name for record in records for name in record))
    if len(names) <= MOST_METRICS and all(name.isprintable() and len(name) <= LONGEST_WORD for name in names):
        return records
    if len(names) > MOST_METRICS:
        notes.append(f"{len(names)} different metrics: only the first {MOST_METRICS} are shown")
    shown = {name: short(name) for name in ["iteration", *names[:MOST_METRICS]]}
    return [{shown[name]: value for name, value in record.items() if name in shown} for record in records]


def read_json(path: Path, name: str, notes: list[str], kind: type[Any]) -> Any:
    text = _text(path / name, notes, MOST_JSON)
    if text is None:
        return kind()
    try:
        found = files.parsed_json(text)
    except ValueError:
        found = None
    if not isinstance(found, kind):
        notes.append(f"{name} is damaged: left out")
        return kind()
    return found


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
        starts = sorted(entry.name for entry in os.scandir(path / FAILURES) if entry.is_dir())
        if not starts or starts[-1] < str(environment.get("start", "")):
            return []
        folder = path / FAILURES / starts[-1]
        names = sorted(name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".json"))
    except OSError:
        return []
    found = []
    for name in names[:MOST_NOTES]:
        try:
            found.append(read_note(folder / name))
        except (OSError, ValueError):
            notes.append(f"{short(f'{FAILURES}/{starts[-1]}/{name}')} is damaged: left out")
    return found


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
