"""The data of the page, as plain values; long series are thinned to keep the file small, and marked as such."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dgt.report import verdict as verdicts
from dgt.report.absences import absences
from dgt.report.groups import Group, choices, curve, differing, varying
from dgt.report.layout import positions
from dgt.report.networks import record_of
from dgt.report.waiting import slow_node
from dgt.runs.layout import METRICS, NETWORK
from dgt.runs.measures import OF_NODES, main, measure_of
from dgt.runs.run import FINISHED, GOING_ON, SILENT, Record, Run, is_number

CURVE_NUMBERS = 60_000  # numbers in all curves together
NODE_NUMBERS = 120_000  # numbers in all measurements of single nodes
DRAWN = 300  # nodes; larger networks are shown as dots over their weights
ROW_NUMBERS = 40_000  # entries of W
MOST_SHOWN = 60  # lines in the curves


def payload(runs: Sequence[Run], live: bool = False) -> Record:
    """Everything the page needs; a `live` page reloads itself."""
    kinds = entries(runs)
    shown = _lowest(kinds)
    metrics = list(dict.fromkeys(name for runs_ in shown for run in runs_ for name in run.metrics))
    found = verdicts.verdict(runs)
    notes = [f"{len(kinds)} lines would not be told apart: the {len(shown)} lowest are shown"] * (
        len(kinds) > len(shown)
    )
    points = max(40, CURVE_NUMBERS // max(1, len(shown) * len(metrics)))
    numbers = NODE_NUMBERS // max(1, len(shown))
    names = _names(shown)
    of_runs = [_entry(kind, name, points, numbers) for kind, name in zip(shown, names, strict=True)]
    for one, style in zip(of_runs, _styles(shown), strict=True):
        one |= style
    return {
        "headline": found.headline,
        "details": found.details,
        "notes": notes,
        "live": live,
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "metrics": [_metric(name) for name in metrics],
        "metric": main(metrics).metric if metrics else None,
        "nodeMetrics": {one.metric: {"title": one.label, "unit": one.unit} for one in OF_NODES},
        "count": len(runs),
        "runs": of_runs,
        "config": _config(shown, names),
    }


def entries(runs: Sequence[Run]) -> list[list[Run]]:
    """Lists of runs shown as one entry: finished runs that differ only in their seed; every other run alone."""
    found: dict[object, dict[object, Run]] = {}
    for number, run in enumerate(runs):
        alike = run.state == FINISHED and run.records and run.config
        key = tuple(sorted(choices(run).items())) if alike else number
        seeds = found.setdefault(key, {})
        if run.choice("seed") in seeds:  # the same seed again is not another sample
            found[number] = {number: run}
        else:
            seeds[run.choice("seed")] = run
    return [list(seeds.values()) for seeds in found.values()]


def _lowest(kinds: list[list[Run]]) -> list[list[Run]]:
    """The MOST_SHOWN entries with the lowest values, in their order: among them are all that the verdict names."""
    measure = main(name for runs in kinds for run in runs for name in run.metrics)
    late = []
    for runs in kinds:
        found = curve(Group({}, runs), measure.metric)
        late.append(np.inf if found is None else np.nan_to_num(found.late(measure.late).mean(), nan=np.inf))
    kept = np.sort(np.argsort(late, kind="stable")[:MOST_SHOWN])
    return [kinds[k] for k in kept]


def _names(shown: Sequence[list[Run]]) -> list[str]:
    """'A ring II', and what else it takes to tell entries apart: settings, else the name of the directory."""
    labels = [runs[0].label for runs in shown]
    settings = [choices(runs[0]) | {"seed": _seeds(runs)} for runs in shown]
    names = []
    for runs, label, own in zip(shown, labels, settings, strict=True):
        alike = [theirs for theirs, other in zip(settings, labels, strict=True) if other == label]
        more = [f"{key} {own.get(key, '-')}" for key in differing(alike)]
        name = ", ".join([label, *more])
        names.append(runs[0].name if "?" in label or len(more) > 2 else name)
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({number})" if name in twice else name for number, name in enumerate(names, 1)]


def _seeds(runs: Sequence[Run]) -> str:
    return ", ".join(run.choice("seed") for run in runs)


def _styles(shown: Sequence[list[Run]]) -> list[Record]:
    """Strategy I is dashed. If both strategies ran on every network, colours stand for networks, else for runs."""
    strategies = [runs[0].choice("strategy") for runs in shown]
    cells = [(runs[0].choice("weights"), runs[0].choice("topology")) for runs in shown]
    paired = sorted(zip(cells, strategies, strict=True)) == sorted(
        (cell, s) for cell in set(cells) for s in ("I", "II")
    )
    colours = [list(dict.fromkeys(cells)).index(cell) for cell in cells] if paired else list(range(len(shown)))
    if paired and len(shown) == 2:
        colours = [int(name == "I") for name in strategies]  # as in the figures
    return [{"colour": k % 8, "dashed": name == "I"} for k, name in zip(colours, strategies, strict=True)]


def _metric(name: str) -> Record:
    measure = measure_of(name)
    return {"name": name, "title": measure.label, "unit": measure.unit, "log": measure.logarithmic}


def _entry(runs: list[Run], name: str, points: int, numbers: int) -> Record:
    """One line of the curves; of several seeds their mean and spread, and the network of the first."""
    run = runs[0]
    notes = list(dict.fromkeys(note for one in runs for note in one.notes))
    recorded = run.networks or [one for one in [record_of(run, DRAWN)] if one is not None]
    networks = [_network(network, run.choice("topology"), notes) for network in recorded]
    _stay_in_place(networks)
    if not run.networks and (run.path / METRICS).exists():  # runs of a comparison have no metrics.jsonl
        known = "are those that its config names" if networks else "are not known"
        notes.append(f"no {NETWORK}: the graph and the mixing rows {known}")
    nodes = _nodes(run, numbers, notes)
    notes += [words for words in (absences(run), slow_node(run)) if words]
    curves = _curves(runs, points, notes)
    reason = run.reason
    return curves | {
        "name": name,
        "label": run.label,
        "strategy": run.choice("strategy"),
        "path": str(run.path),
        "seeds": len(runs),
        "state": "not finished" if run.state == SILENT else run.state,
        "notes": list(dict.fromkeys(notes)),
        "wanted": run.iterations,
        "networks": networks,
        "nodes": nodes,
        "environment": {
            key: _without_nan(value) for key, value in run.environment.items() if key != "start" and value != ""
        },
        "events": [
            {"iteration": event["iteration"], "words": str(event.get("words", ""))}
            for one in runs
            for event in one.events
        ],
        "failures": [
            {"rank": note.rank, "host": note.host, "reason": note.reason, "first": note is reason}
            for note in run.failures
        ],
        "trace": reason.traceback if reason is not None else "",
        "ended": run.state not in (GOING_ON, SILENT),
    }


def _curves(runs: list[Run], points: int, notes: list[str]) -> Record:
    """Means over the seeds, and where there are several the 10 and 90 % quantiles."""
    iterations = sorted({record["iteration"] for run in runs for record in run.records})
    kept = _thinned(iterations, points)
    if len(kept) < len(iterations):
        notes.append(f"curves show {len(kept)} of {len(iterations)} evaluations, evenly spread")
    values: dict[str, list[float | None]] = {}
    bands: dict[str, list[list[float | None]]] = {}
    for metric in dict.fromkeys(name for run in runs for name in run.metrics):
        by_iteration: dict[int, list[float]] = {}
        for run in runs:
            for at, value in run.curve(metric):
                by_iteration.setdefault(at, []).append(value)
        values[metric] = [_number(float(np.mean(by_iteration[at]))) if at in by_iteration else None for at in kept]
        if len(runs) > 1:
            bands[metric] = [
                [_number(float(np.percentile(by_iteration[at], q))) if at in by_iteration else None for at in kept]
                for q in (10, 90)
            ]
    return {"iterations": kept, "values": values, "bands": bands}


def _thinned(records: list[Any], most: int) -> list[Any]:
    """Evenly spread, first and last kept."""
    if len(records) <= most:
        return records
    return [records[k] for k in np.unique(np.linspace(0, len(records) - 1, most).round().astype(int))]


def _number(value: object, digits: int = 6) -> float | None:
    """None for NaN and infinity, which JSON does not have: a gap in the curve."""
    if not is_number(value) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def _without_nan(value: Any) -> Any:
    """NaN replaced by None in nested dicts and lists."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _network(network: Record, topology: str, notes: list[str]) -> Record:
    names, edges, rows = network["nodes"], network.get("edges"), network.get("mixing")
    size = int(network.get("size", len(names)))
    drawn = edges is not None and len(names) <= DRAWN
    if len(names) < size:
        notes.append(
            f"{size} nodes: measurements of {len(names)} of them, from the lightest to the heaviest, are shown"
        )
    if rows is not None and sum(map(len, rows)) > ROW_NUMBERS:
        notes.append("the mixing rows are left out: too many neighbours for one page")
        rows = None
    return {
        "iteration": network["iteration"],
        "size": size,
        "names": names,
        "weights": [_number(value) for value in network["weights"]],
        "degrees": network["degrees"],
        "schedule": network.get("schedule"),
        "edges": edges if drawn else None,
        "places": positions(topology, len(names), edges) if drawn and edges is not None else None,
        "rows": None if rows is None else [_row(row) for row in rows],
    }


