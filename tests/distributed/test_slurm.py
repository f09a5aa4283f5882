"""`srun dgt train` on a real Slurm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.distributed.ranks import DGT, command
from tests.distributed.slurm import SlurmCluster
from tests.distributed.test_commands import records

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]

if shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None or os.geteuid() != 0:
    pytest.skip("needs root and Debian's slurm-wlm (launch/test.sh installs it)", allow_module_level=True)

ARGUMENTS = ["train", "weights=[1,2,3,4]", "topology=ring", "iterations=30"]


def test_srun_tasks_are_the_ranks_and_write_the_same_metrics(tmp_path: Path) -> None:
    with SlurmCluster(nodes=2) as cluster:
        one_host = cluster.run("srun", "-N1", "-n4", *DGT, *ARGUMENTS, "run_dir=one_host", cwd=tmp_path, timeout=120)
        two_hosts = cluster.run("srun", "-N2", "-n4", *DGT, *ARGUMENTS, "run_dir=two_hosts", cwd=tmp_path, timeout=120)
        wrong = cluster.run("srun", "-n3", *DGT, *ARGUMENTS, cwd=tmp_path, timeout=120)
        # one task is a shell like any other: it starts the ranks itself
        inside = cluster.run("srun", "-n1", *DGT, *ARGUMENTS, "run_dir=inside", cwd=tmp_path, timeout=120)
    assert one_host.returncode == 0, one_host.stderr
    assert two_hosts.returncode == 0, two_hosts.stderr
    assert inside.returncode == 0, inside.stderr
    assert wrong.returncode == 2
    assert wrong.stderr.count("dgt: error: world size 3: this network has 4 nodes") == 1
    plain = command([*DGT, *ARGUMENTS, "run_dir=plain"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    for name in ("one_host", "two_hosts", "inside"):
        assert records(tmp_path / name) == records(tmp_path / "plain")
