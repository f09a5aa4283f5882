"""The small harness of the distributed tests: start real ranks, run a job on each, get what each returned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks

DGT = [sys.executable, "-m", "dgt"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def run_ranks(job: Any, nodes: int, timeout: float = 30.0) -> dict[int, Any]:
    return start_ranks(job, nodes, JoinOptions(device="cpu", timeout=timeout))


def command(arguments: list[str], cwd: Path, timeout: float = 120.0, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command as a user would type it, with a bound on its time."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC_"))}
    environment = {**plain, "OMP_NUM_THREADS": "1", **extra}
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment)
