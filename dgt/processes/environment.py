"""Who am I, where, on which device, over which backend: the only place that reads the environment.

with dgt.join() as node:        # inside torchrun, srun or dgt's own launcher; alone it is a network of one
    print(node.rank, node.size, node.device)
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dgt import meeting
from dgt.checks import ConfigError, SharedError
from dgt.node import MEETING_SECONDS, Node
from dgt.placement import (
    NO_GPU,
    Placement,
    choose_backend,
    choose_device,
    detect,
    explain_backend,
    own_slice,
    refuse_missing_gpu,
    slurm_rendezvous,
    threads_per_rank,
)

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch
    import torch.distributed as dist


@contextlib.contextmanager
def join(*, backend: str = "auto", device: str = "auto", timeout: float = 60.0) -> Iterator[Node]:
    """Join the network as the launcher says; leave it again in good order."""
    with connect(timeout) as node:
        settle(node, backend, device)
        yield node


def settle(node: Node, backend: str, device: str) -> None:
    """Decide on device and backend, together with all ranks; until then messages go over gloo on the CPU."""
    import torch
    import torch.distributed as dist

    mig = own_slice(os.environ.get("CUDA_VISIBLE_DEVICES"), node.placement.local_rank)
    if mig is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = mig
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    node.device = torch.device(choose_device(device, node.placement.local_rank, gpus))
    gpu_of_rank = node.gather(torch.tensor(_gpu_number(node.device, mig))).tolist()
    refuse_missing_gpu(device, gpu_of_rank)
    node.backend = choose_backend(backend, gpu_of_rank)
    words = explain_backend(backend, gpu_of_rank)
    if words and node.is_main:
        print(f"dgt: {words}", file=sys.stderr, flush=True)
    if node.device.type == "cuda":
        torch.cuda.set_device(node.device)
    if node.backend == "nccl":
        group = dist.new_group(backend="nccl", timeout=timedelta(seconds=node.timeout), device_id=node.device)
        assert isinstance(group, dist.ProcessGroup)
        node.groups["data"] = group
        # nccl wants all ranks in its first operation; batches of neighbours come later
        dist.barrier(group=group)


@contextlib.contextmanager
def connect(timeout: float) -> Iterator[Node]:
    """Meet all ranks over gloo; `settle` decides the rest."""
    import torch
    import torch.distributed as dist

    where = placement()
    die_with_torchrun()
    share_cores(where)
    # starting many ranks may take minutes; waiting for a neighbour later should not
    patience = timedelta(seconds=max(timeout, MEETING_SECONDS))
    if where.local_size == where.size:
        # one host: nothing has to be reachable from elsewhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = _store(where, patience)
        groups = meeting.join_group(store, where.rank, where.size, patience)
    except RuntimeError as error:
        raise meeting.in_vain(where.rank, _meeting_place(where), error) from error
    notes = Path(os.environ[MEETING_FILE]).parent if MEETING_FILE in os.environ else None
    node = Node(where, torch.device("cpu"), "gloo", timeout, groups, store, list(range(where.size)), notes)
    del groups
    _same_version(node)
    meeting.set_timeout(node.control, timeout)
    yield node
    for finish in node.before_leaving:
        finish()
    # first take in everything, then wait for what was sent: others may go through theirs in another order
    rest = list(node.under_way)
    for exchange in rest:
        exchange.receive_rest()
    for exchange in rest:
        exchange.finish()
    node.sender.shutdown()
    # together: a connection closed early takes with it what a slower neighbour has not read yet. After an error
    # nothing is tidied up: the process ends, and the closed connections tell the neighbours.
    node.barrier()
    # the last reference ends gloo's threads; one that frees a tensor while Python shuts down aborts the process
    node.groups.clear()
    dist.destroy_process_group()


MEETING_FILE = "DGT_MEETING_FILE"
_meetings = itertools.count()


def pose_as(rank: int, size: int) -> None:
    """Make this process the rank that dgt's launcher says it is."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))


def meet_in(path: Path) -> None:
    """Ranks that `dgt` started meet through a file: nothing listens, and nothing is looked up."""
    os.environ[MEETING_FILE] = str(path)


def _same_version(node: Node) -> None:
    """First of all, in a message that never changes its size: 32 bytes of version from every rank."""
    import torch

    own = importlib.metadata.version("dgt")
    text = torch.frombuffer(bytearray(own.encode()[:32].ljust(32)), dtype=torch.uint8)
    versions = [bytes(row.tolist()).decode(errors="replace").strip() for row in node.gather(text)]
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise SharedError(f"ranks disagree on version: dgt {versions[0]} on rank 0, {version} on rank {rank}")


def _gpu_number(device: torch.device, mig: str | None) -> int:
    """A number that tells GPUs apart across hosts: positive for a whole one, negative for a MIG slice."""
    import torch

    if device.type == "cpu":
        return NO_GPU
    identity = mig or str(torch.cuda.get_device_properties(device).uuid)
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big") + 1
    return -number if mig else number


