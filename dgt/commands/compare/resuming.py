"""`dgt compare ... run_dir=DIR resume=auto`: the runs that DIR holds from start to end are not made again."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dgt.config import Config
from dgt.config.files import write
from dgt.errors import ConfigError
from dgt.runs import layout

FREE = ("run_dir", "timeout", "logger")  # may differ from what they were
Cell = tuple[str, str, str]  # weights, topology, strategy
Done = frozenset[tuple[str, str, str, int]]  # a cell and a seed


def goes_on(config: Config) -> bool:
    """Whether this comparison continues what its directory holds."""
    if config.resume not in ("none", "auto"):
        raise ConfigError(f"resume={config.resume}: dgt compare goes on in its own directory only, with resume=auto")
    return config.resume == "auto"


def finished(directory: Path, cells: Sequence[Config], seeds: Sequence[int]) -> Done:
    """The runs that are there from start to end; the rows of others are removed."""
    if not (directory / layout.COMPARISON).is_file():
        return frozenset()
    _refuse_another(directory, cells, seeds)
    ends = {cell_of(config): config.iterations for config in cells}
    with (directory / layout.COMPARISON).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names, rows = list(reader.fieldnames or ()), list(reader)
    last = {_run_of(row): row["iteration"] for row in rows if _is_whole(row)}
    done = frozenset(run for run, iteration in last.items() if iteration == str(ends.get(run[:3])))
    kept = io.StringIO(newline="")
    writer = csv.DictWriter(kept, names)
    writer.writeheader()
    writer.writerows(row for row in rows if _is_whole(row) and _run_of(row) in done)
    write(directory / layout.COMPARISON, kept.getvalue())
    return done


def cell_of(config: Config) -> Cell:
    return config.weights.name, config.topology.name, config.strategy.name


def _run_of(row: Mapping[str, str]) -> tuple[str, str, str, int]:
    return row["weights"], row["topology"], row["strategy"], int(row["seed"])


def _is_whole(row: Mapping[str, str | None]) -> bool:
    """The last row of a run that was killed may end anywhere."""
    return None not in row.values() and str(row["seed"]).isdigit()


def _refuse_another(directory: Path, cells: Sequence[Config], seeds: Sequence[int]) -> None:
    """What is there must be part of what is asked for, with the same settings."""
    plan = yaml.safe_load((directory / layout.CONFIG).read_text(encoding="utf-8"))
    asked = {cell_of(config): config.to_dict() for config in cells}
    missing = sorted(set(plan["seeds"]) - set(seeds))
    if missing:
        raise ConfigError(f"resume=auto: {directory} has seed {missing[0]} too; give all its seeds, or another run_dir")
    for there in plan["cells"]:
        name = there["weights"]["name"], there["topology"]["name"], there["strategy"]["name"]
        if name not in asked:
            raise ConfigError(
                f"resume=auto: {directory} has {' '.join(name)} too; give all its cells, or another run_dir"
            )
        for key, value in there.items():
            now = asked[name].get(key)
            if key not in FREE and _plain(now) != _plain(value):
                raise ConfigError(
                    f"resume=auto: {key} of {directory} is {value}, here {now}; give the same, or another run_dir"
                )


def _plain(value: Any) -> Any:
    """As it is after a way through a YAML file."""
    return yaml.safe_load(yaml.safe_dump(value))
