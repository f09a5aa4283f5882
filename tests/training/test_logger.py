"""The files of a run under a full disk."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from dgt.config import Config
from dgt.training.logger import RunLogger, records_until


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

    def close(self) -> None:
        self._file.close()


def test_metrics_wait_until_there_is_room_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = RunLogger(Config(iterations=30, run_dir=str(tmp_path)), 2, speaks=True)
    logger.start(0)
    disk = FullNowAndThen(tmp_path / "metrics.jsonl")
    logger._metrics.file = disk  # type: ignore[assignment]
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
    assert records_until(5, file) == [{"iteration": 3}]
    assert len(records_until(6, file)) == 2
