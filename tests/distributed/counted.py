"""What really leaves while a variant of `dgt bench` runs: python -m tests.distributed.counted NODES PRESET...

Every rank of it talks through the loopback device of the network namespace it is started in, whose counters rank 0
reads before and after some steps. Started in a namespace of its own nothing else is counted.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from dgt.commands.bench.catalogue import VARIANTS, Bench
from dgt.commands.bench.job import BenchConfig
from dgt.commands.bench.presets import workload
from dgt.commands.bench.variants import Variant
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.network import graphs
from dgt.processes.node import Node

COUNTED = ("ddp", "ddp_bfloat16", "ddp_local", "decent_dp", "messages", "bfloat16", "int8", "int4", "local_steps")
SIZE, STEPS = 400_000, 4


def loopback_bytes() -> int:
    """Sent through the loopback device of this process's network namespace, headers included."""
    (line,) = [line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split()[9])


@dataclass(frozen=True)
class Count:
    """{preset: {variant: [bytes that the variant says, bytes that the kernel counted]}}, of all ranks together."""

    presets: list[str]

    def run(self, node: Node) -> dict[str, dict[str, list[float]]]:
        return {preset: {name: self._count(name, preset, node) for name in COUNTED} for preset in self.presets}

    def _count(self, name: str, preset: str, node: Node) -> list[float]:
        config = BenchConfig(preset=preset, nodes=node.size, batch=1, transport="messages")
        work = workload(preset, config.batch, SIZE, node.rank, node.device)
        variant = VARIANTS[name].make(Bench(config, work, node, graphs.ring(node.size), [1.0] * node.size))
        for _ in range(STEPS):
            variant.step()
        variant.finish()
        before = self._both(variant, node)
        for _ in range(STEPS):
            variant.step()
        variant.finish()
        return [after - start for after, start in zip(self._both(variant, node), before, strict=True)]

    def _both(self, variant: Variant, node: Node) -> list[float]:
        node.barrier()  # what ranks sent before it has left
        said = node.all_reduce(torch.tensor(float(variant.bytes_sent()), dtype=torch.float64)).item()
        counted = float(loopback_bytes()) if node.is_main else 0.0
        node.barrier()
        return [said, counted]


if __name__ == "__main__":
    print(json.dumps(start_ranks(Count(sys.argv[2:]), int(sys.argv[1]), JoinOptions(device="cpu"))[0]))
