"""`dgt bench`: the variants by turns on the same ranks, several rounds; a speed is a ratio within one round."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch

from dgt.commands.bench import peers
from dgt.commands.bench.catalogue import BUCKET_MB, VARIANTS, Bench
from dgt.commands.bench.presets import MEASURED, PRESETS, SIZES, STEPS, WITHOUT_BATCH, workload
from dgt.commands.bench.variants import Variant
from dgt.config import TOPOLOGIES, TopologyConfig
from dgt.config.checks import check_choice, check_range
from dgt.config.settings import check_settings, setting
from dgt.errors import ConfigError
from dgt.network import graphs
from dgt.network.weights import Weights, normalise
from dgt.processes.agreement import together
from dgt.processes.node import Node
from dgt.runs.sinks.progress import Progress

MEASURES = ("start", "end", "cpu", "wait", "bytes", "peak_mb")
DDP_BUCKET_MB = 25.0  # torch's own
WARM_UP = 3  # DDP reorders its buckets in the second step, Decent-DP creates its own then
PROCESS = Path("/proc/self")  # on Linux


@dataclass(slots=True, kw_only=True)
class BenchConfig:
    preset: str = setting(
        "mlp",
        "least_squares, logistic, mlp, resnet18, vector, sleep (compute that leaves the cores alone), jitter (sleeps "
        "of random length) or links (vector, on emulated hosts)",
        choices=PRESETS,
    )
    nodes: int = setting(4, "ranks; under torchrun, as many as it started; of links, as `layout` says", low=1)
    layout: str = setting("4x1", "of preset links: hosts x ranks on each")
    rate: str = setting("1gbit", "of preset links: what each host's link carries each way, in words of tc")
    delay: float = setting(0, "of preset links: milliseconds on the way from one host to another", low=0, high=10_000)
    topology: str = setting("ring", "ring, exponential, complete, ...")
    degree: int = setting(0, "neighbours per node, in place of a topology; 0: as the topology says", low=0)
    batch: int = setting(8, "samples per rank and iteration; for sleep, milliseconds", low=1)
    size: int = setting(
        0, "parameters of presets vector, jitter and links; 0: 100,000, of links 2,621,440 (10.5 MB)", low=0
    )
    rounds: int = setting(9, "rounds of all variants by turns", low=1)
    steps: int = setting(0, "iterations of a variant per round; 0: 12, of jitter 60", low=0)
    local_steps: int = setting(4, "of variants local_steps and ddp_local: steps per exchange; divides `steps`", low=1)
    transport: str = setting(
        "auto",
        "of no_overlap, buckets, local_steps, exponential, momentum and adamw: auto (shared memory where there is any) "
        "or messages",
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
        self.steps = self.steps or STEPS.get(self.preset, 12)
        check_range("degree", self.degree, 0, self.nodes - 1)
        check_choice("topology", self.topology, [name for name in TOPOLOGIES if name != "file"])
        if len(set(self.variants)) != len(self.variants):
            raise ConfigError(f"variants={self.variants}: one of them is there twice")
        for name in self.variants:
            if not self._fits(name):
                raise ConfigError(f"steps={self.steps}: of {name} a multiple of local_steps={self.local_steps}")
        hosts, ranks = self.hosts_and_ranks
        if self.preset == "links":
            self.nodes = hosts * ranks
            check_range("layout", hosts, 2, 250)

    @property
    def hosts_and_ranks(self) -> tuple[int, int]:
        """Of `layout`: how many hosts, and how many ranks on each."""
        hosts, _, ranks = self.layout.partition("x")
        if not (hosts.isdecimal() and ranks.isdecimal() and int(hosts) and int(ranks)):
            raise ConfigError(f"layout={self.layout}: hosts x ranks on each, such as 4x1 or 2x2")
        return int(hosts), int(ranks)

    @property
    def numbers(self) -> int:
        """Parameters of presets whose size can be chosen."""
        return self.size or SIZES.get(self.preset, SIZES["vector"])

    def _fits(self, name: str) -> bool:
        """Whether every round has the same number of exchanges."""
        return "{every}" not in VARIANTS[name].terms or self.steps % self.local_steps == 0

    @property
    def usual_variants(self) -> Sequence[str]:
        """What is measured unless `variants` says what: of some presets those that have something to tell there."""
        names = MEASURED.get(self.preset) or [name for name, entry in VARIANTS.items() if not entry.on_demand]
        if self.preset == "links" and self.hosts_and_ranks[1] == 1:
            names = [name for name in names if name != "shared"]
        return [name for name in names if self._fits(name)]

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
    elif "size" in settings and preset not in SIZES:
        raise ConfigError(f"size={settings['size']}: of preset=vector only; preset={preset} has a size of its own")
    for key in ("layout", "rate", "delay"):
        if key in settings and preset != "links":
            raise ConfigError(f"{key}={settings[key]}: of preset=links only, not of preset={preset}")
    if "nodes" in settings and preset == "links":
        raise ConfigError(f"nodes={settings['nodes']}: preset=links has as many as layout says; leave it out")
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
        work = workload(config.preset, config.batch, config.numbers, node.rank, node.device)
        made, values = {}, {name: torch.zeros(config.rounds, len(MEASURES), dtype=torch.float64) for name in names}
        if any(name == "decent_dp" or name.startswith("ddp") for name in names):
            peers.load_code(node)
        bench = Bench(config, work, node, graph, weights.tolist())
        for name in names:
            with _peak_memory(node.device) as peak:
                made[name] = VARIANTS[name].make(bench)
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
    names = config.variants or [name for name in config.usual_variants if not VARIANTS[name].missing(node)]
    for name in names:
        if why := VARIANTS[name].missing(node):
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
