"""Rank, device and backend of a process, as pure functions of environment variables and GPU numbers."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dgt.errors import ConfigError, SharedError


@dataclass(frozen=True, slots=True)
class Placement:
    """The launcher of this process, its rank, and its rank among those of this host."""

    launcher: str  # "torchrun", "srun" or "alone"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def detect(
    variables: Mapping[str, str], has_terminal: bool = False, launchers: Mapping[str, str] = MappingProxyType({})
) -> Placement:
    """Tell torchrun, srun and a bare shell apart.

    torchrun wins over Slurm, because torchrun runs inside srun and not the other way round. A Slurm step of
    one task (an interactive shell, a sweep job) counts as a bare shell: it may start ranks of its own. So does a
    shell that `srun --pty` opened for several tasks: it has a terminal, while tasks that srun started have none.
    `launchers` are the variables of the process that started this one.
    """
    is_shell = "SLURM_PTY_PORT" in variables and has_terminal
    try:
        if "RANK" in variables and "WORLD_SIZE" in variables:
            rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
            if not 0 <= rank < size:
                raise ValueError(f"RANK={rank}, WORLD_SIZE={size}")
            if not is_shell:
                _refuse_nesting(variables, launchers)
            # without LOCAL_RANK every rank counts as alone on its host: no memory is shared
            local_rank, local_size = int(variables.get("LOCAL_RANK", 0)), int(variables.get("LOCAL_WORLD_SIZE", 1))
            return Placement("torchrun", rank, size, local_rank, local_size)
        if "SLURM_STEP_ID" in variables and int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and not is_shell:
            rank, size = int(variables["SLURM_PROCID"]), int(variables["SLURM_STEP_NUM_TASKS"])
            local_size = _tasks_on_node(
                variables.get("SLURM_STEP_TASKS_PER_NODE", str(size)), int(variables["SLURM_NODEID"])
            )
            return Placement("srun", rank, size, int(variables["SLURM_LOCALID"]), local_size)
    except ConfigError:
        raise
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"the launcher's environment is incomplete or wrong: {error}") from None
    return Placement("alone")


def _refuse_nesting(variables: Mapping[str, str], launchers: Mapping[str, str]) -> None:
    """Raise if srun or torchrun has started several torchruns that each form a separate network."""
    if "TORCHELASTIC_RUN_ID" not in variables or variables.get("GROUP_WORLD_SIZE") != "1":
        return
    ranks, tasks = launchers.get("WORLD_SIZE", "1"), int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
    if "TORCHELASTIC_RUN_ID" in launchers and ranks != "1":
        raise ConfigError(f"torchrun started {ranks} processes, and each of them a torchrun of its own; leave one out")
    if tasks > 1:
        raise ConfigError(
            f"srun started {tasks} tasks, and each of them a torchrun of its own; start one task per node and give "
            "torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID, or leave torchrun out"
        )


def _tasks_on_node(counts: str, node: int) -> int:
    """Slurm's '2(x3),1' means 2, 2, 2, 1."""
    expanded: list[int] = []
    for part in counts.split(","):
        count, _, times = part.partition("(x")
        expanded += [int(count)] * int(times.rstrip(")") or 1)
    return expanded[node]


def slurm_rendezvous(variables: Mapping[str, str]) -> tuple[str, int]:
    """Host and port all tasks of a Slurm step agree on: its first host, a port from job and step number.

    MASTER_ADDR and MASTER_PORT override either.
    """
    host = variables.get("MASTER_ADDR", "127.0.0.1")
    if "MASTER_ADDR" not in variables and variables.get("SLURM_STEP_NUM_NODES", "1") != "1":
        host = _reachable(first_host(variables["SLURM_STEP_NODELIST"]))
    number = int(variables.get("SLURM_JOB_ID", "0")) * 37 + int(variables.get("SLURM_STEP_ID", "0"))
    try:
        return host, int(variables.get("MASTER_PORT", 20000 + number % 12000))
    except ValueError:
        raise ConfigError(f"MASTER_PORT={variables['MASTER_PORT']}: a number, or leave it out") from None


def rendezvous_endpoint(words: Sequence[str]) -> tuple[str, int] | None:
    """('host1', 29500) of a torchrun's command line, `--rdzv-endpoint host1:29500`; None where it does not say so."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in ("--rdzv-endpoint", "--rdzv_endpoint"):
            host, colon, port = (value if equals else following).rpartition(":")
            return (host, int(port)) if colon and port.isdecimal() else None
    return None


def first_host(nodes: str) -> str:
    """n01 of Slurm's 'n[01-04,07],gpu1'; parsed here, since containers have no scontrol to expand it."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).partition(",")[0]


