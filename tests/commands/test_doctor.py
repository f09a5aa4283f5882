"""What the doctor says of machines that are not this one."""

from __future__ import annotations

import os

import pytest

from dgt.commands.doctor import examination as doctor
from dgt.commands.doctor.examination import BAD, GOOD, ODD, Finding
from dgt.exchange import shared
from dgt.processes import environment
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from tests.distributed.ranks import run_ranks


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (doctor.backends(True, True, 8), GOOD, ""),
        (doctor.backends(False, False, 0), BAD, "this PyTorch has no gloo"),
        (doctor.backends(True, False, 2), ODD, "copied through main memory"),
        (doctor.gpus(["NVIDIA H100"] * 8, {}), GOOD, ""),
        (doctor.gpus([], {"CUDA_VISIBLE_DEVICES": "3"}), BAD, "no GPU answers to these numbers"),
        (doctor.gpus([], {}), GOOD, ""),
        (doctor.gpus([], {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}), GOOD, ""),
        (doctor.cores(2, "8"), ODD, "set OMP_NUM_THREADS=1"),
        (doctor.cores(64, None), GOOD, ""),
        (
            doctor.interfaces({"lo": "127.0.0.1"}, "node1", "10.0.0.1", "ib0"),
            BAD,
            "GLOO_SOCKET_IFNAME=ib0: no such interface",
        ),
        (doctor.interfaces({"ib0": "10.0.0.1"}, "node1", "10.0.0.1", "ib0"), GOOD, ""),
        (doctor.interfaces({"eth0": "10.0.0.1"}, "node1", None, None), ODD, "node1 does not resolve"),
        (doctor.interfaces({"eth0": "10.0.0.1"}, "laptop", "127.0.1.1", None), ODD, "laptop resolves to 127.0.1.1"),
        (doctor.memory(64 * 2**20, 64 * 2**20), ODD, "--shm-size"),
        (doctor.memory(None, None), ODD, "use messages"),
        (doctor.memory(2**34, 2**33), GOOD, ""),
        (doctor.limits(64, -1), BAD, "too few open files to start 16 ranks: ulimit -n 141"),
        (doctor.limits(100, -1), ODD, "ulimit -n 141"),
        (doctor.limits(256, -1), GOOD, ""),
        (doctor.limits(256, -1, 64), BAD, "too few open files to start 64 ranks: ulimit -n 477"),
        (doctor.loopback(False), BAD, "ip link set lo up"),
        (doctor.launcher({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, Placement("alone")), GOOD, ""),
    ],
)
def test_plain_words_for_what_is_wrong(finding: list[Finding], verdict: str, words: str) -> None:
    (only,) = finding
    assert only.verdict == verdict
    assert words in only.advice
    assert bool(only.advice) == (verdict != GOOD)


def test_the_end_says_whether_training_will_run() -> None:
    good, bad = Finding("cores", "2"), Finding("backends", "none", BAD, "install it")
    assert doctor.text([good]).splitlines()[-1] == "all well: dgt train will run here"
    assert doctor.text([good, bad]).splitlines()[-1] == "wrong: backends"


def test_it_says_that_a_shell_in_a_job_of_several_nodes_uses_one() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    (found,) = doctor.launcher(job, Placement("alone"))
    assert found.found.endswith("starts ranks on this host; srun dgt train uses all nodes")


def test_cores_are_those_that_a_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert environment.usable_cores() == 1


class LittleMemory:
    """As in a container with --shm-size=1m."""

    def run(self, node: Node) -> str:
        create = shared.create
        shared.create = lambda like: create(like) if like.numel() < 1000 else None
        return doctor.TalkJob("auto").run(node)[0].way


@pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux on x86-64")
def test_little_shared_memory_is_told_from_none() -> None:
    """It said `messages`, beside the latency of the small ones in shared memory."""
    assert set(run_ranks(LittleMemory(), 2).values()) == {"shared memory for small messages only"}
