"""Environment variables of the launcher and the user: the only module that reads or sets any.

here = environment.placement()        # launcher, rank, size, and the ranks of this host
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dgt.errors import ConfigError
from dgt.processes import limits
from dgt.processes.placement import Placement, detect, own_slice, slurm_rendezvous, threads_per_rank

LAUNCHER_FOLDER = "DGT_LAUNCHER_FOLDER"
INTERFACE = "GLOO_SOCKET_IFNAME"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


# ------------------------------------------------------------------------------------------- which rank this process is


@dataclass(frozen=True, slots=True)
class LocalRank:
    """What dgt's own launcher tells a rank that it has forked."""

    placement: Placement
    store_file: Path
    """File of the rendezvous store: no port, no host names. Its directory is that of the launcher's notes."""
    attempt: int = 0
    """How often this rank's process was started again, in place of one that was lost."""


_local_rank: LocalRank | None = None


def set_local_rank(rank: LocalRank) -> None:
    """Make this process that rank, whatever its environment variables say."""
    global _local_rank
    _local_rank = rank


def placement() -> Placement:
    """The launcher of this process, its rank and the number of ranks."""
    if _local_rank is not None:
        return _local_rank.placement
    return detect(os.environ, _has_terminal(), _launchers_variables())


def attempt() -> int:
    """How often this rank's process was started again in place of one that was lost; the others are under way then."""
    return 0 if _local_rank is None else _local_rank.attempt


def starts_ranks() -> bool:
    """Whether this process may start ranks of its own: no launcher has made it one."""
    try:
        return placement().launcher == "alone"
    except ConfigError:
        return False


def is_launched() -> bool:
    """Whether a launcher made this process a rank, with valid variables."""
    try:
        return placement().launcher != "alone"
    except ConfigError:
        return False


def is_other_rank() -> bool:
    """Whether RANK or SLURM_PROCID make this process a rank other than 0, valid or not."""
    if _local_rank is not None:
        return _local_rank.placement.rank != 0
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _launchers_variables() -> dict[str, str]:
    """Environment variables of the parent process at its start; empty without /proc."""
    try:
        words = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(word).partition("=")[::2] for word in words)


# ------------------------------------------------------------------------------------------------ ranks of `dgt` itself


def store_file() -> Path | None:
    """The file of the rendezvous store under `dgt`'s own launcher; None under other launchers."""
    return None if _local_rank is None else _local_rank.store_file


def launcher_folder() -> Path:
    """The temporary directory of `dgt`'s own launcher, in a process that it started."""
    return Path(os.environ[LAUNCHER_FOLDER])


def prepare_children(folder: Path) -> None:
    """Set what ranks started from this process inherit; `folder` is the launcher's temporary directory."""
    os.environ[LAUNCHER_FOLDER] = str(folder)
    limits.raise_open_files()
    one_thread()  # more threads than cores make every rank slower, by 4 to 7 times when measured
    # torch would start a TCP store that listens on every interface; the rendezvous is a file
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


# --------------------------------------------------------------------------------------------------- torchrun and Slurm


def master() -> tuple[str, str]:
    """MASTER_ADDR and MASTER_PORT, unchecked; empty if they are not set."""
    return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")


def slurm_master() -> tuple[str, int]:
    """Host and port of the rendezvous store of this Slurm step."""
    return slurm_rendezvous(os.environ)


def slurm_step() -> str:
    """Job and step of this process: a prefix that keeps the keys of two jobs apart."""
    return "-".join(os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))


def has_agent() -> bool:
    """Whether torchrun, and not a launcher that only sets the same variables, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_keeps_store() -> bool:
    """Whether torchrun itself serves the store, so that it listens before any rank starts."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def agent_may_restart() -> bool:
    """Whether torchrun would start failed ranks again.

    The count of restarts differs between hosts; it is right about the restarts that are left on this one.
    """
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done) < int(most)


def agent_error_file() -> Path | None:
    """The file in which torchrun expects a failed rank's error; None under dgt's own launcher."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(name) if name and _local_rank is None else None


# ----------------------------------------------------------------------------------------------- cores, GPUs, interface


def usable_cores() -> int:
    """Cores in this process's affinity mask: containers and batch jobs have fewer than the host."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores(where: Placement) -> None:
    """Set torch's threads to this rank's share of the cores; with more ranks than cores, use batch scheduling."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(where, usable_cores(), os.cpu_count() or 1))
    if where.local_size > (os.cpu_count() or 1) and hasattr(os, "sched_setscheduler"):
        # under SCHED_BATCH a woken rank does not preempt the running one at every message
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def one_thread() -> None:
    """One thread for linear algebra unless the user has set OMP_NUM_THREADS; must come before numpy is imported.

    Threads do not speed up small or sparse matrices, and on a busy machine they took 16 times as long.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def take_gpu_slice(local_rank: int) -> str | None:
    """Restrict CUDA_VISIBLE_DEVICES to this rank's MIG slice if it lists slices; returns the slice's name."""
    mig = own_slice(os.environ.get(VISIBLE_GPUS), local_rank)
    if mig is not None:
        os.environ[VISIBLE_GPUS] = mig
    return mig


def interface() -> str | None:
    """GLOO_SOCKET_IFNAME: the network interface that the user has chosen for gloo."""
    return os.environ.get(INTERFACE)


def use_interface(name: str, replaces: bool = False) -> None:
    """Have gloo use this interface, unless the user has named one and this does not replace it."""
    os.environ[INTERFACE] = name if replaces else os.environ.get(INTERFACE, name)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the variables for interface and GPUs at the end: a program may join more than once."""
    before = {name: os.environ.get(name) for name in (INTERFACE, VISIBLE_GPUS)}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# --------------------------------------------------------------------------------------------------------- this machine


def host_number() -> int:
    """The same number on ranks that share /dev/shm: one per machine, or per container with a /dev/shm of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        memory = os.stat("/dev/shm")
        identity = f"{boot} {memory.st_dev} {memory.st_ino}"
    except OSError:
        identity = socket.gethostname()
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big")


def cache_dir() -> Path:
    """The directory for downloaded data sets."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgt"


def variables(prefix: str) -> dict[str, str]:
    """All environment variables whose names begin with `prefix`, for reports."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}
