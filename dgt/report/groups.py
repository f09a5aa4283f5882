"""Runs that differ in nothing but their seed, side by side: what figures and tables take means and spreads over.

for group in grouped(find(["runs"])):
    print(group.choices, curve(group, "grad_norm").late(0.8).mean())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dgt.runs.run import FINISHED, SECTIONS, Run, is_number, short

Array = npt.NDArray[np.float64]
NAMED = ("problem", "weights", "topology", "strategy", "algorithm")
# config keys that do not change what is trained: paths and the seed
NOT_CHOICES = ("seed", "seeds", "run_dir", "resume")
LONGEST_VALUE = 2000  # characters; a list of weights may have more
NOT_KNOWN = {"settings": "not known"}  # choices of a run without config.yaml


@dataclass(slots=True)
class Group:
    """Runs that differ only in their seed. `runs` has one per seed: finished ones, or all if none has finished."""

    choices: dict[str, str]  # the config keys in which the groups differ
    runs: list[Run]
    unfinished: list[Run] = field(default_factory=list)
    repeated: list[Run] = field(default_factory=list)  # runs whose seed another run in `runs` has too

    @property
    def is_finished(self) -> bool:
        return self.runs[0].state == FINISHED

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.metrics))


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The groups, sorted by the keys in which they differ; runs without any measurement are left out."""
    runs = [run for run in runs if run.records]
    configs = [choices(run) for run in runs]
    keys = differing(configs)
    members: dict[tuple[str, ...], list[Run]] = {}
    for run, config in zip(runs, configs, strict=True):
        members.setdefault(tuple(config.get(key, "-") for key in keys), []).append(run)
    # sort by the first key, then the second, ...; the values of a key in the order of their first appearance
    order = [
        {value: number for number, value in enumerate(dict.fromkeys(column))} for column in zip(*members, strict=True)
    ]
    ranked = sorted(members, key=lambda values: [order[k][value] for k, value in enumerate(values)])
    return [_group(dict(zip(keys, values, strict=True)), members[values]) for values in ranked]


def _group(values: dict[str, str], runs: list[Run]) -> Group:
    counted: dict[str, Run] = {}
    for run in runs:  # of two runs of a seed keep the finished one, else the later one
        other = counted.get(run.choice("seed"))
        if other is None or run.state == FINISHED or other.state != FINISHED:
            counted[run.choice("seed")] = run
    once = list(counted.values())
    finished = [run for run in once if run.state == FINISHED]
    return Group(
        values,
        finished or once,
        unfinished=[run for run in once if run.state != FINISHED],
        repeated=[run for run in runs if not any(run is kept for kept in once)],
    )


def choices(run: Run) -> dict[str, str]:
    """The config in words, flat: {'topology': 'ring', 'topology.seed': '0', 'lr': '0.02', ...}."""
    found = {key: run.choice(key) for key in NAMED}
    whole = {key: run.section(key) for key in SECTIONS if isinstance(run.config.get(key), dict)}
    told = {short(key): short(_words(value), LONGEST_VALUE) for key, value in _flat(run.config | whole)}
    return found | told | ({} if run.config else NOT_KNOWN)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in ((str(key), value) for key, value in config.items()):  # YAML allows numbers as keys
        if key in NOT_CHOICES and not prefix:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (prefix.rstrip(".") if prefix and key == "name" else prefix + key), value


def _words(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_words(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ; `topology.avg_degree` only if it does not follow from `topology`."""
    return [key for key in varying(configs) if not _is_told(key, configs)]


def varying(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ; where the settings of a run are not known, that is one difference, not forty."""
    keys = dict.fromkeys([*NAMED, *NOT_KNOWN, *(key for config in configs for key in config)])
    known = [config for config in configs if not NOT_KNOWN.items() <= config.items()]
    told = {key: configs if key in (*NAMED, *NOT_KNOWN) else known for key in keys}
    return [key for key in keys if len({config.get(key) for config in told[key]}) > 1]


def _is_told(key: str, configs: Sequence[Mapping[str, str]]) -> bool:
    parent, dot, _ = key.rpartition(".")
    pairs = {(config.get(parent), config.get(key)) for config in configs}
    return bool(dot) and len(pairs) == len({config.get(parent) for config in configs})


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a group: NaN where a run has no finite value at that iteration."""

    iterations: npt.NDArray[np.int64]
    values: Array  # [iterations, seeds]

    def late(self, share: float) -> Array:
        """The mean of each seed over the iterations from `share` of the last one on: [seeds]."""
        part: Array = self.values[self.iterations >= share * self.iterations[-1]]
        return part.mean(0)


def curve(group: Group, metric: str) -> Curve | None:
    """The values of `metric` over iterations and seeds; None if no run has it."""
    records = [
        {record["iteration"]: record[metric] for record in run.records if is_number(record.get(metric))}
        for run in group.runs
    ]
    iterations = sorted(set().union(*records))
    if not iterations:
        return None
    values = np.array([[float(found.get(at, np.nan)) for found in records] for at in iterations])
    return Curve(np.array(iterations), np.where(np.isfinite(values), values, np.nan))
