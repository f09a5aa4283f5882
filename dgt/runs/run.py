"""A run as its directory tells of it: what was chosen, what was measured, and how far it came."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from dgt.config import WeightsConfig
from dgt.config.choices import all_topology_settings
from dgt.errors import printable
from dgt.processes.failures import Failure, root_cause

Record = dict[str, Any]

FINISHED, FAILED, STOPPED, GOING_ON, SILENT = "finished", "failed", "stopped", "going on", "silent"
LABEL = ("weights", "topology", "strategy")  # by which runs are called
LONGEST_WORD = 120

# those to which later versions added keys
SECTIONS: dict[str, Record] = {"weights": asdict(WeightsConfig()), "topology": all_topology_settings()}


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


def problems_of(runs: Iterable[Run]) -> list[str]:
    """The problems these runs are about; values of different ones cannot be compared."""
    return list(dict.fromkeys(run.choice("problem") for run in runs))


def short(text: str, most: int = LONGEST_WORD) -> str:
    """In a line, without control characters; a long one is cut, and told from others by its checksum."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 12]}... {zlib.crc32(text.encode()):08x}"


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_sound(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
