"""The batch files, srun and interactive shells on a real Slurm of four nodes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.distributed.processes import commands_with, until
from tests.distributed.ranks import DGT, command
from tests.distributed.runs import HELD, assert_identical, metrics
from tests.distributed.slurm import SlurmCluster, free_ports

pytestmark = [pytest.mark.timeout(400), pytest.mark.heavy]

if shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None or os.geteuid() != 0:
    pytest.skip("needs root and Debian's slurm-wlm (launch/test.sh installs it)", allow_module_level=True)

BATCH = Path(__file__).parents[2] / "launch" / "slurm"
SHORT = ["train", "weights=[1,2,3,4]", "topology=ring", "iterations=30"]
EIGHT = ["weights=[1,2,3,4,5,6,7,8]", "topology=exponential", "eval_every=100"]
LONG = [*EIGHT, "iterations=600"]
ENDLESS = [*EIGHT, "iterations=1000000"]
SWEEP = ["strategy=I,II", "topology=ring,grid", "weights=[1,2,3,4]", "iterations=30"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(nodes=4) as running:
        yield running


@dataclass
class Batch:
    """One submitted batch file."""

    cluster: SlurmCluster
    job: str
    cwd: Path

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.cwd.glob("*.log")))

    def await_line(self, words: str) -> None:
        until(lambda: words in self.log, lambda: f"never said {words}:\n{self.log}")


def submit(cluster: SlurmCluster, cwd: Path, file: str, *arguments: str, options: tuple[str, ...] = ()) -> Batch:
    """From a directory that is not the repository's, with the variables at the top of the file."""
    cwd.mkdir()
    variables = {"VENV": sys.prefix, "RANKS_PER_NODE": "2", "MAX_RESTARTS": "1", "OMP_NUM_THREADS": "1"}
    spread = options or ("--nodes=4", "--cpus-per-task=1")
    tasks = ["--ntasks-per-node=2"] if file == "srun.sbatch" else []
    return Batch(cluster, cluster.submit(*spread, *tasks, str(BATCH / file), *arguments, cwd=cwd, **variables), cwd)


@pytest.fixture(scope="module")
def requeued(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    """Eight ranks on four nodes with each launcher, interrupted: Slurm starts them again while the other tests run."""
    top = tmp_path_factory.mktemp("requeued")

    def preempt(job: str) -> None:
        urgent = cluster.submit("-p", "urgent", "-N4", "--exclusive", "--wrap", "sleep 1", cwd=top)
        assert cluster.wait_for_end(urgent) == [("COMPLETED", 0)]  # or it would preempt the next job too

    def warn(job: str) -> None:
        """What --signal=B:USR1@120 does two minutes before the time is up."""
        cluster.run("scancel", "--batch", "--signal=USR1", job).check_returncode()

    jobs = []
    for name, interrupt in {"srun": preempt, "torchrun": warn}.items():
        job = submit(cluster, top / name, f"{name}.sbatch", *LONG, *HELD)
        jobs.append(job)
        job.await_line("iteration 100/600")
        interrupt(job.job)
    return jobs


@pytest.mark.usefixtures("requeued")
def test_an_array_is_a_sweep_and_scancel_leaves_no_process(cluster: SlurmCluster, tmp_path: Path) -> None:
    four, two = ("weights=[1,2,3,4]",), ("--nodes=2", "--cpus-per-task=1")
    cancelled = submit(cluster, tmp_path / "cancelled", "torchrun.sbatch", *ENDLESS, *four, options=two)
    fault = ["chaos=not_a_number", "chaos.iteration=9"]
    failing = submit(cluster, tmp_path / "failing", "srun.sbatch", *ENDLESS, *four, *fault, options=two)
    array = submit(cluster, tmp_path / "an array", "array.sbatch", *SWEEP, options=("--array=0-3", "--cpus-per-task=1"))
    small = ("--nodes=1", "--cpus-per-task=1")
    refused = submit(cluster, tmp_path / "refused", "torchrun.sbatch", "weights=[1,2,3]", options=small)

    cancelled.await_line("iteration 0/1000000")
    its_run = f"run_dir=runs/slurm-{cancelled.job} "
    assert commands_with(its_run), "the check below can fail"
    assert cluster.run("scancel", cancelled.job).returncode == 0
    assert cluster.wait_for_end(cancelled.job) == [("CANCELLED", 0)]
    until(lambda: not commands_with(its_run), lambda: commands_with(its_run), 20)
    assert "dgt: stopped by SIGTERM" in cancelled.log, "and what was done is saved"

    assert cluster.wait_for_end(failing.job) == [("FAILED", 0)]
    last = failing.log.splitlines()[-1]
    assert last.startswith("first: node ")
    assert "the gradient is not finite at iteration 9" in last, failing.log

    assert cluster.wait_for_end(refused.job) == [("FAILED", 0)]
    assert refused.log.splitlines()[-1].startswith("dgt: error: world size 2: this network has 3 nodes"), refused.log

    assert cluster.wait_for_end(array.job) == [("COMPLETED", 0)] * 4, array.log
    found = sorted(path.parent for path in array.cwd.glob("runs/*/summary.json"))
    assert [path.name for path in found] == [f"slurm-{array.job}-{number}" for number in range(4)], array.log
    one = command([*DGT, "train", "strategy=II", "topology=ring", *SWEEP[2:], "run_dir=one"], tmp_path)
    assert one.returncode == 0, one.stderr
    assert metrics(found[2]) == metrics(tmp_path / "one")


def test_a_warning_that_comes_before_the_ranks_listen_is_repeated(cluster: SlurmCluster, tmp_path: Path) -> None:
    """torchrun ignores it while it starts: the job ran on into its time limit."""
    port = free_ports(1)
    small = ("--nodes=1", "--cpus-per-task=1", f"--export=ALL,MASTER_PORT={port}")
    job = submit(cluster, tmp_path / "early", "torchrun.sbatch", *ENDLESS, "weights=[1,2]", options=small)
    until(lambda: any(f":{port} " in line for line in commands_with(f"slurm-{job.job} ")), lambda: job.log)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job).check_returncode()
    job.await_line("queued again")
    until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job.job).stdout, lambda: job.log)
    cluster.run("scancel", job.job).check_returncode()
    assert cluster.wait_for_end(job.job) == [("CANCELLED", 1)]


