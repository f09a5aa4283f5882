"""The checks of `dgt doctor`: what this host has, whether and how fast two ranks exchange messages, and advice.

Each check is a function of plain values, so that its findings can be tested on any machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dgt.errors import ConfigError, LaunchError
from dgt.exchange import shared
from dgt.exchange.transport import Transport
from dgt.launching import launch
from dgt.processes import environment, probing
from dgt.processes import limits as allowed
from dgt.processes.node import Node
from dgt.processes.placement import Placement

GOOD, ODD, BAD = "ok", "note", "wrong"
SMALL_MEMORY = 512 * 2**20
RANKS, MOST_RANKS = 16, 100_000  # ranks of the quick start; most of any run
SIZES = {"latency": 2, "bandwidth": 4_000_000}  # float32 numbers per message
WAYS = ("messages", "shared memory for small messages only", "shared memory")  # index: how many of SIZES fit
ROUNDS = {"latency": 200, "bandwidth": 12}
WARM_UP = 3  # exchanges before the clock starts
MOST_PAIRS = 16
NO_DEVICES = ("-1", "NoDevFiles")  # GPUs hidden on purpose; the second is Slurm's, for jobs that asked for none
MOST_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result: the subject of a check, what it found, a verdict, and advice unless all is well."""

    what: str
    found: str
    verdict: str = GOOD
    advice: str = ""


def here(ranks: int = RANKS) -> list[Finding]:
    """All checks of this host that start no ranks; `ranks` is how many it is to run."""
    return [
        *versions(),
        *backends(dist.is_gloo_available(), dist.is_nccl_available(), torch.cuda.device_count()),
        *gpus([torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())], environment.variables("CUDA")),
        *cores(environment.usable_cores(), environment.variables("OMP_NUM_THREADS").get("OMP_NUM_THREADS")),
        *interfaces(
            dict(probing.addresses()),
            socket.gethostname(),
            _resolved(),
            environment.variables("GLOO").get("GLOO_SOCKET_IFNAME"),
        ),
        *loopback(probing.loopback_is_up()),
        *memory(*_shared_memory()),
        *limits(allowed.open_files(), resource.getrlimit(resource.RLIMIT_NPROC)[0], ranks),
        *launcher(environment.variables("SLURM"), environment.placement()),
    ]


