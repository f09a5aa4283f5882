"""The files of a run directory, read one by one: what can be read is, and a note says what was left out.

The directory may be somebody else's, or that of a run that crashed in the middle of a line: only regular files are
read, within bounds (`config.files`), and nothing of them reaches a terminal raw.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from dgt.config import files, plain_yaml
from dgt.processes.failures import MOST_NOTES, Failure, read_note
from dgt.runs.layout import CONFIG, FAILURES, NETWORK
from dgt.runs.run import LONGEST_WORD, Record, is_count, is_number, is_sound, short

MOST_CONFIG, MOST_JSON = 4 * 2**20, 64 * 2**20  # bytes
MOST_LINES = 512 * 2**20  # bytes of metrics.jsonl, nodes.jsonl, events.jsonl
MOST_LINE = 16 * 2**20  # bytes of a line: the measurements of 100,000 nodes
MOST_LINE_VALUES = 30_000_000  # in all lines of a file
MOST_METRICS = 200  # names


def _text(file: Path, notes: list[str], most: int) -> str | None:
    """What stands in the file; None where there is none, or where it cannot be read, and then a remark."""
    if not os.path.lexists(file):
        return None
    try:
        return files.read_text(file, most, errors="replace")
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({str(error.strerror).lower()}): left out")
        return None


def config(path: Path, notes: list[str]) -> Record:
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


def lines(path: Path, notes: list[str], in_order: bool = True) -> list[Record]:
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
            complete = isinstance(record, dict) and is_count(record["iteration"])
        except (ValueError, KeyError):
            complete = False
        if complete:
            found.append(record)
        elif line[-1:] != b"\n":
            notes.append(f"the last line of {name} is half-written: left out")
        elif line.strip():
            damaged += 1
    return damaged


def few_metrics(records: list[Record], notes: list[str]) -> list[Record]:
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


def networks(path: Path, notes: list[str]) -> list[Record]:
    """Those that fit together."""
    found = read_json(path, NETWORK, notes, list)
    sound = [network for network in found if _is_network(network)]
    if len(sound) < len(found):
        notes.append(f"{NETWORK} does not fit together: left out")
    return sound


def _is_network(found: object) -> bool:
    """Whether lengths and indices fit together, so that nobody further on has to ask."""
    if not isinstance(found, dict) or not is_count(found.get("iteration")):
        return False
    names, weights, degrees = (found.get(key) for key in ("nodes", "weights", "degrees"))
    if not (isinstance(names, list) and isinstance(weights, list) and isinstance(degrees, list)):
        return False
    n, edges, rows = len(names), found.get("edges") or [], found.get("mixing") or []
    if not (isinstance(edges, list) and isinstance(rows, list)):
        return False
    pairs = all(isinstance(edge, list) and len(edge) == 2 for edge in edges)
    schedule = found.get("schedule") or {"exchanges": 1}
    return (
        len(weights) == len(degrees) == n > 0
        and isinstance(schedule, dict)
        and is_count(schedule.get("exchanges"))
        and all(isinstance(name, (int, str)) for name in names)
        and isinstance(found.get("size", n), int)
        and all(is_sound(value) for value in [*weights, *degrees])
        and pairs
        and all(isinstance(end, int) and 0 <= end < n for edge in edges for end in edge)
        and len(rows) in (0, n)
        and all(isinstance(row, dict) for row in rows)
        and all(j.isdecimal() and int(j) < n and is_number(weight) for row in rows for j, weight in row.items())
    )


def failures(path: Path, environment: Record, notes: list[str]) -> list[Failure]:
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
