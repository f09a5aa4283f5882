"""One training run: all checks before any rank computes (`prepared`), and its ranks on this host (`run_here`)."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgt import problems
from dgt.config import Config
from dgt.config.checks import check_range
from dgt.config.schema import AUTO
from dgt.errors import ConfigError
from dgt.launching import launch
from dgt.launching.jobs import JoinOptions
from dgt.network.weights import Weights
from dgt.processes import environment
from dgt.processes.placement import Placement, ranks_of_host
from dgt.runs.claiming import claim_run_dir
from dgt.runs.layout import SUMMARY
from dgt.runs.mirrors import check_logger
from dgt.training import schedules, stopping
from dgt.training.checkpoints.finding import source_of
from dgt.training.jobs import TrainJob
from dgt.training.keeping import direction
from dgt.training.setup import network_of

log = logging.getLogger(__name__)


def run_here(config: Config, swept: Mapping[str, str], command: str, show: str) -> dict[str, Any]:
    """Start the ranks of this run on this host; returns its summary, empty if it could not be written.

    swept     the settings in which it differs from the other runs of its sweep; empty for a single run
    command   the command that starts this run alone; empty for a single run, whose command is that of this process
    show      text, json or nothing: how rank 0 prints the results
    """
    job = prepared(config, environment.placement(), show, swept, command)
    ranks = int(job.weights.size) * job.config.ranks_per_node
    launch.start_ranks(job, ranks, JoinOptions.from_config(job.config))
    try:
        return summary_of(Path(str(job.config.run_dir)))
    except (OSError, ValueError):  # rank 0 has logged why
        return {}


def summary_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / SUMMARY).read_text(encoding="utf-8"))
    return found


def prepared(
    config: Config, here: Placement, show: str, swept: Mapping[str, str] | None = None, command: str = ""
) -> TrainJob:
    """The job of this run, after all checks; rank 0 creates the run directory.

    here   which rank this process is, if any; all other arguments as for `run_here`
    """
    config = dataclasses.replace(config, ranks_per_node=ranks_per_node(config, here))
    weights, drawn = network_of(config, here, as_drawn=True)
    config = checked(config, weights)
    if config.checkpoint.best:
        direction(config.checkpoint.best)
    if config.chaos.rank is not None:
        check_range("chaos.rank", config.chaos.rank, 0, int(weights.size) * config.ranks_per_node - 1)
    if config.chaos.name == "churn" and config.on_peer_loss != "replace":
        raise ConfigError(
            f"chaos=churn: nodes are lost and come back, on_peer_loss=replace ({config.on_peer_loss} here)"
        )
    if config.on_peer_loss == "replace" and here.launcher != "alone":
        raise ConfigError(
            f"on_peer_loss=replace: {here.launcher} does not start a lost rank again; use dgt train alone, which does "
            "on one host, or torchrun --max-restarts with resume=auto, or on_peer_loss=continue under srun"
        )
    if config.on_peer_loss == "replace" and config.ranks_per_node != 1:
        raise ConfigError(
            f"on_peer_loss=replace: not with ranks_per_node={config.ranks_per_node}, whose nodes do not come back; "
            "take on_peer_loss=continue"
        )
    if config.on_peer_loss == "continue" and here.launcher == "torchrun":
        raise ConfigError(
            "on_peer_loss=continue: torchrun ends all ranks when one is lost; on_peer_loss=stop there (it may change "
            "when a run is resumed), or use dgt train alone, or srun"
        )
    if here.local_rank == 0:  # one rank per host downloads; the others wait for it when they join
        problems.fetch(config, environment.cache_dir(), log.info)
    if here.rank == 0:
        check_logger(config)
        source_of(config)
        config = dataclasses.replace(config, run_dir=claim_run_dir(config, swept))
    return TrainJob(config, weights, drawn, show, command or typed())


def ranks_per_node(config: Config, here: Placement) -> int:
    """How many ranks a node has; the GPUs are counted only where that is asked for."""
    if config.ranks_per_node != AUTO:
        return int(config.ranks_per_node)
    if JoinOptions.from_config(config).device == "cpu":
        return 1
    import torch

    return ranks_of_host(here, torch.cuda.device_count())


def checked(config: Config, weights: Weights) -> Config:
    """The config with its epochs as iterations; raises for what can be known to be wrong before any rank starts."""
    problems.check(config, weights)
    config = dataclasses.replace(config, iterations=problems.iterations_of(config, int(weights.size)))
    schedules.of(config)
    stopping.check(config)
    return config


def typed() -> str:
    """The command line of this process."""
    return shlex.join(["dgt", *sys.argv[1:]])
