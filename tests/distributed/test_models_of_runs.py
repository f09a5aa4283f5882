"""What comes out of a run: model.pt is the strategy's average of the nodes, best.pt that of the best evaluation."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.errors import LaunchError
from dgt.runs.layout import BEST, MODEL
from dgt.training.checkpoints.models import about_of
from tests.distributed.conftest import Said
from tests.distributed.ranks import command
from tests.distributed.runs import NOISY, commits, last_state, metrics, same, train
from tests.pages import EXAMPLES

pytestmark = pytest.mark.timeout(120)

SHORT = [*NOISY, "iterations=21", "eval_every=7", "problem.pause=0.001"]
FOUR = ["weights=[1,2,3,4]", "topology=ring", "iterations=60", "eval_every=3", "checkpoint.every=3"]
SLOW = [
    "problem=custom", "problem._target_=tests.distributed.slow_disk.SlowDisk", "weights=[1,2,3]", "topology=complete",
    "lr=0.05", "iterations=6", "eval_every=3", "checkpoint.every=100", "timeout=4", "problem.fsync=0.01",
]  # fmt: skip


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in found.items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


@pytest.mark.parametrize("strategy", ["I", "II"])
def test_the_model_is_the_weighted_mean_of_the_nodes(
    strategy: str, tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    """BatchNorm statistics too; and what is exported is what the checkpoint holds."""
    run = tmp_path / "r"
    train(run, *SHORT, f"strategy={strategy}")
    last, states = commits(run)[-1], [state["model"] for state in last_state(run)]
    shares = [0.25] * 4 if strategy == "I" else [0.1, 0.2, 0.3, 0.4]
    mean = {
        name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }
    model = loaded(run / MODEL)
    assert_close(model, mean)
    assert same(dict(model), dict(loaded(last.path / MODEL)))
    about = {"iteration": 21, "nodes": 4, "strategy": strategy}
    assert about_of(model) == {**about, "parameters": 210}

    assert not same(states[0], states[2]), "nodes differ, or the next lines would show nothing"
    for node in (0, 2):
        done = dgt_here("export", str(run), "--node", str(node), "--output", f"node-{node}.pt")
        assert done.stdout == f"node-{node}.pt: the model of node {node} at iteration 21 of {run}, 210 parameters\n"
        assert same(dict(loaded(tmp_path / f"node-{node}.pt")), states[node])
    dgt_here("export", str(run))
    assert same(dict(loaded(run / "exports" / "model-21.pt")), dict(model))
    for path in run.glob(f"checkpoints/*/{MODEL}"):
        path.unlink()
    dgt_here("export", str(run), "--output", "from_states.safetensors")
    from safetensors.torch import load_file

    assert_close(dict(sorted(load_file(tmp_path / "from_states.safetensors").items())), dict(sorted(mean.items())))


def test_statistics_are_measured_anew_as_the_problem_says_and_the_run_does_not_notice(tmp_path: Path) -> None:
    """Putting the average together draws numbers (dropout) and changes the model, and neither shows in the run."""
    target = "problem._target_=tests.distributed.problems.Recalibrated"
    train(tmp_path / "often", *SHORT, target, "checkpoint.every=2", "checkpoint.best=loss", "checkpoint.keep_last=9")
    train(tmp_path / "never", *SHORT, target, "checkpoint.keep_last=0")
    assert metrics(tmp_path / "often") == metrics(tmp_path / "never")
    model = loaded(tmp_path / "often" / MODEL)
    assert same(dict(model), dict(loaded(tmp_path / "never" / MODEL)))
    inputs = []
    for node in range(4):
        x = torch.randn(128, 8, generator=torch.Generator().manual_seed(node))
        inputs.append(torch.nn.functional.linear(x, model["0.weight"], model["0.bias"]))
    shares = [0.1, 0.2, 0.3, 0.4]
    mean = sum(share * values.mean(0) for share, values in zip(shares, inputs, strict=True))
    assert torch.allclose(model["1.running_mean"], mean, atol=1e-5)
    own = [state["model"]["1.running_mean"] for state in last_state(tmp_path / "often")]
    local = sum(share * values for share, values in zip(shares, own, strict=True))
    assert not torch.allclose(local, mean, atol=1e-3), "the nodes' own statistics are others"


def test_a_run_that_is_stopped_leaves_its_model(tmp_path: Path) -> None:
    run = tmp_path / "r"
    with pytest.raises(LaunchError, match="stopped by SIGTERM") as caught:
        train(run, *NOISY, "chaos=term", "chaos.iteration=25")
    assert caught.value.code == 75
    last = commits(run)[-1]
    assert about_of(loaded(run / MODEL))["iteration"] == last.step < 60
    assert same(dict(loaded(run / MODEL)), dict(loaded(last.path / MODEL)))


@pytest.mark.parametrize("best", ["consensus:max", "distance"])
def test_the_best_evaluation_is_kept_across_a_resume(best: str, tmp_path: Path) -> None:
    """Nodes are furthest apart at the start, so that the first is of before the resume; the second may be later."""
    run, words = tmp_path / "r", [*FOUR, f"checkpoint.best={best}", "checkpoint.keep_last=99"]
    train(run, *words, "iterations=33")
    before = (run / BEST).read_bytes()
    train(run, *words, "resume=auto")
    name, choose = (best.partition(":")[0], max if best.endswith("max") else min)
    row = choose(metrics(run), key=lambda row: row[name])
    found = json.loads((run / "summary.json").read_text())["best"]
    assert found == {"metric": name, "iteration": row["iteration"], "value": row[name]}
    state = loaded(run / BEST)
    assert {key: about_of(state)[key] for key in found} == found
    if row["iteration"] <= 33:
        assert (run / BEST).read_bytes() == before
    else:
        assert (run / BEST).read_bytes() != before
    for commit in commits(run):
        if commit.step == row["iteration"]:
            assert_close(state, loaded(commit.path / MODEL))


def test_a_metric_that_the_run_does_not_measure_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"checkpoint.best=accuracy: this run measures .*distance, .*loss") as caught:
        train(tmp_path / "r", *FOUR, "checkpoint.best=accuracy")
    assert caught.value.code == 2


@pytest.mark.parametrize(("in_fsync", "new"), [(5, False), (9, True)], ids=["in the checkpoint", "in the run"])
def test_a_kill_while_the_model_is_written_leaves_the_old_one_or_the_new_one(
    in_fsync: int, new: bool, tmp_path: Path
) -> None:
    """Rank 0 dies at the fsync of model.pt: before the checkpoint is committed nothing counts; after that the others
    end the run, and take the model from the checkpoint."""
    run = tmp_path / "r"
    run.mkdir()
    (run / MODEL).write_bytes(b"old")
    fault = [*SLOW, "problem.dies=0", f"problem.in_fsync={in_fsync}"]
    if new:
        train(run, *fault, "on_peer_loss=continue")
        (commit,) = commits(run)
        assert same(dict(loaded(run / MODEL)), dict(loaded(commit.path / MODEL)))
        assert json.loads((run / "summary.json").read_text())["final"]["iteration"] == 6
    else:
        with pytest.raises(LaunchError, match="rank 0 was killed"):
            train(run, *fault)
        assert commits(run) == []
        assert (run / MODEL).read_bytes() == b"old"


def test_the_example_loads_a_model_without_dgt(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    """2 x + 1, with some noise."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    done = dgt_here("train", "nodes=3", "problem._target_=my_line.Line", "lr=0.1", "eval_every=300", "run_dir=line")
    assert done.code == 0, done.stderr
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "dgt.py").write_text("raise ImportError('without dgt')")
    done = command([sys.executable, "load_model.py", "line/model.pt"], tmp_path, PYTHONPATH=str(tmp_path / "hidden"))
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"at x = 3: (\d\.\d+)\n", done.stdout)
    assert found, done.stdout
    assert float(found[1]) == pytest.approx(7, abs=0.1)
