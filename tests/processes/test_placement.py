"""Decisions about rank, device and backend, as pure functions: no GPU and no launcher needed."""

import pytest

from dgt.errors import ConfigError, SharedError
from dgt.processes import environment, grouping
from dgt.processes.placement import (  # fmt: skip
    Placement,
    choose_backend,
    choose_device,
    detect,
    explain_backend,
    first_host,
    own_slice,
    ranks_of_host,
    refuse_missing_gpu,
    slurm_rendezvous,
    threads_per_rank,
)

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


def test_a_terminal_tells_an_interactive_shell_of_several_tasks_from_a_rank() -> None:
    """`srun -n 7 --pty bash` has all variables of a rank, and so has `srun -n 7 dgt train` typed into that shell."""
    shell = {**SRUN, "SLURM_PTY_PORT": "40000"}
    assert detect(shell, has_terminal=True) == Placement("alone")
    assert detect(shell, has_terminal=False).launcher == "srun"
    started_there = {**shell, **TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    assert detect(started_there, has_terminal=True).launcher == "torchrun"
    assert detect(SRUN, has_terminal=True).launcher == "srun"  # ssh -t host srun ...: srun passes the terminal on


@pytest.mark.parametrize(
    ("groups", "tasks", "refused"),
    [("1", "4", True), ("4", "4", False), ("1", "1", False)],
)
def test_a_torchrun_per_task_is_refused(groups: str, tasks: str, refused: bool) -> None:
    nested = {**SRUN, "SLURM_STEP_NUM_TASKS": tasks, **TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": groups}
    if refused:
        with pytest.raises(ConfigError, match=r"^srun started 4 tasks, and each of them a torchrun of its own"):
            detect(nested)
    else:
        assert detect(nested).launcher == "torchrun"


def test_a_torchrun_inside_torchrun_is_refused() -> None:
    """Each trained a network of its own, all of them the same."""
    inner = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    with pytest.raises(ConfigError, match=r"^torchrun started 8 processes, and each of them a torchrun of its own"):
        detect(inner, launchers=inner)
    assert detect(inner, launchers={"RANK": "0", "WORLD_SIZE": "2"}).launcher == "torchrun", "a cluster's own variables"


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
        ("auto", [-11, -12], "gloo"),  # MIG slices
    ],
)
def test_nccl_only_when_every_rank_has_its_own_gpu(requested: str, gpus: list[int], expected: str) -> None:
    assert choose_backend(requested, gpus) == expected


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([11, 0], "rank 1 has no GPU"),
        ([11, 12, 11], "3 ranks share 2 GPUs, .* rank 2"),
        ([11, -12], "rank 1 has a MIG slice"),
    ],
)
def test_impossible_nccl_is_refused(gpus: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_backend("nccl", gpus)


@pytest.mark.parametrize(
    ("requested", "gpus", "words"),
    [
        ("auto", [11, 11, 12, 12], "4 ranks share 2 GPUs"),
        ("auto", [11, 0], "rank 1 has no GPU"),
        ("auto", [-11, -12], "rank 0 has a MIG slice of a GPU"),
        ("auto", [11, 12], ""),
        ("auto", [0, 0], ""),  # nobody expects nccl
        ("gloo", [11, 11], ""),  # asked for
    ],
)
def test_gloo_in_place_of_nccl_is_explained(requested: str, gpus: list[int], words: str) -> None:
    said = explain_backend(requested, gpus)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    assert ("pinned memory" in said) == bool(words)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b", "MIG-a"]),
        ("MIG-GPU-7/1/0", ["MIG-GPU-7/1/0"] * 3),  # one per task, as Slurm binds them
        ("0,1", [None] * 3),
        ("GPU-1,GPU-2", [None] * 3),
        ("", [None] * 3),
        (None, [None] * 3),
    ],
)
def test_every_rank_takes_a_slice_of_its_own(visible: str | None, expected: list[str | None]) -> None:
    assert [own_slice(visible, rank) for rank in range(3)] == expected