def test_shells_start_ranks_and_srun_tasks_are_ranks_also_inside_an_allocation(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    dgt = " ".join(DGT)
    short = " ".join(word.replace("[", "'[").replace("]", "]'") for word in SHORT)
    inside = (
        f"{dgt} {short} run_dir=shell && srun {dgt} {short} run_dir=ranks && ! srun -n3 {dgt} {short} && "
        f"srun -n2 --ntasks-per-node=1 {dgt} doctor"
    )
    allocated = cluster.run("salloc", "-Q", "-N2", "-n4", "bash", "-c", inside, cwd=tmp_path, timeout=240)
    assert allocated.returncode == 0, allocated.stderr
    assert allocated.stderr.count("dgt: error: world size 3: this network has 4 nodes") == 1
    seen = re.search(r"launcher +\S+: srun, 2 ranks, in Slurm job \d+ \(2 nodes: n\[\S+\]\)", allocated.stdout)
    assert seen is not None, allocated.stdout
    assert len(re.findall(r"exchange .* us, .* GB/s each way", allocated.stdout)) == 1
    # the shell of an interactive step has every variable of a rank; only task 0 has the terminal
    typed = f"[ $SLURM_PROCID = 0 ] || exit 0; {dgt} {short} run_dir=interactive"
    code, said = at_a_terminal(cluster, tmp_path, "srun", "-n4", "--pty", "bash", "-c", typed)
    assert code == 0, said
    plain = command([*DGT, *SHORT, "run_dir=plain"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    for name in ("shell", "ranks", "interactive"):
        assert metrics(tmp_path / name) == metrics(tmp_path / "plain")


def test_batch_files_stop_at_the_warning_and_go_on_bit_by_bit_after_requeueing(
    cluster: SlurmCluster, requeued: list[Batch], tmp_path: Path
) -> None:
    """They reach the result of `dgt train`. The last test of this file, as Slurm lets requeued jobs wait."""
    plain = command([*DGT, "train", *LONG, "run_dir=plain"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    for job in requeued:
        job.await_line("out of time: saved, and queued again")
        assert cluster.wait_for_end(job.job) == [("COMPLETED", 1)], job.log
        assert job.log.count("iteration 100/600") == 1, "it went on, and did not start anew"
        assert "frame #" not in job.log.rpartition("queued again")[2], "no trace of C++ at the end of a good job"
        assert_identical(job.cwd / "runs" / f"slurm-{job.job}", tmp_path / "plain")


def at_a_terminal(cluster: SlurmCluster, cwd: Path, *words: str) -> tuple[int, str]:
    """Run a command as if typed; returns its exit code and what it said."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(words[0], words, cluster.environment)
    said = b""
    with contextlib.suppress(OSError):  # when the other end is closed
        while more := os.read(terminal, 4096):
            said += more
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode(errors="replace")
