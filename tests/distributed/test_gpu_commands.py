"""`dgt train`, `dgt bench`, checkpoints that move between kinds of devices, on GPUs that are not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dgt.commands.bench import measuring
from dgt.launching import launch
from tests.distributed.conftest import Said
from tests.fake_cuda.ranks import OnFakeGpus

pytestmark = pytest.mark.timeout(180)
SMALL = ["problem.width=16", "problem.layers=1", "problem.context=16", "problem.batch=4"]
MODEL = ["problem=text", "nodes=2", "eval_every=3", "seed=1", *SMALL]


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether ranks of the launcher have GPUs."""

    def choose(there: bool) -> None:
        def start(job: Any, nodes: int, options: Any) -> Any:
            return real(OnFakeGpus(job) if there else job, nodes, options)

        monkeypatch.setattr(launch, "start_ranks", start)
        monkeypatch.setattr(measuring, "start_ranks", start)

    real = launch.start_ranks
    return choose


def loss(folder: str) -> float:
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["loss"])


def test_a_run_trains_on_gpus_and_goes_on_without_them_and_back(
    dgt_here: Callable[..., Said], with_gpus: Callable[[bool], None], tmp_path: Path
) -> None:
    """Once, a checkpoint of the one was refused on the other for want of the GPU's random numbers."""

    def train(gpus: bool, *more: str) -> None:
        with_gpus(gpus)
        device = "cuda" if gpus else "cpu"
        said = dgt_here("train", *MODEL, f"device={device}", "algorithm.base=adamw", "bucket_mb=0.01", *more)
        assert not said.code, said

    train(True, "iterations=3", "run_dir=a")
    train(False, "iterations=6", "run_dir=a", "resume=auto")
    train(True, "iterations=9", "run_dir=a", "resume=auto")
    train(False, "iterations=9", "run_dir=b")
    assert loss("a") == pytest.approx(loss("b"), rel=1e-4)


def test_the_benchmark_runs_on_gpus(dgt_here: Callable[..., Said], with_gpus: Callable[[bool], None]) -> None:
    with_gpus(True)
    said = dgt_here("bench", "preset=mlp", "nodes=4", "variants=[compute,messages]", "rounds=1", "--json")
    assert not said.code, said
    assert "messages" in said.stdout


def test_gpus_are_examined_on_gpus_only(dgt_here: Callable[..., Said]) -> None:
    said = dgt_here("doctor", "gpu")
    assert said.code == 2
    assert "0 GPUs here, 2 at least" in said.stderr