def versions() -> list[Finding]:
    """Versions of dgt and the libraries it uses."""
    names = ("dgt", "torch", "torchvision", "numpy", "hydra-core")
    found = {name: importlib.metadata.version(name) for name in names}
    words = ", ".join(f"{name} {version}" for name, version in found.items())
    return [
        Finding("versions", f"{words}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    ]


def backends(gloo: bool, nccl: bool, cards: int) -> list[Finding]:
    """Which backends this build of torch has, for so many GPUs (`cards`)."""
    there = [name for name, is_there in (("gloo", gloo), ("nccl", nccl)) if is_there]
    if not gloo:
        return [
            Finding("backends", ", ".join(there) or "none", BAD, "this PyTorch has no gloo: install the usual build")
        ]
    if cards and not nccl:
        return [Finding("backends", "gloo", ODD, "GPUs without nccl: messages are copied through main memory")]
    return [Finding("backends", ", ".join(there))]


def gpus(names: list[str], environment: Mapping[str, str]) -> list[Finding]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if names:
        return [Finding("GPUs", f"{len(names)}: {', '.join(sorted(set(names)))}")]
    if visible and visible not in NO_DEVICES:
        advice = "no GPU answers to these numbers: check the driver (nvidia-smi) and how Slurm hands GPUs out"
        return [Finding("GPUs", f"none, though CUDA_VISIBLE_DEVICES={visible}", BAD, advice)]
    return [Finding("GPUs", "none")]


def cores(count: int, threads: str | None) -> list[Finding]:
    if threads is not None and threads.isdecimal() and int(threads) > count:
        return [
            Finding(
                "cores", f"{count}, OMP_NUM_THREADS={threads}", ODD, "more threads than cores: set OMP_NUM_THREADS=1"
            )
        ]
    return [Finding("cores", f"{count}, OMP_NUM_THREADS={threads or 'unset (dgt shares the cores among ranks)'}")]


def interfaces(own: Mapping[str, str], host: str, resolved: str | None, chosen: str | None) -> list[Finding]:
    """The network interfaces, and whether gloo would give other hosts an address that they can reach."""
    words = ", ".join(f"{name} {address}" for name, address in own.items()) or "none"
    if chosen is not None:
        missing = [name for name in chosen.split(",") if name not in own]
        if missing:
            return [Finding("network", words, BAD, f"GLOO_SOCKET_IFNAME={chosen}: no such interface here")]
        return [Finding("network", f"{words}; GLOO_SOCKET_IFNAME={chosen}")]
    if resolved is None:
        return [
            Finding(
                "network",
                words,
                ODD,
                f"the host name {host} does not resolve: on several hosts, set GLOO_SOCKET_IFNAME",
            )
        ]
    if resolved.startswith("127."):
        advice = f"{host} resolves to {resolved}: fine here; on several hosts, set GLOO_SOCKET_IFNAME"
        return [Finding("network", words, ODD, advice)]
    return [Finding("network", f"{words}; {host} is {resolved}")]


def memory(size: int | None, free: int | None) -> list[Finding]:
    """Size and free bytes of /dev/shm, through which neighbours on one host exchange messages."""
    if size is None or free is None:
        return [
            Finding(
                "shared memory",
                "none",
                ODD,
                "neighbours on one host use messages (slower): Linux on x86-64 and ARM has it",
            )
        ]
    words = f"{free / 2**20:.0f} of {size / 2**20:.0f} MB free in /dev/shm"
    if free < SMALL_MEMORY:
        return [
            Finding(
                "shared memory",
                words,
                ODD,
                "too little for large models, which then use messages: docker run --shm-size=8g",
            )
        ]
    return [Finding("shared memory", words)]


def loopback(is_up: bool) -> list[Finding]:
    """A finding only if the loopback interface is down, over which ranks on one host connect."""
    return [] if is_up else [Finding("loopback", "down", BAD, probing.DOWN)]


def limits(files: int, processes: int, ranks: int = RANKS) -> list[Finding]:
    """Whether the limit of open files is enough for so many ranks, on any graph."""
    least, wanted = allowed.least(ranks), allowed.wanted(ranks, ranks - 1)
    others = f"{'any number of' if processes == resource.RLIM_INFINITY else processes} processes"
    words = f"{files} files ({ranks} ranks need {least} to {wanted}), {others}"
    if files < least:
        return [Finding("limits", words, BAD, f"too few open files to start {ranks} ranks: ulimit -n {wanted}")]
    if files < wanted:
        advice = f"with many neighbours some use messages in place of shared memory: ulimit -n {wanted}"
        return [Finding("limits", words, ODD, advice)]
    return [Finding("limits", words)]


def ranks_of(settings: list[str]) -> int | None:
    """16 of ['nodes=16']; None if the arguments are something else."""
    if len(settings) != 1 or not settings[0].startswith("nodes=") or os.path.isdir(settings[0]):
        return None
    count = settings[0].removeprefix("nodes=")
    if not count.isdecimal() or not 1 <= int(count) <= MOST_RANKS:
        raise ConfigError(f"nodes={count}: must be a whole number from 1 to {MOST_RANKS}")
    return int(count)


def launcher(slurm: Mapping[str, str], where: Placement) -> list[Finding]:
    """The launcher of this process, and where `dgt train` would start ranks."""
    job = slurm.get("SLURM_JOB_ID")
    many = slurm.get("SLURM_JOB_NUM_NODES", "?")
    inside = f"in Slurm job {job} ({many} nodes: {slurm.get('SLURM_JOB_NODELIST', '?')})" if job else "no Slurm job"
    if where.launcher != "alone":
        return [Finding("launcher", f"{where.launcher}, {where.size} ranks, {inside}")]
    only = "; srun dgt train uses all nodes" if job and many != "1" else ""
    return [Finding("launcher", f"none, {inside}: dgt train starts ranks on this host{only}")]


@dataclass(frozen=True, slots=True)
class Talk:
    """A measurement between two ranks: seconds per exchange of a small (`latency`) and a large message."""

    ranks: tuple[int, int]
    way: str
    latency: float
    bandwidth: float

    @property
    def microseconds(self) -> float:
        """Per exchange of a small message."""
        return self.latency * 1e6

    @property
    def gigabytes(self) -> float:
        """Gigabytes per second in each direction, with large messages."""
        return 4 * SIZES["bandwidth"] / self.bandwidth / 1e9

    def __str__(self) -> str:
        return f"{self.way}: {self.microseconds:.0f} us, {self.gigabytes:.2g} GB/s each way"


@dataclass(frozen=True, slots=True)
class TalkJob:
    """Measure between ranks r and r + 1, one pair after the other; the other ranks wait."""

    way: str

    def run(self, node: Node) -> list[Talk]:
        pairs = [(rank, rank + 1) for rank in range(min(node.size - 1, MOST_PAIRS))]
        return [talk(node, pair, self.way) for pair in pairs]


def talk(node: Node, pair: tuple[int, int], way: str) -> Talk:
    """Measure between the ranks of `pair`; all ranks call it, and all get the times of the pair's first rank."""
    seconds = torch.zeros(len(SIZES) + 1, dtype=torch.float64)
    peers = [rank for rank in pair if rank != node.rank] if node.rank in pair else []
    for place, (kind, size) in enumerate(SIZES.items()):
        outbox, taken = Transport(node, peers, way).outbox(kind, torch.zeros(size)), torch.zeros(size)
        node.barrier()
        since = 0.0
        for number in range(ROUNDS[kind] + WARM_UP if peers else 0):
            since = time.perf_counter() if number == WARM_UP else since
            outbox.buffer.fill_(float(number))
            pending = outbox.post(number)
            for _, theirs in pending.collect():
                taken.copy_(theirs)  # without a copy no received page would be touched
                assert float(taken[-1]) == number
            pending.finish()
        if node.rank == pair[0]:
            seconds[place] = (time.perf_counter() - since) / ROUNDS[kind]
            seconds[-1] += bool(outbox.boards)
    latency, bandwidth, shares = node.all_reduce(seconds).tolist()
    return Talk(pair, WAYS[int(shares)], latency, bandwidth)


def measured(way: str) -> Talk:
    """Start two ranks on this host and measure between them."""
    ((said,), _) = launch.start_ranks(TalkJob(way), 2, launch.JoinOptions(device="cpu", timeout=20)).values()
    assert isinstance(said, Talk)
    return said


def exchange() -> list[Finding]:
    """Measure between two ranks on this host, through shared memory and through messages."""
    found = []
    for way in ("auto", "messages") if shared.available() else ("messages",):
        try:
            said = measured(way)
        except LaunchError as error:
            found.append(Finding("two ranks", "no answer", BAD, str(error)))
            continue
        odd = way == "auto" and said.way != WAYS[-1]
        advice = "too little shared memory between ranks, or none: what does not fit goes by messages"
        found.append(Finding("two ranks", str(said), ODD if odd else GOOD, advice if odd else ""))
    return found


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """The checks of every host, then measurements between consecutive ranks; rank 0 returns all findings."""

    def run(self, node: Node) -> list[Finding] | None:
        own = [] if node.placement.local_rank else as_dicts(here())
        told = torch.zeros(MOST_BYTES, dtype=torch.uint8)
        text_ = json.dumps([node.rank, socket.gethostname(), own]).encode()
        told[: len(text_)] = torch.frombuffer(bytearray(text_), dtype=torch.uint8)
        rows = node.gather(told, dst=0)
        talks = TalkJob("auto").run(node)
        if rows is None:
            return None
        reports = [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in rows]
        names = [f"{host} (rank {rank})" for rank, host, _ in reports]
        found = _by_host([(host, [Finding(**item) for item in items]) for _, host, items in reports if items])
        return found + [
            Finding("exchange", f"{names[said.ranks[0]]}, {names[said.ranks[1]]}: {said}") for said in talks
        ]


def _by_host(reports: list[tuple[str, list[Finding]]]) -> list[Finding]:
    """The findings of the first host, and those of the others that differ from it."""
    first = reports[0][1]
    found = [replace(finding, found=f"{reports[0][0]}: {finding.found}") for finding in first]
    for host, findings in reports[1:]:
        found += [replace(finding, found=f"{host}: {finding.found}") for finding in findings if finding not in first]
    return sorted(found, key=lambda finding: [known.what for known in first].index(finding.what))


def _resolved() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def _shared_memory() -> tuple[int | None, int | None]:
    if not shared.available():
        return None, None
    room = os.statvfs(shared.MEMORY)
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def as_dicts(findings: list[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


def text(findings: list[Finding]) -> str:
    """A line per finding with its advice below, and the overall verdict at the end."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<6}{finding.what:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<6}{'':<{width}}  -> {finding.advice}")
    wrong = dict.fromkeys(finding.what for finding in findings if finding.verdict == BAD)
    lines.append(f"wrong: {', '.join(wrong)}" if wrong else "all well: dgt train will run here")
    return "\n".join(lines)
