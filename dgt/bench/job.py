"""`dgt bench`: the variants by turns on the same ranks, several rounds; a speed is a ratio within one round."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field

import torch

from dgt.bench.presets import workload
from dgt.bench.variants import VARIANTS, Variant, build
from dgt.checks import check_choice, check_range
from dgt.config import TopologyConfig
from dgt.network import graphs
from dgt.network.weights import normalise
from dgt.world import Node

PRESETS = ("logistic", "mlp", "resnet18", "sleep")
MEASURES = ("wall", "cpu", "wait", "bytes")


@dataclass(slots=True, kw_only=True)
class BenchConfig:
    preset: str = "mlp"
    """logistic, mlp, resnet18 or sleep (compute that leaves the cores alone)."""
    nodes: int = 4
    """Ranks."""
    topology: str = "ring"
    """ring, exponential, complete, ..."""
    batch: int = 8
    """Samples per rank and iteration; for sleep, milliseconds."""
    rounds: int = 9
    """Rounds of all variants by turns."""
    steps: int = 10
    """Iterations of a variant per round."""
    variants: list[str] = field(default_factory=lambda: list(VARIANTS))
    """Which ways to measure."""

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        for key in ("nodes", "batch", "rounds", "steps"):
            check_range(key, getattr(self, key), 1)
        for variant in self.variants:
            check_choice("variants", variant, VARIANTS)


@dataclass(frozen=True, slots=True)
class BenchJob:
    """Every rank returns its measures: [variant][measure][round], per iteration."""

    config: BenchConfig

    def run(self, node: Node) -> dict[str, dict[str, list[float]]]:
        config = self.config
        weights = normalise([1.0 + k % 3 for k in range(node.size)])
        graph = graphs.from_config(TopologyConfig(name=config.topology), weights)
        work = workload(config.preset, config.batch, node.rank, node.device)
        made: dict[str, Variant] = {}
        results: dict[str, dict[str, list[float]]] = {}
        for name in config.variants:
            before = _resident_mb()
            made[name] = build(name, work, node, graph, weights.tolist())
            for _ in range(2):  # warm up
                made[name].step()
            results[name] = {measure: [] for measure in MEASURES}
            results[name]["memory_mb"] = [_resident_mb() - before]
        for number in range(config.rounds):
            # another order each round: nobody always comes after the same one
            turn = number % len(config.variants)
            for name in [*config.variants[turn:], *config.variants[:turn]]:
                node.barrier()
                for measure, value in _measured(made[name], config.steps).items():
                    results[name][measure].append(value)
        return results


def _measured(variant: Variant, steps: int) -> dict[str, float]:
    """Per iteration: seconds on the wall, seconds of CPU of the whole process, seconds waiting, bytes sent."""
    start = (time.perf_counter(), time.process_time(), variant.wait_seconds(), variant.bytes_sent())
    for _ in range(steps):
        variant.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    end = (time.perf_counter(), time.process_time(), variant.wait_seconds(), variant.bytes_sent())
    return {name: (b - a) / steps for name, a, b in zip(MEASURES, start, end, strict=True)}


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
