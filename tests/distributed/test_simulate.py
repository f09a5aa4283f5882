"""`dgt simulate` and `dgt train` with the same words: the same numbers at every evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.conftest import Said
from tests.distributed.runs import metrics


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "overrides",
    [
        ["weights=[3,1,4,1,5,9,2]", "topology=exponential", "strategy=II"],
        ["weights=lognormal", "nodes=6", "topology=tailored", "strategy=I", "local_steps=2"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_simulated_and_real_runs_agree_at_every_evaluation(
    overrides: list[str], dgt_here: Callable[..., Said], tmp_path: Path
) -> None:
    """Not bit by bit: ranks add up their neighbours' messages in another order than a sparse product does."""
    for command in ("train", "simulate"):
        said = dgt_here(command, *overrides, "seed=4", "iterations=50", f"run_dir={command}")
        assert said.code == 0, said.stderr
    real, twin = metrics(tmp_path / "train"), metrics(tmp_path / "simulate")
    assert len(real) == len(twin) == 18
    for ours, theirs in zip(twin, real, strict=True):
        assert list(ours) == list(theirs)
        assert (ours["iteration"], ours["bytes_sent"]) == (theirs["iteration"], theirs["bytes_sent"])
        for name in set(ours) - {"tracking_residual"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-10), (ours["iteration"], name)
        assert max(ours.get("tracking_residual", 0), theirs.get("tracking_residual", 0)) < 1e-12
    mine, its = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("simulate", "train"))
    assert mine.keys() - {"simulated"} == its.keys()
    assert (tmp_path / "simulate" / "config.yaml").read_text() == (
        tmp_path / "train" / "config.yaml"
    ).read_text().replace("run_dir: train", "run_dir: simulate")


def test_simulate_sweeps_and_says_what_it_cannot_do(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    said = dgt_here("simulate", "-m", "strategy=I,II", "topology=ring,grid", "iterations=6", "--json")
    rows = json.loads(said.stdout)
    assert [(row["strategy"], row["topology"]) for row in rows] == [
        ("I", "ring"), ("I", "grid"), ("II", "ring"), ("II", "grid"),
    ]  # fmt: skip
    assert len(list((tmp_path / "runs").iterdir())) == 4
    refused = dgt_here("simulate", "-m", "problem=least_squares,text")
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == "dgt: error: problem=text: dgt simulate knows least squares only; use dgt train\n"
    diverged = dgt_here("simulate", "lr=0.5", "run_dir=wild")
    assert diverged.code == 1
    assert "lr=0.5 is too large for this problem" in diverged.stderr.splitlines()[-1]
