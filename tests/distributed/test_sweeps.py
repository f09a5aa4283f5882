"""`dgt train -m hydra/launcher=slurm` on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import until
from tests.distributed.ranks import DGT, command
from tests.distributed.runs import HELD, assert_identical, lines_of
from tests.distributed.slurm import SlurmCluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.heavy]

if shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None or os.geteuid() != 0:
    pytest.skip("needs root and Debian's slurm-wlm (launch/test.sh installs it)", allow_module_level=True)

SWEEP = [*DGT, "train", "-m", "weights=[1,2]", "eval_every=100"]
SLURM = ["hydra/launcher=slurm", "hydra.launcher.partition=main", "hydra.launcher.cpus_per_task=2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(nodes=2) as running:
        yield running


def results(summary: dict[str, Any]) -> dict[str, Any]:
    """Without where and how long."""
    final = {key: value for key, value in summary["final"].items() if key not in ("seconds", "evaluation_share")}
    return {key: value for key, value in summary.items() if key not in ("run_dir", "wall_seconds")} | {"final": final}


def first_job_in_training(sweep: Path) -> str:
    until(lambda: lines_of(sweep / "0-strategy_I" / "metrics.jsonl") >= 2)
    (pickled,) = (sweep / ".submitit").glob("*_0_submitted.pkl")
    return pickled.name.removesuffix("_submitted.pkl")


def test_a_sweep_of_jobs_is_the_local_sweep_also_when_one_of_them_is_queued_again(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    runs = ["strategy=I,II", "iterations=1000"]
    process = subprocess.Popen(
        [*SWEEP, *SLURM, *runs, *HELD, "run_dir=sweep", "--json"],
        cwd=tmp_path,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        job = first_job_in_training(tmp_path / "sweep")
        # what comes two minutes before the time is up, and when the job is preempted
        assert cluster.run("scancel", "--signal=USR2", job).returncode == 0
        stdout, stderr = process.communicate(timeout=200)
    finally:
        process.kill()
    # the result is there a moment before Slurm has seen the job off
    ended = cluster.wait_for_end(job)
    log = (tmp_path / "sweep" / ".submitit" / f"{job}_0_log.out").read_text()
    assert process.returncode == 0, stderr + log
    assert ended == [("COMPLETED", 1)], log
    assert log.count("queueing again") == 1
    assert log.count("iteration 0/1000") == 1, "it went on, and did not start anew"

    plain = command([*SWEEP, *runs, "--json"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    pairs = list(zip(json.loads(stdout), json.loads(plain.stdout), strict=True))
    assert [ours["strategy"] for ours, _ in pairs] == ["I", "II"]
    for ours, local in pairs:
        assert results(ours) == results(local)
        assert_identical(Path(ours["run_dir"]), tmp_path / local["run_dir"])


def test_a_failed_job_is_named_and_the_others_are_reported(cluster: SlurmCluster, tmp_path: Path) -> None:
    done = cluster.run(*SWEEP, *SLURM, "lr=0.02,50", "iterations=300", cwd=tmp_path, timeout=200)
    assert done.returncode == 1
    (top,) = (tmp_path / "runs").iterdir()
    (line, last) = [line for line in done.stderr.splitlines() if "error" in line]
    log = Path(line.rpartition("; log ")[2])
    assert line.startswith(
        f"dgt: error: run 1 (lr=50) failed as job {log.name.removesuffix('_0_log.out')}: the loss is"
    )
    assert last == "dgt: error: 1 of 2 runs failed"
    assert "lr=50 is too large" in log.read_text()
    assert done.stdout.splitlines()[-1].endswith(f" {top.resolve()}/0-lr_0.02")
    assert cluster.wait_for_end(log.name.removesuffix("_0_log.out")) == [("FAILED", 0)]
