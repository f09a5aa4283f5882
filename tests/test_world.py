"""Decisions about rank, device and backend, as pure functions: no GPU and no launcher needed."""

import pytest

from dgt.checks import ConfigError
from dgt.placement import Placement, choose_backend, choose_device, detect, refuse_missing_gpu, slurm_rendezvous

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "6", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "n[1-4]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Placement("alone")),
        (TORCHRUN, Placement("torchrun", 5, 8, 1, 4)),
        (SRUN, Placement("srun", 6, 7, 0, 1)),
        (SRUN | TORCHRUN, Placement("torchrun", 5, 8, 1, 4)),
        # inside salloc or a batch script: an allocation, but no step
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, Placement("alone")),
        # srun --pty bash: a step of one task
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Placement("alone")),
        # a launcher that does not say what is on this host
        ({"RANK": "1", "WORLD_SIZE": "2"}, Placement("torchrun", 1, 2, 0, 1)),
    ],
)
def test_launchers_are_told_apart(environ: dict, expected: Placement) -> None:
    assert detect(environ) == expected


def test_broken_launcher_variables_are_named() -> None:
    broken = [
        {"RANK": "zero", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "7"},
    ]
    for environ in broken:
        with pytest.raises(ConfigError, match="launcher's environment"):
            detect(environ)


@pytest.mark.parametrize(
    ("requested", "gpus", "expected"),
    [
        ("auto", [11, 12, 13], "nccl"),
        ("nccl", [11, 12, 13], "nccl"),
        ("gloo", [11, 12, 13], "gloo"),
        ("auto", [11, 11], "gloo"),  # two ranks on one GPU
        ("auto", [11, 0], "gloo"),  # a host without a GPU
        ("auto", [0], "gloo"),
    ],
)
def test_nccl_only_when_every_rank_has_its_own_gpu(requested: str, gpus: list[int], expected: str) -> None:
    assert choose_backend(requested, gpus) == expected


@pytest.mark.parametrize(("gpus", "words"), [([11, 0], "rank 1 has no GPU"), ([11, 12, 11], "rank 2 has a GPU shared")])
def test_impossible_nccl_is_refused(gpus: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_backend("nccl", gpus)


def test_device_follows_the_local_rank() -> None:
    assert [choose_device("auto", rank, 2) for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert choose_device("auto", 3, 0) == "cpu"
    assert choose_device("cpu", 1, 4) == "cpu"
    refuse_missing_gpu("auto", [11, 0])
    with pytest.raises(ConfigError, match="device=cuda: rank 1 has no GPU"):
        refuse_missing_gpu("cuda", [11, 0])


def test_slurm_steps_on_one_host_meet_on_loopback_with_a_port_of_their_own() -> None:
    one = {**SRUN, "SLURM_STEP_NUM_NODES": "1"}
    host, port = slurm_rendezvous(one)
    assert host == "127.0.0.1"
    assert 20000 <= port < 32000
    assert slurm_rendezvous({**one, "SLURM_STEP_ID": "1"})[1] != port
    assert slurm_rendezvous({**one, "SLURM_JOB_ID": "78"})[1] != port
