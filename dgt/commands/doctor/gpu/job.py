"""What `dgt doctor gpu` runs on every rank, and the file that rank 0 writes: what was right, what not, on what.

The file is written anew after every case, so that it names the one at which a run came to an end.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dgt.commands.doctor.gpu import loops, measured, runs
from dgt.config import Config
from dgt.config.compose import compose
from dgt.errors import ConfigError
from dgt.processes.node import Node

MOST_TEXT = 4096


@dataclass(slots=True)
class GpuJob:
    """The matrix; `configs` are composed by `made`, before any rank exists."""

    configs: list[tuple[str, Config]]
    loops: tuple[str, ...]
    path: str
    found: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def made(cls, nodes: int, path: str, only: str = "") -> GpuJob:
        """Of all cases, or of those whose names hold a word."""
        names = [case for case in runs.CASES if only in case and _fits(case, nodes)]
        configs = [(case, compose([f"nodes={nodes}", *runs.COMMON.split(), *case.split()])) for case in names]
        return cls(configs, tuple(loop.name for loop in loops.LOOPS if only in loop.name), path)

    def run(self, node: Node) -> dict[str, Any] | None:
        """What was found, on rank 0."""
        if node.device.type != "cuda":
            raise ConfigError(f"dgt doctor gpu: rank {node.rank} has no GPU")
        self.found = {"about": about(node), "cases": {}, "costs": []}
        for name, check in self._checks(node):
            self.found["cases"][name] = {"result": "began"}
            self._write(node)
            since = time.monotonic()
            words = _of_all(node, check())
            seconds = round(time.monotonic() - since, 2)
            self.found["cases"][name] = {"result": words or "right", "seconds": seconds}
        self.found["costs"] = [dataclasses.asdict(cost) for cost in measured.costs(node)]
        self._write(node)
        return self.found if node.is_main else None

    def _checks(self, node: Node) -> Iterator[tuple[str, Callable[[], str]]]:
        for name, config in self.configs:
            yield name, lambda config=config: runs.differences(config, node)  # type: ignore[misc]
        for loop in loops.LOOPS:
            if loop.name in self.loops:
                yield loop.name, lambda loop=loop: loops.differences(loop, node)  # type: ignore[misc]

    def _write(self, node: Node) -> None:
        if node.is_main and self.path:
            Path(self.path).write_text(json.dumps(self.found, indent=2) + "\n")


def _fits(case: str, nodes: int) -> bool:
    return nodes % 2 == 0 or "matching" in case or "one_peer" not in case


def _of_all(node: Node, words: str) -> str:
    """What the first rank with something to say has found."""
    own = torch.zeros(MOST_TEXT, dtype=torch.uint8)
    text = words.encode()[:MOST_TEXT]
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else own[:0]
    said = (bytes(row.tolist()).rstrip(b"\0").decode() for row in node.all_gather(own))
    return next((each for each in said if each), "")


def about(node: Node) -> dict[str, Any]:
    """The machine and the versions."""
    cards = torch.cuda.device_count()
    return {
        "ranks": node.size,
        "backend": node.backend,
        "GPUs of this host": [torch.cuda.get_device_name(number) for number in range(cards)],
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "nccl": _nccl_version(),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _nccl_version() -> str:
    if not dist.is_nccl_available():
        return "none"
    return ".".join(map(str, torch.cuda.nccl.version()))


def text(found: dict[str, Any]) -> str:
    """A line per case, what a step costs, and the verdict."""
    cases = found["cases"]
    lines = [f"{'ok' if each['result'] == 'right' else 'wrong':<6}{name}" for name, each in cases.items()]
    for name, each in cases.items():
        if each["result"] != "right":
            lines.append(f"      {name}: {each['result']}")
    for cost in found["costs"]:
        synchronised = sum(cost["synchronisations"].values())
        lines.append(f"      {cost['what']}: {synchronised} synchronisations per step, {cost['buffers']} x parameters")
    wrong = sum(each["result"] != "right" for each in cases.values())
    lines.append(f"wrong: {wrong} of {len(cases)} cases" if wrong else f"all {len(cases)} cases are right")
    return "\n".join(lines)