def _stay_in_place(networks: list[Record]) -> None:
    """After a loss, give the remaining nodes the positions that they had before."""
    for network in networks[1:]:
        before = dict(zip(networks[0]["names"], networks[0]["places"] or [], strict=False))
        if network["places"] and set(network["names"]) <= set(before):
            network["places"] = [before[name] for name in network["names"]]


def _row(row: Record) -> list[list[float | None]]:
    """[[j, W_ij], ...]."""
    return [[int(j), _number(weight, 10)] for j, weight in row.items()]


def _nodes(run: Run, numbers: int, notes: list[str]) -> Record:
    """Every node's measurements at some of the evaluations."""
    names = list(dict.fromkeys(name for record in run.nodes for name in record))
    columns = [name for name in names if any(isinstance(record.get(name), list) for record in run.nodes)]
    width = max((len(_list(record.get(name))) for record in run.nodes for name in columns), default=1)
    most = max(2, numbers // max(1, width * len(columns)))
    records = _thinned(run.nodes, most)
    if len(records) < len(run.nodes):
        notes.append(f"single nodes are shown at {len(records)} of {len(run.nodes)} evaluations")
    return {
        "iterations": [record["iteration"] for record in records],
        "values": {
            name: [[_number(value, 5) for value in _list(record.get(name))] for record in records] for name in columns
        },
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _config(shown: Sequence[list[Run]], names: Sequence[str]) -> Record:
    """Every key, whether the runs differ in it, and its value in each run."""
    configs = [choices(runs[0]) | {"seed": _seeds(runs)} for runs in shown]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differ = set(varying(configs))
    rows = [[key, key in differ, *(config.get(key, "") for config in configs)] for key in keys]
    return {"runs": list(names), "rows": [row for row in rows if any(value not in ("", "?") for value in row[2:])]}
