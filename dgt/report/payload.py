"""What the page shows, as plain values: thinned so that the file stays small, and saying so where it was."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dgt.report import verdict as verdicts
from dgt.report.groups import choices
from dgt.report.layout import positions
from dgt.report.measures import BY_METRIC, main
from dgt.report.runs import GOING_ON, SILENT, Record, Run, is_number

CURVE_NUMBERS = 60_000  # in all curves together
NODE_NUMBERS = 120_000  # in all measurements of single nodes
DRAWN = 300  # nodes; larger networks are shown as dots over their weights
ROW_NUMBERS = 40_000  # entries of W
MOST_RUNS = 60

UNITS = {
    "seconds": ("training time", "s"),
    "bytes_sent": ("sent by all nodes", "bytes"),
    "evaluation_share": ("share of the time spent evaluating", ""),
    "tracking_residual": ("tracking residual", ""),
    "average_norm": ("norm of the average", ""),
    "tracking_scale": ("scale of the tracking residual", ""),
}
OF_NODES = {
    "loss": ("loss", ""),
    "from_average": ("distance from the network average", ""),
    "waited": ("waited for neighbours so far", "s"),
    "accuracy": ("test accuracy", ""),
    "test_loss": ("test loss", ""),
}


def payload(runs: Sequence[Run], live: bool = False) -> Record:
    """Everything the page needs; `live` says that it is to look again for a newer version of itself."""
    shown = list(runs[:MOST_RUNS])
    metrics = list(dict.fromkeys(name for run in shown for name in run.metrics))
    found = verdicts.verdict(runs)
    notes = []
    if len(runs) > len(shown):
        notes.append(f"{len(runs)} runs: the first {len(shown)} are shown.")
    points = max(40, CURVE_NUMBERS // max(1, len(shown) * len(metrics)))
    numbers = NODE_NUMBERS // max(1, len(shown))
    names = _names(shown)
    of_runs = [_run(run, name, points, numbers) for run, name in zip(shown, names, strict=True)]
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
        "nodeMetrics": {name: {"title": title, "unit": unit} for name, (title, unit) in OF_NODES.items()},
        "runs": of_runs,
        "config": _config(shown, names),
    }


def _names(runs: Sequence[Run]) -> list[str]:
    """As short as they can be and still tell the runs apart."""
    for names in ([run.label for run in runs], [f"{run.label}, seed {run.choice('seed')}" for run in runs]):
        if len(set(names)) == len(names) and "?" not in " ".join(names):
            return names
    labels = [run.label for run in runs]
    names = [
        label if labels.count(label) == 1 and "?" not in label else run.name
        for label, run in zip(labels, runs, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _styles(runs: Sequence[Run]) -> list[Record]:
    """A colour for runs that differ in their seed only, and dashes for Strategy I, as in the figures.

    Two strategies alone have the figures' colours.
    """
    strategies = [run.choice("strategy") for run in runs]
    kinds = [tuple(sorted(choices(run).items())) for run in runs]
    colours = {kind: number % 8 for number, kind in enumerate(dict.fromkeys(kinds))}
    if len(colours) == 2 and set(strategies) == {"I", "II"}:
        colours = {kind: int(name == "I") for kind, name in zip(kinds, strategies, strict=True)}
    return [{"colour": colours[kind], "dashed": name == "I"} for kind, name in zip(kinds, strategies, strict=True)]


def _metric(name: str) -> Record:
    measure = BY_METRIC.get(name)
    title, unit = (measure.label, "") if measure is not None else UNITS.get(name, (name.replace("_", " "), ""))
    return {"name": name, "title": title, "unit": unit, "log": measure is not None and measure.logarithmic}


def _run(run: Run, name: str, points: int, numbers: int) -> Record:
    records = _thinned(run.records, points)
    notes = list(run.notes)
    if len(records) < len(run.records):
        notes.append(f"curves show {len(records)} of {len(run.records)} evaluations, evenly spread")
    networks = [_network(network, run.choice("topology"), notes) for network in run.networks]
    _stay_in_place(networks)
    nodes = _nodes(run, numbers, notes)
    if not run.networks:
        notes.append("no network.json: the graph and its mixing rows are not known")
    reason = run.reason
    return {
        "name": name,
        "label": run.label,
        "title": verdicts.title(run),
        "path": str(run.path),
        "state": "not finished" if run.state == SILENT else run.state,
        "fate": verdicts.fate(run),
        "notes": list(dict.fromkeys(notes)),
        "iterations": [record["iteration"] for record in records],
        "wanted": run.iterations,
        "values": {metric: [_number(record.get(metric)) for record in records] for metric in run.metrics},
        "networks": networks,
        "nodes": nodes,
        "environment": {key: value for key, value in run.environment.items() if key != "start" and value != ""},
        "events": [{"iteration": event["iteration"], "words": str(event.get("words", ""))} for event in run.events],
        "failures": [
            {"rank": note.rank, "host": note.host, "reason": note.reason, "first": note is reason}
            for note in run.failures
        ],
        "trace": reason.traceback if reason is not None else "",
        "ended": run.state not in (GOING_ON, SILENT),
    }


def _thinned(records: list[Record], most: int) -> list[Record]:
    """Evenly spread, first and last kept."""
    if len(records) <= most:
        return records
    return [records[k] for k in np.unique(np.linspace(0, len(records) - 1, most).round().astype(int))]


def _number(value: object, digits: int = 6) -> float | None:
    """JSON knows no NaN: what is no number is a gap in the curve."""
    if not is_number(value) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


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
        "edges": edges if drawn else None,
        "places": positions(topology, len(names), edges) if drawn and edges is not None else None,
        "rows": None if rows is None else [_row(row) for row in rows],
    }


def _stay_in_place(networks: list[Record]) -> None:
    """Nodes that are left when others are lost do not move."""
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
    width = max((len(record.get(name) or []) for record in run.nodes for name in columns), default=1)
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


def _config(runs: Sequence[Run], names: Sequence[str]) -> Record:
    """Every key, whether the runs differ in it, and its value in each run."""
    configs = [choices(run) | {"seed": run.choice("seed")} for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differ = {key for key in keys if len({config.get(key) for config in configs}) > 1}
    rows = [[key, key in differ, *(config.get(key, "") for config in configs)] for key in keys]
    return {"runs": list(names), "rows": [row for row in rows if any(value not in ("", "?") for value in row[2:])]}
