"""Ranks of dgt's own launcher, each with a GPU that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dgt.launching.jobs import Job, JoinOptions
from dgt.launching.launch import start_ranks
from dgt.processes.node import Node
from tests.fake_cuda.ledger import ledger


@dataclass
class OnFakeGpus:
    """A job whose ranks have GPUs: they are there once it has been unpickled, before a rank joins."""

    job: Job
    gpus: int = 8

    def __reduce__(self) -> Any:
        return with_gpus, (self.job, self.gpus)

    def run(self, node: Node) -> Any:
        assert node.device.type == "cuda", node.device
        result = self.job.run(node)
        if ledger.faults:
            raise AssertionError("; ".join(ledger.faults[:5]))
        return result


def with_gpus(job: Job, gpus: int) -> OnFakeGpus:
    from tests.fake_cuda import device

    device.install(gpus)
    return OnFakeGpus(job, gpus)


def start_on_fake_gpus(job: Job, nodes: int, timeout: float = 30.0, backend: str = "auto", gpus: int = 8) -> Any:
    """What every rank returned, by rank."""
    return start_ranks(OnFakeGpus(job, gpus), nodes, JoinOptions(backend, "cuda", timeout))
