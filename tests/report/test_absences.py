"""What the page says about nodes that were away, and about one that is slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dgt.report.absences import absences
from dgt.report.payload import payload
from dgt.report.waiting import slow_node
from dgt.runs.reader import read as read_run


def written(folder: Path, **files: list[Any]) -> Any:
    """A run directory with these lines, or lists."""
    folder.mkdir()
    for name, rows in files.items():
        if name == "network":
            (folder / "network.json").write_text(json.dumps(rows))
        else:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(folder)


NETWORK = [{"iteration": 0, "size": 4, "nodes": [0, 1, 2, 3], "weights": [1.0] * 4, "degrees": [2] * 4}]
METRICS = [{"iteration": at, "loss": 1.0, "seconds": at / 10} for at in (0, 10, 20, 30)]


def member(iteration: int, *members: int) -> dict[str, Any]:
    return {"iteration": iteration, "event": "membership", "members": list(members), "words": "..."}


def test_absences_are_told_from_when_to_when(tmp_path: Path) -> None:
    events = [member(5, 0, 1, 3), member(9, 0, 1, 2, 3), member(12, 0, 2, 3), member(14, 0, 3)]
    run = written(tmp_path / "r", network=NETWORK, metrics=METRICS, events=events)
    said = "away: node 2 from iteration 5 to 9, node 1 from iteration 12 on, node 2 from iteration 14 on"
    assert absences(run) == said
    assert said in payload([run])["runs"][0]["notes"]
    assert absences(written(tmp_path / "s", network=NETWORK, metrics=METRICS, events=[])) == ""


@pytest.mark.parametrize(
    ("waited", "named"),
    [([1.0, 1.1, 0.05, 0.9], True), ([1.0, 1.1, 0.8, 0.9], False), ([0.05, 0.05, 0.001, 0.05], False)],
)
def test_a_node_for_which_all_others_wait_is_named(waited: list[float], named: bool, tmp_path: Path) -> None:
    nodes = [{"iteration": at, "waited": [at / 10 * each for each in waited]} for at in (0, 10, 20, 30)]
    run = written(tmp_path / "r", network=NETWORK, metrics=METRICS, nodes=nodes)
    words = "node 2 is slow: from iteration 20 to 30 it waited 0.05 s for its neighbours, the others 1 of 1 s; "
    assert slow_node(run).startswith(words) if named else slow_node(run) == ""