def _reachable(node: str) -> str:
    """The node's name if it resolves, else the address that Slurm uses for it."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        address = re.search(r"NodeAddr=(\S+)", _scontrol_node(node))
        return address.group(1) if address else node
    return node


def _scontrol_node(node: str) -> str:
    try:
        return subprocess.run(["scontrol", "show", "node", node], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        raise ConfigError(
            f"the first host, {node}, does not resolve, and scontrol is not here to ask: set MASTER_ADDR to its address"
        ) from None


def threads_per_rank(where: Placement, usable: int, cores: int) -> int:
    """This rank's share of the cores that its process may use, of all there are.

    A task that srun has bound to its own cores uses all of them; otherwise the ranks of a host share what is usable.
    """
    if where.launcher == "srun" and usable * where.local_size <= cores:
        return usable
    return max(1, usable // where.local_size)


NO_GPU = 0  # number of a rank on the CPU; negative numbers are MIG slices, which nccl cannot connect


def choose_backend(requested: str, gpu_of_rank: Sequence[int]) -> str:
    """nccl when every rank has a whole GPU of its own, else gloo. gpu_of_rank: a number per GPU, `NO_GPU` for none."""
    reason = _against_nccl(gpu_of_rank)
    if requested == "nccl" and reason:
        raise SharedError(f"backend=nccl: {reason}; use backend=gloo or one rank per GPU")
    return "gloo" if reason or requested == "gloo" else "nccl"


def explain_backend(requested: str, gpu_of_rank: Sequence[int]) -> str:
    """Why backend=auto uses gloo although some ranks have GPUs; empty if it does not."""
    reason = _against_nccl(gpu_of_rank)
    if requested != "auto" or not reason or not any(gpu_of_rank):
        return ""
    return f"{reason}: gloo in place of nccl, messages of GPUs go through pinned memory of their host"


def _against_nccl(gpu_of_rank: Sequence[int]) -> str:
    gpus = [gpu for gpu in gpu_of_rank if gpu != NO_GPU]
    if len(gpus) < len(gpu_of_rank):
        return f"rank {list(gpu_of_rank).index(NO_GPU)} has no GPU"
    if len(set(gpus)) < len(gpus):
        rank = next(rank for rank, gpu in enumerate(gpus) if gpus.index(gpu) != rank)
        return f"{len(gpus)} ranks share {len(set(gpus))} GPUs, the first that has not one of its own is rank {rank}"
    if any(gpu < 0 for gpu in gpus):
        return f"rank {next(rank for rank, gpu in enumerate(gpus) if gpu < 0)} has a MIG slice of a GPU"
    return ""


def choose_device(requested: str, local_rank: int, gpus: int) -> str:
    """cuda:(local rank modulo visible GPUs), or cpu where there is none.

    This fits both of Slurm's modes: tasks that see all GPUs of their host, and tasks that see only their own.
    """
    return f"cuda:{local_rank % gpus}" if gpus and requested != "cpu" else "cpu"


def ranks_of_host(where: Placement, gpus: int) -> int:
    """How many ranks a node has with ranks_per_node=auto: the GPUs of a host, or its ranks where those are fewer.

    gpus   visible to this process; where Slurm shows every task its own only, all ranks of the host have one
    """
    if where.launcher == "alone" or not gpus:
        return max(gpus, 1)
    return where.local_size if gpus == 1 else min(gpus, where.local_size)


def own_slice(visible: str | None, local_rank: int) -> str | None:
    """This rank's MIG slice of those in CUDA_VISIBLE_DEVICES; None where there are none.

    CUDA shows a process only the first slice listed, so each rank must be restricted to its own before CUDA starts.
    """
    slices = [name.strip() for name in (visible or "").split(",") if name.strip().startswith("MIG-")]
    return slices[local_rank % len(slices)] if slices else None


def refuse_missing_gpu(requested: str, gpu_of_rank: Sequence[int]) -> None:
    """Raise the same error on all ranks if device=cuda and a rank has no GPU; gpu_of_rank as in `choose_backend`."""
    if requested == "cuda" and not all(gpu_of_rank):
        raise SharedError(f"device=cuda: rank {list(gpu_of_rank).index(NO_GPU)} has no GPU; use device=cpu")
