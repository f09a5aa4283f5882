"""Sinks: chosen by name or from outside, several at once, and never a reason for a run to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgt.config import Config
from dgt.config.compose import compose, expand
from dgt.config.fragment import overrides_of
from dgt.config.fragment import write as write_fragment
from dgt.config.loggers import LoggerConfig, names
from dgt.config.settings import setting
from dgt.errors import ConfigError
from dgt.runs import mirrors
from dgt.runs.logger import RunLogger
from dgt.runs.mirrors import Mirrors, check_logger
from dgt.runs.sink import RunInfo, Sink

HERE = f"{__name__}."


class Told(Sink):
    """Notes every call in a file."""

    @dataclass(slots=True, kw_only=True)
    class Settings:
        path: str = setting("told.jsonl", "where")
        limit: int = setting(1, "a number", low=0, high=5)

    def start(self, recorded_until: int) -> None:
        self._note("start", recorded_until)

    def record(self, iteration: int, values: Mapping[str, float], nodes: Any) -> None:
        self._note("record", [iteration, dict(values), nodes])

    def event(self, event: Mapping[str, Any]) -> None:
        self._note("event", [event["event"], event["iteration"]])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._note("finish", summary["final"]["iteration"])

    def close(self) -> None:
        self._note("close", None)

    def _note(self, call: str, what: Any) -> None:
        with Path(self.settings.path).open("a") as file:
            file.write(json.dumps([call, what]) + "\n")


class Broken(Told):
    """As a full disk, a server that is down, or a mistake in it."""

    def record(self, iteration: int, values: Mapping[str, float], nodes: Any) -> None:
        super().record(iteration, values, nodes)
        raise RuntimeError("the server is\ndown")


class Hangs(Sink):
    released = threading.Event()

    def start(self, recorded_until: int) -> None:
        self.released.wait(20)


class NoSink:
    pass


def run(config: Config, first: int = 0, last: int = 4, ends: bool = True) -> RunLogger:
    logger = RunLogger(config, 2, speaks=True)
    logger.start(first)
    for iteration in range(first, last + 1, 2):
        values = {"loss": 1.0 / (iteration + 1), "evaluation_share": 0.0, "bytes_sent": 8.0, "average_norm": 1.0}
        logger.record(iteration, {k: np.array([v]) for k, v in values.items()}, {"loss": np.ones(2)})
    if ends:
        logger.finish("nothing")
    else:
        logger.stopped(last, "asked to stop")
    return logger


def calls(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def config_of(tmp_path: Path, *overrides: str) -> Config:
    return compose([*overrides, f"run_dir={tmp_path / 'r'}", "iterations=4"])


def test_a_sink_from_outside_hears_of_everything(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"logger._target_={HERE}Told", f"logger.path={tmp_path / 'told'}")
    check_logger(config)
    run(config, last=2, ends=False)
    run(config, first=2, last=4)
    found = calls(tmp_path / "told")
    assert [call for call, _ in found] == (
        ["start", "record", "record", "event", "close", "start", "event", "record", "record", "finish", "close"]
    )
    assert found[1] == ["record", [0, {"loss": 1.0, "evaluation_share": 0.0, "bytes_sent": 8}, {"loss": [1.0, 1.0]}]]
    assert [what for call, what in found if call in ("start", "event", "finish")] == (
        [-1, ["stopped", 2], 2, ["resumed", 2], 4]
    )


def test_a_sink_that_fails_is_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, f"logger._target_={HERE}Broken", f"logger.path={tmp_path / 'told'}")
    run(config)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dgt: ")]
    assert len(said) == 1, said
    assert said[0].startswith(f"dgt: {HERE}Broken: the server is")
    assert said[0].endswith("down; the run goes on without it")
    assert [call for call, _ in calls(tmp_path / "told")] == ["start", "record"], "it is not called again"
    assert len(calls(tmp_path / "r" / "metrics.jsonl")) == 3
    assert (tmp_path / "r" / "summary.json").exists()


def test_a_sink_that_hangs_does_not_hold_up_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, f"logger._target_={HERE}Hangs", "timeout=1")
    began = time.monotonic()
    run(config)
    Hangs.released.set()
    assert time.monotonic() - began < 10
    assert "Hangs: does not answer; the run goes on without it" in capsys.readouterr().err


def test_calls_that_wait_for_a_slow_sink_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "MOST_WAITING", 5)
    Hangs.released.clear()
    said: list[str] = []
    logger = LoggerConfig(target=f"{HERE}Hangs")
    several = Mirrors(logger, RunInfo(Path("r"), {}, "A ring II", 10), said.append)
    several.start(-1)
    for iteration in range(20):
        several.record(iteration, {}, None)
    Hangs.released.set()
    several.close(5.0)
    assert said == [f"{HERE}Hangs: 5 calls wait for it; the run goes on without it"]


def test_several_are_chosen_by_a_list_and_swept_by_commas() -> None:
    config = compose(["logger=[jsonl,tensorboard]"])
    assert config.logger == LoggerConfig(names=["jsonl", "tensorboard"])
    assert config.to_dict()["logger"] == {"name": ["jsonl", "tensorboard"]}
    swept = [compose(words).logger.names for words in expand(["logger=jsonl,tensorboard,[wandb,tensorboard]"])]
    assert swept == [["jsonl"], ["tensorboard"], ["wandb", "tensorboard"]]
    assert compose(["logger=tensorboard"]).to_dict()["logger"] == {"name": "tensorboard"}
    assert Config.from_dict({"logger": {"name": "jsonl"}}).logger == Config().logger, "as earlier versions wrote it"
    assert "sink" not in names()
    assert {"jsonl", "progress", "tensorboard", "wandb", "mlflow"} <= set(names())


def test_each_sink_takes_the_settings_that_it_declares(tmp_path: Path) -> None:
    config = compose(["logger=[wandb,mlflow]", "logger.project=mine", "logger.experiment=ours"])
    (_, _, wandb), (_, _, mlflow) = config.logger.sinks()
    assert (wandb.project, wandb.entity, mlflow.experiment) == ("mine", None, "ours")
    assert Config.from_dict(config.to_dict()) == config
    words = overrides_of(config)
    assert compose(words) == config
    write_fragment(config, str(tmp_path))
    assert compose([f"hydra.searchpath={tmp_path}", "experiment=plan"]) == config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["logger=tensorbord"], "logger=tensorbord: did you mean tensorboard"),
        (["logger=[jsonl,tensorbord]"], "logger=tensorbord: did you mean tensorboard"),
        (["logger=[]"], "logger=: allowed: jsonl, mlflow"),
        (["logger=tensorboard", "logger.project=x"], "logger.project: logger=tensorboard has no such key"),
        (["logger=wandb", "logger.projct=x"], "logger.projct: .* did you mean logger.project"),
        (["logger=wandb", "logger.mode=onlin"], "logger.mode=onlin: did you mean online"),
        ([f"logger._target_={HERE}Told", "logger.limit=9"], "logger.limit=9: must be at least 0 and at most 5"),
        ([f"logger._target_={HERE}Told", "logger.limt=9"], "logger.limt: no such key; did you mean limit"),
        ([f"logger._target_={HERE}NoSink"], "NoSink: must be a class derived from dgt.runs.sink.Sink"),
        (["logger._target_=nowhere.Mine"], "logger._target_=nowhere.Mine: cannot import it"),
        (["logger._target_="], "logger._target_: give the class"),
    ],
)
def test_wrong_choices_are_told_in_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_logger(compose(overrides))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors.importlib.util, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow"):
        with pytest.raises(ConfigError, match=rf"logger={name}: not installed; pip install 'dgt\[{name}\]'"):
            check_logger(compose([f"logger={name}"]))
    check_logger(compose([]))


def test_nothing_is_imported_that_was_not_chosen() -> None:
    code = (
        "import sys; from dgt.config.compose import compose; from dgt.runs import logger, mirrors\n"
        "mirrors.check_logger(compose(['logger=[wandb,mlflow,tensorboard]']))\n"
        "print([name for name in ('wandb', 'mlflow', 'tensorboard') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.heavy
def test_a_run_on_ranks_reaches_all_sinks_and_goes_on_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B offline, MLflow and TensorBoard in the run directory; resumed runs keep the ids they have there."""
    pytest.importorskip("wandb")
    mlflow = pytest.importorskip("mlflow")
    words = ["weights=[1,2]", "eval_every=2", "run_dir=r", "logger=[wandb,mlflow,tensorboard]", "logger.mode=offline"]
    for more in (["iterations=2"], ["iterations=4", "resume=auto"]):
        line = [sys.executable, "-m", "dgt", "train", *words, *more]
        quiet = {**os.environ, "WANDB_SILENT": "true"}
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200, env=quiet)
        assert done.returncode == 0, done.stderr
        assert "goes on without it" not in done.stderr
    run_dir = tmp_path / "r"
    losses = [record["loss"] for record in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())]

    own = (run_dir / "wandb" / "run_id").read_text().strip()
    assert len(list((run_dir / "wandb").glob(f"offline-run-*-{own}/run-{own}.wandb"))) == 2, "one id, two starts"

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # whoever reads such a folder has to say so, too
    client = mlflow.MlflowClient((run_dir / "mlflow").as_uri())
    run_id = (run_dir / "mlflow" / "run_id").read_text().strip()
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run_id, "loss")] == (
        [(step, pytest.approx(loss)) for step, loss in zip((0, 2, 4), losses, strict=True)]
    )
    found = client.get_run(run_id)
    assert (found.info.status, found.data.params["weights.values"]) == ("FINISHED", "[1.0, 2.0]")
    assert found.data.tags["resumed.2"] == "resumed at iteration 2"

    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(run_dir / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [0, 2, 4]
    assert {"events/text_summary", "summary/text_summary"} <= set(board.Tags()["tensors"])
