"""What the launcher and the user have put into the environment: the only module that reads or sets its variables.

here = environment.placement()        # launcher, rank, size, and the ranks of this host
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from dgt.errors import ConfigError
from dgt.processes import limits
from dgt.processes.placement import Placement, detect, own_slice, slurm_rendezvous, threads_per_rank

MEETING_FILE = "DGT_MEETING_FILE"
LAUNCHERS_FOLDER = "DGT_LAUNCHERS_FOLDER"
INTERFACE = "GLOO_SOCKET_IFNAME"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


# ------------------------------------------------------------------------------------------- which rank this process is


def placement() -> Placement:
    """Where this process was put."""
    return detect(os.environ, _has_terminal(), _launchers_variables())


def starts_ranks() -> bool:
    """Whether this process may start ranks of its own: no launcher has made it one."""
    try:
        return placement().launcher == "alone"
    except ConfigError:
        return False


def is_launched() -> bool:
    """Whether a launcher made this process a rank, and said properly which."""
    try:
        return placement().launcher != "alone"
    except ConfigError:
        return False


def is_other_rank() -> bool:
    """Whether a launcher made this process a rank other than 0, as far as can be told."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


def _has_terminal() -> bool:
    """Whether somebody at a keyboard started this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _launchers_variables() -> dict[str, str]:
    """What the process that started this one was started with, where the system tells."""
    try:
        words = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(word).partition("=")[::2] for word in words)


# ------------------------------------------------------------------------------------------------ ranks of `dgt` itself


def set_rank(rank: int, size: int) -> None:
    """Make this process that rank of a network on this host, in the variables that torchrun would set."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))


def set_meeting_file(path: Path) -> None:
    """Ranks that `dgt` started meet through a file: nothing listens, and nothing is looked up."""
    os.environ[MEETING_FILE] = str(path)


def meeting_file() -> Path | None:
    """The file through which ranks of `dgt`'s own launcher meet; None under other launchers."""
    return Path(os.environ[MEETING_FILE]) if MEETING_FILE in os.environ else None


def launchers_folder() -> Path:
    """What `dgt`'s launcher keeps in the temporary directory, as its children know it."""
    return Path(os.environ[LAUNCHERS_FOLDER])


def prepare_children(folder: Path) -> None:
    """Environment that ranks started from this process inherit; `folder` is removed when all of them have ended."""
    os.environ[LAUNCHERS_FOLDER] = str(folder)
    limits.raise_open_files()
    one_thread()  # more threads than cores make every rank slower, by 4 to 7 times when measured
    # ranks meet through a file; no shared TCP store, which listens on every interface
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


# --------------------------------------------------------------------------------------------------- torchrun and Slurm


def master() -> tuple[str, str]:
    """MASTER_ADDR and MASTER_PORT, as they are; empty where a launcher has not set them."""
    return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")


def slurm_master() -> tuple[str, int]:
    """Host and port on which the tasks of this Slurm step meet."""
    return slurm_rendezvous(os.environ)


def slurm_step() -> str:
    """Job and step of this process, to tell its store from that of another job."""
    return "-".join(os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))


def has_agent() -> bool:
    """Whether torchrun, and not a launcher that only sets the same variables, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_keeps_store() -> bool:
    """Whether torchrun keeps the store itself, so that it is there before any rank starts."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def agent_may_restart() -> bool:
    """Whether torchrun would start failed ranks again.

    Its count differs between hosts, so it names no start of ours; but of what is left on this host it is right.
    """
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done) < int(most)


def agent_error_file() -> Path | None:
    """Where torchrun looks for a failed rank's reason."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(name) if name and MEETING_FILE not in os.environ else None


# ----------------------------------------------------------------------------------------------- cores, GPUs, interface


def usable_cores() -> int:
    """Containers and batch jobs have some of the host's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores(where: Placement) -> None:
    """Fit the ranks of this host to its cores."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(where, usable_cores(), os.cpu_count() or 1))
    if where.local_size > (os.cpu_count() or 1) and hasattr(os, "sched_setscheduler"):
        # Linux: let a rank finish its slice instead of being preempted at every message that wakes another
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def one_thread() -> None:
    """For linear algebra, unless the user says otherwise; counts if nobody has imported numpy yet.

    Threads do not speed up small or sparse matrices, and on a busy machine they wait for each other: 16 times as long.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def take_gpu_slice(local_rank: int) -> str | None:
    """Give this rank its own of the MIG slices it sees, if it sees any; returns the slice's name."""
    mig = own_slice(os.environ.get(VISIBLE_GPUS), local_rank)
    if mig is not None:
        os.environ[VISIBLE_GPUS] = mig
    return mig


def interface() -> str | None:
    """The network interface that the user has named for gloo."""
    return os.environ.get(INTERFACE)


def use_interface(name: str) -> None:
    """Have gloo use this interface, unless the user has named one."""
    os.environ.setdefault(INTERFACE, name)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Interface and GPUs are as they were afterwards, whatever is set inside."""
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
    """A number that ranks have in common if they share memory: one per machine, or per container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        memory = os.stat("/dev/shm")
        identity = f"{boot} {memory.st_dev} {memory.st_ino}"
    except OSError:
        identity = socket.gethostname()
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big")


def cache_dir() -> Path:
    """Where data sets are kept, once per user and host."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgt"


def variables(prefix: str) -> dict[str, str]:
    """The environment variables that begin like this, for those who only want to look."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}
