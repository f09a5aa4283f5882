"""model.pt and best.pt: which metric is better which way, and what becomes of them on a disk that is full or slow."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.config import Config
from dgt.config.sections import CheckpointConfig
from dgt.errors import ConfigError
from dgt.runs.layout import BEST, MODEL
from dgt.training import keeping
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints.files import Writer, committed
from dgt.training.checkpoints.models import ModelState, read_about, with_about, write_model
from dgt.training.keeping import ModelFile, Models, direction
from tests.distributed.processes import until


def model(number: int, **about: Any) -> ModelState:
    return with_about(OrderedDict(w=torch.full((3,), float(number))), {"iteration": number, **about})


def test_known_metrics_know_their_direction_and_others_say_it() -> None:
    assert direction("accuracy") == ("accuracy", True)
    assert direction("average_test_loss") == ("average_test_loss", False)
    assert direction("slope:max") == ("slope", True)
    assert direction("accuracy:min") == ("accuracy", False)
    for word, said in {
        "acuracy": r"did you mean accuracy\? say which way is better, checkpoint.best=acuracy:max or acuracy:min",
        "consensus": "checkpoint.best=consensus: say which way is better",
        "slope:up": "must be METRIC, METRIC:max or METRIC:min",
        ":max": "must be METRIC, METRIC:max or METRIC:min",
    }.items():
        with pytest.raises(ConfigError, match=said):
            direction(word)


def test_a_slow_disk_gets_the_newest_and_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, written = threading.Event(), []

    def slowly(path: Path, state: ModelState) -> None:
        assert goes_on.wait(20)
        written.append(int(state["w"][0]))
        write_model(path, state)

    monkeypatch.setattr(keeping, "write_model", slowly)
    file = ModelFile(tmp_path / BEST, print)
    for number in (1, 2, 3):
        file.put(model(number))
        until(lambda: file._next is None) if number == 1 else None
    assert file.newest == {"iteration": 3}
    goes_on.set()
    until(lambda: not file.busy)
    assert written == [1, 3], "2 waited, and 3 is newer"
    assert file.about == read_about(tmp_path / BEST) == {"iteration": 3}


def test_a_full_disk_is_one_warning_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    file = ModelFile(tmp_path / MODEL, said.append)
    file.put(model(1))
    until(lambda: not file.busy)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for number in (2, 3):
        file.put(model(number))
        until(lambda: not file.busy)
    assert said == ["model.pt of iteration 2 cannot be written (No space left on device); the run goes on"]
    assert file.newest == read_about(tmp_path / MODEL) == {"iteration": 1}
    assert [path.name for path in tmp_path.iterdir()] == [MODEL], "no drafts are left"


def test_a_checkpoint_without_room_for_the_average_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the ranks are what a run goes on from."""
    real, said = checkpoint.write_durably, []

    def full(path: Path, *more: Any, **options: Any) -> None:
        if path.name == MODEL:
            path.with_name(path.name + ".part").touch()
            raise checkpoint.no_space()
        real(path, *more, **options)

    monkeypatch.setattr(checkpoint, "write_durably", full)
    writer = Writer(tmp_path, 0, 1, "abcd1234", 1.0, {}, patience=5, say=said.append)
    for step in (10, 20):
        writer.save(step, {"w": torch.ones(3)}, model(step))
        assert writer.wait_for_commit(step)
        writer.finish()
    assert said == ["checkpoint of iteration 10: model.pt cannot be written (No space left on device)"]
    assert [(commit.step, commit.model) for commit in committed(tmp_path)[0]] == [(10, None), (20, None)]
    assert not list(tmp_path.rglob(f"{MODEL}*"))


def models(run: Path, best: str | None = "accuracy", said: list[str] | None = None) -> Models:
    config = Config(checkpoint=CheckpointConfig(best=best), run_dir=str(run))
    return Models(config, (said if said is not None else []).append)


def known(of: Models) -> dict[str, Any]:
    return of._best.newest


def test_the_best_of_an_earlier_start_is_that_of_its_file(tmp_path: Path) -> None:
    about = {"iteration": 30, "metric": "accuracy", "value": 0.5, "nodes": 4}
    write_model(tmp_path / BEST, with_about(model(30), about))
    said: list[str] = []
    for first, best, expected in ((40, "accuracy", about), (0, "accuracy", {}), (40, "loss", {})):
        found = models(tmp_path, best, said)
        found.start(first)
        assert known(found) == expected
    assert said == ["best.pt was kept by accuracy: the best by loss is looked for anew"]
    assert models(tmp_path).summary() == {"best": {"metric": "accuracy", "iteration": 30, "value": 0.5}}
    assert models(tmp_path / "none").summary() == {"best": None}
    assert models(tmp_path, best=None).summary() == {}
    (tmp_path / BEST).write_bytes(b"nonsense")
    found = models(tmp_path)
    found.start(40)
    assert known(found) == {}


def test_another_runs_best_comes_along_if_this_one_has_come_so_far(tmp_path: Path) -> None:
    about = {"iteration": 30, "metric": "accuracy", "value": 0.5}
    write_model(tmp_path / "old" / BEST, with_about(model(30), about))
    for first, expected in ((20, {}), (40, about)):
        found = models(tmp_path / str(first))
        found.start(first, tmp_path / "old" / "metrics.jsonl")
        assert known(found) == expected == read_about(tmp_path / str(first) / BEST)