def _store(where: Placement, patience: timedelta) -> dist.Store:
    """Where ranks find each other: dgt's own file, nowhere to go alone, torchrun's store, or the first Slurm host's."""
    import torch.distributed as dist

    if MEETING_FILE in os.environ:
        # a file per meeting: a script may join more than once
        path = f"{os.environ[MEETING_FILE]}-{next(_meetings)}"
        return dist.FileStore(path, where.size)
    if where.launcher == "alone":
        return dist.HashStore()
    if where.launcher == "torchrun":
        host, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        if where.rank and host and port.isdecimal():
            meeting.await_answer(host, int(port), patience)
        try:
            store, _, _ = next(dist.rendezvous("env://", timeout=patience))
        except ValueError as error:  # no MASTER_ADDR, for example
            raise ConfigError(f"the launcher's environment is incomplete or wrong: {error}") from None
        return meeting.fresh_room(store, where.rank, where.size, patience)
    store = meeting.tcp_store(*slurm_rendezvous(os.environ), where.rank, where.size, patience)
    # another job may have taken the port first: nobody takes its words for ours
    return meeting.room(store, "-".join(os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP")))


def _meeting_place(where: Placement) -> str:
    if MEETING_FILE in os.environ or where.launcher == "alone":
        return ""
    variables = os.environ
    names = ("MASTER_ADDR", "MASTER_PORT")
    host, port = slurm_rendezvous(variables) if where.launcher == "srun" else (variables.get(name) for name in names)
    return f" at {host}:{port}"


def die_with_torchrun() -> None:
    """A rank must not outlive torchrun, however that ends; ranks of dgt's own launcher watch it themselves.

    Called as early as can be: a torchrun that went before is not noticed.
    """
    own = MEETING_FILE in os.environ or sys.platform != "linux"
    if not own and is_launched() and placement().launcher == "torchrun":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


SEE_OFF = """
import contextlib, os, select, signal, sys
from pathlib import Path
torchrun = os.pidfd_open(int(sys.argv[1]))
while not select.select([torchrun], [], [], float(sys.argv[2]))[0]:
    living = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            living.append(path.read_text().rpartition(")")[2].split()[:2])
    if not any(parent == sys.argv[1] and state != "Z" for state, parent in living):  # no ranks, old or started again
        print("dgt: torchrun on this host cannot reach the others: ended", file=sys.stderr, flush=True)
        signal.pidfd_send_signal(torchrun, signal.SIGKILL)
        break
"""
SEE_OFF_SECONDS = 8.0
REUNION_SECONDS = 660.0  # torchrun that may restart waits 600 s for the other hosts to come back


def see_torchrun_off() -> None:
    """Before this rank leaves because another host is gone: see to it that torchrun leaves too.

    It asks its store whether it may, and waits for ever where the store is on the other side of a broken link.
    """
    where = placement()
    several_hosts = where.launcher == "torchrun" and where.local_size < where.size
    if several_hosts and "TORCHELASTIC_RUN_ID" in os.environ and hasattr(os, "pidfd_open") and not where.local_rank:
        seconds = REUNION_SECONDS if _torchrun_may_restart() else SEE_OFF_SECONDS
        arguments = [str(os.getppid()), str(seconds)]
        subprocess.Popen([sys.executable, "-c", SEE_OFF, *arguments], start_new_session=True, stdin=subprocess.DEVNULL)


def dismiss_torchrun() -> None:
    """All ranks have saved and were asked to stop: torchrun must not take that for a failure and start them again."""
    if MEETING_FILE not in os.environ and placement().local_rank == 0 and _torchrun_may_restart():
        os.kill(os.getppid(), signal.SIGTERM)


def _torchrun_may_restart() -> bool:
    """Its count differs between hosts, so it names no start of ours; but of what is left on this host it is right."""
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done) < int(most)


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


def placement() -> Placement:
    """Where this process was put."""
    return detect(os.environ, _has_terminal(), _launchers_variables())


def _launchers_variables() -> dict[str, str]:
    """What the process that started this one was started with, where the system tells."""
    try:
        words = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(word).partition("=")[::2] for word in words)


def share_cores(where: Placement) -> None:
    """Fit the ranks of this host to its cores."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(where, usable_cores(), os.cpu_count() or 1))
    if where.local_size > (os.cpu_count() or 1) and hasattr(os, "sched_setscheduler"):
        # Linux: let a rank finish its slice instead of being preempted at every message that wakes another
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def usable_cores() -> int:
    """Containers and batch jobs have some of the host's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_number() -> int:
    """A number that ranks have in common if they share memory: one per machine, or per container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        memory = os.stat("/dev/shm")
        identity = f"{boot} {memory.st_dev} {memory.st_ino}"
    except OSError:
        identity = socket.gethostname()
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big")


def variables(prefix: str) -> dict[str, str]:
    """The environment variables that begin like this, for those who only want to look."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def torchrun_error_file() -> Path | None:
    """Where torchrun looks for a failed rank's reason."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(name) if name and MEETING_FILE not in os.environ else None


def cache_dir() -> Path:
    """Where data sets are kept, once per user and host."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgt"


def one_thread() -> None:
    """For linear algebra, unless the user says otherwise; counts if nobody has imported numpy yet.

    Threads do not speed up small or sparse matrices, and on a busy machine they wait for each other: 16 times as long.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def prepare_children() -> None:
    """Environment that ranks started from this process inherit."""
    one_thread()  # more threads than cores make every rank slower, by 4 to 7 times when measured
    # ranks meet through a file; no shared TCP store, which listens on every interface
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
