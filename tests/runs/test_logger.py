"""The files of a run: under a full disk, after a crash, and when it goes on."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from dgt.config import Config
from dgt.network.mixing import mixing_matrix
from dgt.runs.lines import cut, records_in
from dgt.runs.logger import RunLogger
from dgt.runs.record import MOST_NODES, network_record


class FullNowAndThen:
    """A disk that takes seven bytes, then none, then everything."""

    def __init__(self, path: Path) -> None:
        self._file, self.room = path.open("ab", buffering=0), 1 << 20

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(bytes(data[: self.room]))
        self.room -= taken
        return taken

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


def test_metrics_wait_until_there_is_room_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = RunLogger(Config(iterations=30, run_dir=str(tmp_path)), 2, speaks=True)
    logger.start(0)
    disk = FullNowAndThen(tmp_path / "metrics.jsonl")
    logger._jsonl.metrics.file = disk  # type: ignore[assignment]
    for iteration in range(0, 30, 3):
        disk.room = {6: 7, 9: 0, 12: 0}.get(iteration, 1 << 20)
        logger.record(iteration, {"loss": np.ones(1), "evaluation_share": np.zeros(1), "bytes_sent": np.zeros(1)})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == list(range(0, 30, 3))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dgt: ")]
    assert said == ["dgt: metrics.jsonl: No space left on device; the run goes on, and writes it later if it can"]


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"iteration": 3}\n{"iteration": 6}\n{"iter')
    assert [record for record, _ in records_in(file)] == [{"iteration": 3}, {"iteration": 6}]
    cut(file, tmp_path / "kept", 5, tmp_path / "later")
    assert (tmp_path / "kept").read_text() == '{"iteration": 3}\n'
    assert (tmp_path / "later").read_text() == '{"iteration": 6}\n'


def test_a_resumed_run_keeps_nodes_and_networks_up_to_its_checkpoint(tmp_path: Path) -> None:
    config = Config(iterations=30, run_dir=str(tmp_path))
    whole = mixing_matrix(nx.cycle_graph(4), np.ones(4))
    left = mixing_matrix(nx.path_graph(3), np.ones(3))

    def measured(logger: RunLogger, iteration: int, nodes: int) -> None:
        values = {"loss": np.ones(1), "evaluation_share": np.zeros(1), "bytes_sent": np.zeros(1)}
        logger.record(iteration, values, {"loss": np.arange(nodes) / 3, "waited": np.ones(nodes)})

    logger = RunLogger(config, 4, speaks=True)
    logger.start(0)
    logger.network(0, np.ones(4), whole)
    for iteration in (0, 3, 6, 9):
        measured(logger, iteration, 4)
    logger.pause()
    logger.go_on(9, "node 2 lost", [0, 1, 3], np.ones(3), speaks=True)
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["members"], event["weights"], event["words"]) == ([0, 1, 3], [1.0] * 3, "node 2 lost")
    logger.network(9, np.ones(3), left, [0, 1, 3])
    measured(logger, 9, 3)
    logger.close()
    lines = [json.loads(line) for line in (tmp_path / "nodes.jsonl").read_text().splitlines()]
    assert [(line["iteration"], len(line["loss"])) for line in lines] == [(0, 4), (3, 4), (6, 4), (9, 3)]
    assert lines[0] == {"iteration": 0, "loss": [0.0, 0.333333, 0.666667, 1.0], "waited": [1.0] * 4}
    networks = json.loads((tmp_path / "network.json").read_text())
    assert [(network["iteration"], network["nodes"]) for network in networks] == [(0, [0, 1, 2, 3]), (9, [0, 1, 3])]
    assert networks[1]["edges"] == [[0, 1], [1, 2]]

    again = RunLogger(config, 4, speaks=True)
    again.start(6)
    again.network(6, np.ones(4), whole)
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "nodes.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 3, 6]
    assert json.loads((tmp_path / "network.json").read_text()) == networks[:1], "it is still the first one"


def test_a_large_network_is_recorded_by_a_sample_of_all_weights() -> None:
    weights = np.arange(1.0, 5001.0)[::-1]
    record = network_record(0, weights, scipy.sparse.eye_array(5000).tocsr())
    assert (record["size"], len(record["nodes"])) == (5000, MOST_NODES)
    assert {max(record["weights"]), min(record["weights"])} == {1.0, 5000.0}
    assert "edges" not in record
