"""One training run on this host, or as the rank that a launcher made of this process: everything is checked first."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgt import problems
from dgt.config import Config
from dgt.config.checks import check_range
from dgt.errors import ConfigError
from dgt.launching import launch
from dgt.launching.launch import JoinOptions
from dgt.processes import environment
from dgt.runs.logger import check_logger, claim_run_dir
from dgt.training.checkpoints.finding import source_of
from dgt.training.jobs import TrainJob
from dgt.training.setup import network_of


def run_here(config: Config, swept: Mapping[str, str], command: str, show: str) -> dict[str, Any]:
    """Start the ranks of this run on this host; returns its summary, nothing where it could not be written.

    `swept` is what a sweep calls it by, `command` what starts this run alone; both are empty for a run of its own.
    """
    job = prepared(config, show, swept, command)
    weights, _ = network_of(job.config, environment.placement(), as_drawn=True)
    launch.start_ranks(job, int(weights.size), JoinOptions.from_config(job.config))
    try:
        return summary_of(Path(str(job.config.run_dir)))
    except (OSError, ValueError):  # rank 0 has said why
        return {}


def summary_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return found


def prepared(config: Config, show: str, swept: Mapping[str, str] | None = None, command: str = "") -> TrainJob:
    """Everything that can be wrong is found here, before any rank computes; rank 0 claims the run directory."""
    here = environment.placement()
    weights, _ = network_of(config, here, as_drawn=True)
    problems.check(config, weights)
    if config.chaos.rank is not None:
        check_range("chaos.rank", config.chaos.rank, 0, int(weights.size) - 1)
    if config.on_peer_loss == "continue" and here.launcher == "torchrun":
        raise ConfigError(
            "on_peer_loss=continue: torchrun ends all ranks when one is lost; on_peer_loss=stop there (it may change "
            "when a run is resumed), or use dgt train alone, or srun"
        )
    if here.local_rank == 0:  # once per host; the others would only wait, or fail, one after the other
        problems.fetch(config, environment.cache_dir(), tell)
    if here.rank == 0:
        check_logger(config)
        source_of(config)
        config = dataclasses.replace(config, run_dir=claim_run_dir(config, swept))
    return TrainJob(config, show, command or typed())


def typed() -> str:
    """The command as the user gave it."""
    return shlex.join(["dgt", *sys.argv[1:]])


def tell(words: str) -> None:
    """A line on standard error, once however many ranks say it."""
    if not environment.is_other_rank():
        print(f"dgt: {words}", file=sys.stderr, flush=True)
