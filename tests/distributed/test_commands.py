"""The commands as a user types them: real processes, real signals, real exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.distributed.conftest import Said
from tests.distributed.processes import all_end, descendants
from tests.distributed.ranks import DGT, TORCHRUN, command
from tests.distributed.runs import metrics, start_long_run, told

pytestmark = pytest.mark.timeout(240)


@pytest.mark.heavy
def test_torchrun_and_dgt_write_identical_metrics(tmp_path: Path) -> None:
    arguments = ["train", "weights=[3,1,4,1,5]", "topology=exponential", "strategy=II"]
    ours = command([*DGT, *arguments, "run_dir=ours"], tmp_path)
    assert ours.returncode == 0, ours.stderr
    theirs = command([*TORCHRUN, "--nproc-per-node", "5", "-m", "dgt", *arguments, "run_dir=theirs"], tmp_path, 180)
    assert theirs.returncode == 0, theirs.stderr
    assert metrics(tmp_path / "ours") == metrics(tmp_path / "theirs")
    assert len(metrics(tmp_path / "ours")) == 101
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        ".checkpointed",
        "checkpoints",
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "model.pt",
        "network.json",
        "nodes.jsonl",
        "summary.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    assert ours.stdout.replace("ours", "theirs") == theirs.stdout
    assert theirs.stderr.count("iteration 0/300") == 1, "only rank 0 speaks"


def test_a_run_directory_holds_config_metrics_and_summary(tmp_path: Path) -> None:
    done = command([*DGT, "train", "weights=[1,2,3]", "iterations=7", "eval_every=2", "logger=tensorboard"], tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert done.stdout.endswith(f"run directory  runs/{run.name}\n")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["weights"]["values"] == [1.0, 2.0, 3.0]
    assert "path" not in config["weights"], "what is unset is left out"
    assert config["strategy"] == {"name": "II"}
    rows = metrics(run)
    assert [row["iteration"] for row in rows] == [0, 2, 4, 6, 7]
    assert set(rows[-1]) == {
        "iteration", "loss", "grad_norm", "distance", "consensus", "tracking_residual", "bytes_sent",
    }  # fmt: skip
    # a ring of three: two neighbours, one message of z and y each, ten doubles; handshake 2 doubles
    assert rows[-1]["bytes_sent"] == 3 * 2 * (7 * 2 * 10 * 8 + 2 * 8)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final"]["iteration"] == 7
    assert list((run / "tensorboard").iterdir())


def test_a_sweep_makes_one_run_directory_per_combination(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("train", "-m", "strategy=I,II", "topology=ring,star", "nodes=3", "weights=uniform", "iterations=3")
    assert done.code == 0, done.stderr
    runs = [yaml.safe_load((run / "config.yaml").read_text()) for run in (tmp_path / "runs").iterdir()]
    assert {(run["strategy"]["name"], run["topology"]["name"]) for run in runs} == {
        ("I", "ring"), ("I", "star"), ("II", "ring"), ("II", "star"),
    }  # fmt: skip
    assert done.stdout.count("runs/") == 4, "a row each"


def test_json_output_is_json_and_nothing_else(tmp_path: Path) -> None:
    done = command([*DGT, "train", "nodes=2", "weights=uniform", "iterations=2", "--json"], tmp_path)
    assert json.loads(done.stdout)["final"]["iteration"] == 2


def test_gaps_as_json_is_a_list_of_cells(dgt_here) -> None:
    cells = json.loads(dgt_here("gaps", "--json").stdout)
    assert {"nodes": 16, "topology": "ring", "weights": "uniform"}.items() <= cells[1].items()
    assert cells[1]["gap"] == pytest.approx(0.0533, abs=1e-4)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("strategy=I", "ranks disagree on strategy: II on ranks 0, 1; I on rank 2"),
        ("lr=fast", "lr=fast: must be a number above 0, or auto (on rank 2)"),
    ],
)
def test_ranks_started_differently_end_with_one_line(tmp_path: Path, odd: str, words: str) -> None:
    """Every rank is its own command here, as on a cluster where one host has an old script."""
    script = 'if [ "$RANK" = 2 ]; then exec "$0" -m dgt train "$@" ODD; else exec "$0" -m dgt train "$@"; fi'.replace(
        "ODD", odd
    )
    base = ["nodes=3", "weights=[1,1,1]", "iterations=5"]
    done = command(
        [*TORCHRUN, "--nproc-per-node", "3", "--no-python", "bash", "-c", script, DGT[0], *base], tmp_path, 90
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.startswith("dgt: error: ")]
    assert done.returncode != 0
    assert len(said) == 1
    assert words in said[0]


def test_divergence_is_told_once_and_keeps_what_was_measured(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("train", "lr=50", "iterations=3000", "eval_every=100", "nodes=3", "weights=uniform", "run_dir=r")
    assert done.code == 1
    (line,) = told(done.stderr)
    assert re.match(r"dgt: error: the loss is not finite at iteration \d+: lr=50 is too large", line)
    assert metrics(tmp_path / "r")[0]["iteration"] == 0


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    line = f"set -o pipefail; {' '.join(DGT)} gaps --json | true"
    done = command(["bash", "-c", line], tmp_path)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def start_sixteen(tmp_path: Path, *overrides: str) -> tuple[subprocess.Popen[str], set[int]]:
    process = start_long_run(tmp_path / "long", "weights=A", *overrides)
    pids = descendants(process.pid)
    assert len(pids) >= 16
    return process, pids


@pytest.mark.heavy
@pytest.mark.parametrize("whom", ["terminal", "launcher only"])
def test_ctrl_c_ends_a_run_without_checkpoints_quietly(tmp_path: Path, whom: str) -> None:
    process, pids = start_sixteen(tmp_path, "checkpoint.keep_last=0")
    if whom == "terminal":
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole foreground group
    else:
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told(stderr) == ["dgt: interrupted; 16 ranks stopped"]
    all_end(pids)


@pytest.mark.heavy
@pytest.mark.parametrize("seconds", [3.0, 6.0])
def test_ctrl_c_during_start_up_is_quiet_too(tmp_path: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [*DGT, "train", "weights=A", "iterations=10000000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(seconds)
    pids = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # before our first line Python's own handler answers
    assert "forkserver" not in stderr
    assert "SignalException" not in stderr
    all_end(pids)


@pytest.mark.heavy
def test_no_rank_outlives_a_killed_launcher(tmp_path: Path) -> None:
    process, pids = start_sixteen(tmp_path)
    meetings = set(Path(tempfile.gettempdir()).glob("dgt-*/rendezvous"))
    assert meetings
    process.kill()
    process.communicate(timeout=60)
    all_end(pids)
    # one of them was this run's; others may belong to runs of somebody else
    assert any(not meeting.exists() for meeting in meetings), "nothing is left in the temporary directory"


@pytest.mark.heavy
def test_a_killed_rank_ends_the_run_with_its_name(tmp_path: Path) -> None:
    process, pids = start_sixteen(tmp_path)
    ranks = sorted(pid for pid in pids if len(descendants(pid)) == 0)
    os.kill(ranks[len(ranks) // 2], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = told(stderr)
    assert re.match(r"dgt: error: (node \d+: neighbour \d+ is gone|rank \d+ was killed \(SIGKILL\))", line)
    all_end(pids)


def test_compare_writes_csv_table_and_figure(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("compare", "weights=[1,2,3,4]", "topology=ring,star", "seeds=3", "iterations=30", "run_dir=c")
    assert done.code == 0, done.stderr
    lines = (tmp_path / "c" / "compare.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 3 * 11
    assert lines[0].startswith("weights,topology,strategy,seed,iteration,")
    assert "Strategy II is at or below Strategy I in" in done.stdout
    for name in ("compare.png", "compare.pdf"):
        assert (tmp_path / "c" / "figures" / name).stat().st_size > 5000
    assert len(yaml.safe_load((tmp_path / "c" / "config.yaml").read_text())["cells"]) == 4


def test_options_may_stand_between_overrides(dgt_here) -> None:
    said = dgt_here("gaps", "laziness=0.5", "--json", "topology.seed=3")
    assert json.loads(said.stdout)[0]["gap"] == pytest.approx(0.0245, abs=1e-4)


@pytest.mark.heavy
def test_64_ranks_start_and_train(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("train", "weights=D", "topology=tailored", "iterations=3", "run_dir=d")
    assert done.code == 0, done.stderr
    assert json.loads((tmp_path / "d" / "summary.json").read_text())["nodes"] == 64


def test_help_lists_choices_and_settings(dgt_here) -> None:
    for name in ("train", "compare", "gaps"):
        assert "example: dgt" in dgt_here(name, "--help").stdout
    text = dgt_here("train", "--help").stdout
    for word in ("tailored", "gradient_tracking", "eval_every", "topology.avg_degree", "uniform"):
        assert word in text