@pytest.mark.parametrize(
    ("visible_to_each_task", "devices"),
    [
        (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),  # all tasks see all GPUs
        (1, ["cuda:0"] * 4),  # --gpus-per-task=1: each sees its own only
        (2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),  # fewer GPUs than ranks
        (0, ["cpu"] * 4),
    ],
)
def test_per_task_binding_maps_to_devices(visible_to_each_task: int, devices: list[str]) -> None:
    assert [choose_device("auto", rank, visible_to_each_task) for rank in range(4)] == devices


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


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-4]", "n1"),
        ("n[01,03-07]", "n01"),
        ("gpu-a7,n[1-2]", "gpu-a7"),
        ("rack[2-3]n[08-09],x", "rack2n08"),
    ],
)
def test_the_first_of_slurms_hosts(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_container_without_scontrol_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apptainer's have none; the name of the first host is enough where it resolves."""
    monkeypatch.setenv("PATH", "")
    assert slurm_rendezvous({**SRUN, "SLURM_STEP_NODELIST": "localhost,n2"})[0] == "localhost"
    with pytest.raises(ConfigError, match=r"nowhere\.invalid, does not resolve, .* set MASTER_ADDR"):
        slurm_rendezvous({**SRUN, "SLURM_STEP_NODELIST": "nowhere.invalid,n2"})


def test_a_host_and_port_of_the_users_count() -> None:
    assert slurm_rendezvous({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "4711"}) == ("head", 4711)
    with pytest.raises(ConfigError, match="MASTER_PORT=http: a number"):
        slurm_rendezvous({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "http"})


def test_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment.one_thread()
    assert environment.variables("OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    environment.one_thread()
    assert environment.variables("OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "8"}


@pytest.mark.parametrize(
    ("launcher", "ranks", "usable", "cores", "threads"),
    [
        ("torchrun", 4, 64, 64, 16),
        ("torchrun", 8, 8, 64, 1),  # a job's or a container's share of the host
        ("srun", 8, 4, 64, 4),  # each task is bound to cores of its own
        ("srun", 8, 64, 64, 8),  # none is
        ("alone", 1, 2, 2, 2),
        ("torchrun", 16, 2, 2, 1),
    ],
)
def test_ranks_share_the_cores_that_they_may_use(
    launcher: str, ranks: int, usable: int, cores: int, threads: int
) -> None:
    where = Placement(launcher, 0, ranks, 0, ranks)
    assert threads_per_rank(where, usable, cores) == threads


@pytest.mark.parametrize(
    ("launcher", "local_size", "gpus", "ranks"),
    [("alone", 1, 8, 8), ("alone", 1, 0, 1), ("torchrun", 8, 8, 8), ("srun", 8, 1, 8), ("srun", 4, 8, 4),
     ("torchrun", 16, 8, 8), ("srun", 4, 0, 1)],
)  # fmt: skip
def test_auto_is_as_many_ranks_per_node_as_a_host_has_gpus(
    launcher: str, local_size: int, gpus: int, ranks: int
) -> None:
    assert ranks_of_host(Placement(launcher, 0, 32, 0, local_size), gpus) == ranks


def test_the_ranks_of_a_host_are_put_together() -> None:
    assert grouping.ranks_by_host([7, 5, 7, 5], 2) == [0, 2, 1, 3]
    assert grouping.number_of_ranks("auto", [7, 5, 7, 5], [1, 2, 3, 4]) == 2
    assert grouping.number_of_ranks("auto", [7, 7], [0, 0]) == 1
    assert grouping.number_of_ranks("auto", [7, 7, 7, 7], [1, 2, 1, 2]) == 2, "two GPUs, shared"
    with pytest.raises(SharedError, match="hosts use 1 and 2 GPUs; give a number"):
        grouping.number_of_ranks("auto", [7, 7, 5], [1, 2, 3])
