"""`dgt bench`: the variants by turns on the same ranks, several rounds; a speed is a ratio within one round."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch

from dgt.commands.bench import peers
from dgt.commands.bench.presets import PRESETS, WITHOUT_BATCH, Workload, workload
from dgt.commands.bench.variants import Compute, MirrorNetwork, Tracking, Unchecked, Variant
from dgt.config import TOPOLOGIES, TopologyConfig
from dgt.config.checks import check_choice, check_range
from dgt.config.settings import check_settings, setting
from dgt.errors import ConfigError
from dgt.exchange import shared
from dgt.exchange.network import Network
from dgt.network import graphs
from dgt.network.weights import Weights, normalise
from dgt.processes.agreement import together
from dgt.processes.node import Node
from dgt.runs.sinks.progress import Progress

VARIANTS = {
    "compute": "forward and backward only: what no optimizer can go below",
    "limit": "all the arithmetic of gradient tracking, nobody to wait for",
    "ddp": "torch's DistributedDataParallel",
    "decent_dp": "Decent-DP, if installed",
    "naive": "gradient tracking with a message per tensor and neighbour",
    "messages": "dgt over the process group",
    "shared": "dgt over shared memory, its default on one host",
    "no_overlap": "dgt, every exchange awaited at once",
    "buckets": "dgt, the exchange started during backward",
    "bfloat16": "dgt over the process group, 16 bits per number on the wire",
    "int8": "dgt over the process group, 8 bits per number on the wire",
    "int4": "dgt over the process group, 4 bits per number on the wire",
    "unchecked": "shared, without looking at what is sent and received",
    "crc": "shared, with a checksum of every message",
    "momentum": "shared, with Nesterov momentum inside the tracker",
    "adamw": "shared, AdamW on the mixed tracker",
    "ddp_momentum": "torch's DistributedDataParallel, SGD with Nesterov momentum",
    "ddp_adamw": "torch's DistributedDataParallel, AdamW",
}
# variants that are measured only if named: what fewer bits, checks and other optimizers cost
ON_DEMAND = ("int8", "int4", "unchecked", "crc", "momentum", "adamw", "ddp_momentum", "ddp_adamw")
MEASURES = ("start", "end", "cpu", "wait", "bytes", "peak_mb")
BUCKET_MB = 1.0
DDP_BUCKET_MB = 25.0  # torch's own
WARM_UP = 3  # DDP reorders its buckets in the second step, Decent-DP creates its own then
PROCESS = Path("/proc/self")  # on Linux


@dataclass(slots=True, kw_only=True)
class BenchConfig:
    preset: str = setting(
        "mlp",
        "least_squares, logistic, mlp, resnet18, vector or sleep (compute that leaves the cores alone)",
        choices=PRESETS,
    )
    nodes: int = setting(4, "ranks; under torchrun, as many as it started", low=1)
    topology: str = setting("ring", "ring, exponential, complete, ...")
    degree: int = setting(0, "neighbours per node, in place of a topology; 0: as the topology says", low=0)
    batch: int = setting(8, "samples per rank and iteration; for sleep, milliseconds", low=1)
    size: int = setting(100_000, "parameters of preset vector", low=1)
    rounds: int = setting(9, "rounds of all variants by turns", low=1)
    steps: int = setting(10, "iterations of a variant per round", low=1)
    transport: str = setting(
        "auto",
        "of no_overlap and buckets: auto (shared memory where there is any) or messages",
        choices=("auto", "messages"),
    )
    ddp_bucket_mb: float = setting(
        0,
        "bucket size of ddp; 0: the best, torch's 25 MB, or for sleep 1 MB, so that most of it travels during backward",
        low=0,
    )
    variants: list[str] = setting(
        [],
        "which to measure, as [compute,ddp,shared]; []: all that can run here, without unchecked and crc",
        choices=VARIANTS,
    )
    run_dir: str | None = setting(None, "where to write; null: runs/<time>-bench")

    def __post_init__(self) -> None:
        check_settings(self)
        check_range("degree", self.degree, 0, self.nodes - 1)
        check_choice("topology", self.topology, [name for name in TOPOLOGIES if name != "file"])
        if len(set(self.variants)) != len(self.variants):
            raise ConfigError(f"variants={self.variants}: one of them is there twice")

    @property
    def best_ddp_bucket_mb(self) -> float:
        """Few buckets cost the least CPU; for sleep, whose compute uses no core, many buckets overlap more."""
        return self.ddp_bucket_mb or (BUCKET_MB if self.preset == "sleep" else DDP_BUCKET_MB)


def refuse_without_effect(settings: Mapping[str, Any], grows: bool) -> None:
    """What is set must have an effect: on this preset, and in `dgt bench scaling`, which varies some of it itself."""
    preset = settings.get("preset", BenchConfig().preset)
    if grows:
        for key in ("topology", "degree", "size"):
            if key in settings:
                raise ConfigError(f"{key}={settings[key]}: dgt bench scaling varies it itself; leave it out")
    elif "size" in settings and preset != "vector":
        raise ConfigError(f"size={settings['size']}: of preset=vector only; preset={preset} has a size of its own")
    if "batch" in settings and preset in WITHOUT_BATCH:
        raise ConfigError(f"batch={settings['batch']}: preset={preset} has no samples; leave it out")
    if "topology" in settings and settings.get("degree"):
        raise ConfigError(f"degree={settings['degree']}: in place of a topology; leave topology or degree out")


@dataclass(frozen=True, slots=True)
class BenchJob:
    """Several cells on the same ranks; returns for each {variant: {measure: [round]}}, per iteration."""

    cells: Sequence[BenchConfig]

    def run(self, node: Node) -> list[dict[str, dict[str, list[float]]]]:
        return [self._measure(cell, node, number) for number, cell in enumerate(self.cells, start=1)]

    def _measure(self, config: BenchConfig, node: Node, number: int) -> dict[str, dict[str, list[float]]]:
        weights = normalise([1.0 + k % 3 for k in range(node.size)])
        names, graph = together(node, lambda: _plan(config, node, weights))
        work = workload(config.preset, config.batch, config.size, node.rank, node.device)
        made, values = {}, {name: torch.zeros(config.rounds, len(MEASURES), dtype=torch.float64) for name in names}
        if {"ddp", "ddp_momentum", "ddp_adamw", "decent_dp"} & set(names):
            peers.load_code(node)
        for name in names:
            with _peak_memory(node.device) as peak:
                made[name] = build(name, config, work, node, graph, weights.tolist())
                for _ in range(WARM_UP):
                    made[name].step()
                made[name].finish()
            values[name][:, MEASURES.index("peak_mb")] = peak[0]
        label = f"[{number}/{len(self.cells)}] {config.preset}, {node.size} ranks, degree {graph.degree(0)}"
        progress = Progress(config.rounds, label, speaks=node.is_main, lines=1, unit="round")
        for turn in range(config.rounds):
            for name in random.Random(turn).sample(names, len(names)):  # the same order on all ranks, another per round
                node.barrier()
                values[name][turn, :-1] = torch.tensor(_measured(made[name], config.steps), dtype=torch.float64)
            progress.update(turn + 1, {})
        progress.close()
        one_clock = node.placement.local_size == node.size
        return {name: _over_ranks(node.all_gather(values[name]).numpy(), config.steps, one_clock) for name in names}


def _plan(config: BenchConfig, node: Node, weights: Weights) -> tuple[list[str], nx.Graph]:
    """The variants to measure, and on which graph."""
    names = config.variants or [name for name in VARIANTS if name not in ON_DEMAND and not unavailable(name, node)]
    for name in names:
        if why := unavailable(name, node):
            raise ConfigError(f"variants: {name} cannot run here: {why}")
    if config.degree:
        return names, graphs.circulant(node.size, config.degree)
    return names, graphs.from_config(TopologyConfig(name=config.topology), weights)


def _over_ranks(measured: np.ndarray, steps: int, one_clock: bool) -> dict[str, list[float]]:
    """From [rank, round, measure] to each measure [round]: mean over the ranks.

    Wall time is from the first rank's start to the last one's end: with more ranks than cores they take turns.
    Between hosts clocks differ; there it is the longest time of a rank.
    """
    start, end, *others = np.moveaxis(measured, 2, 0)
    wall = end.max(0) - start.min(0) if one_clock else (end - start).max(0)
    found = {"wall": (wall / steps).tolist()}
    return found | {name: values.mean(0).tolist() for name, values in zip(MEASURES[2:], others, strict=True)}


def unavailable(name: str, node: Node) -> str:
    """Why this variant cannot be measured here; empty if it can."""
    if name in ("limit", "shared", "unchecked", "crc") and (node.device.type != "cpu" or not shared.available()):
        return "it needs parameters in memory that ranks can share (Linux on x86-64, CPU)"
    if name == "naive" and node.device.type != "cpu" and node.backend != "nccl":
        return "gloo sends CPU tensors only"
    if name == "decent_dp" and not peers.has_decent_dp():
        return "not installed; pip install 'dgt[bench]'"
    return ""


def build(name: str, config: BenchConfig, work: Workload, node: Node, graph: nx.Graph, weights: list[float]) -> Variant:
    """The variant of this name; all ranks build the same ones in the same order."""

    def tracking(transport: str = config.transport, **options: Any) -> Variant:
        return Tracking(work, Network(node, graph, weights, transport=transport), **options)

    makers: dict[str, Callable[[], Variant]] = {
        "compute": lambda: Compute(work),
        "limit": lambda: Tracking(work, MirrorNetwork(node, graph, weights)),
        "ddp": lambda: peers.DDP(work, node, config.best_ddp_bucket_mb),
        "decent_dp": lambda: peers.DecentDP(work, node),
        "naive": lambda: peers.Naive(work, Network(node, graph, weights)),
        "messages": lambda: tracking("messages"),
        "shared": lambda: tracking("auto"),
        "no_overlap": lambda: tracking(overlap=False),
        "buckets": lambda: tracking(bucket_mb=BUCKET_MB),
        "unchecked": lambda: Unchecked(work, Network(node, graph, weights)),
        "crc": lambda: Tracking(work, Network(node, graph, weights, crc=True)),
        "bfloat16": lambda: tracking("messages", wire="bfloat16"),
        "int8": lambda: tracking("messages", wire="int8"),
        "int4": lambda: tracking("messages", wire="int4"),
        "momentum": lambda: tracking(momentum=0.9, nesterov=True),
        "adamw": lambda: tracking(base=torch.optim.AdamW),
        "ddp_momentum": lambda: peers.DDP(work, node, config.best_ddp_bucket_mb, peers.fused_momentum),
        "ddp_adamw": lambda: peers.DDP(work, node, config.best_ddp_bucket_mb, peers.fused_adamw),
    }
    return makers[name]()


def _measured(variant: Variant, steps: int) -> list[float]:
    """Start and end in seconds; per iteration: seconds of CPU of the whole process, seconds of waiting, bytes."""

    def now() -> list[float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waited = variant.wait_seconds()
        return [time.process_time(), math.nan if waited is None else waited, variant.bytes_sent()]

    before, start = now(), time.monotonic()
    for _ in range(steps):
        variant.step()
    variant.finish()
    after, end = now(), time.monotonic()
    return [start, end, *((b - a) / steps for a, b in zip(before, after, strict=True))]


class _peak_memory:  # noqa: N801 - used like a function
    """with _peak_memory(device) as peak: peak[0] is by how many MB the process grew at most inside.

    Pages of shared memory count in part: each rank's share of those it maps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, [math.nan]

    def __enter__(self) -> list[float]:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device) / 2**20
        elif PROCESS.exists():
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, the peak of resident memory
            self._before = _memory("status", "VmRSS") - self._shared()
        return self._peak

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self._peak[0] = torch.cuda.max_memory_allocated(self._device) / 2**20 - self._before
        elif PROCESS.exists():
            self._peak[0] = _memory("status", "VmHWM") - self._shared() - self._before

    def _shared(self) -> float:
        """MB of shared memory that belong to other ranks' shares."""
        return _memory("status", "RssShmem") - _memory("smaps_rollup", "Pss_Shmem")


def _memory(file: str, key: str) -> float:
    """The value of `key` in /proc/self/FILE, in MB."""
    for line in (PROCESS / file).read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    return 0.0
