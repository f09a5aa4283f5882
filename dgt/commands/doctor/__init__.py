"""`dgt doctor`: what is wrong with this host, these ranks, or a run that failed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from dgt.commands.base import Command
from dgt.errors import EXIT_FAILED, ConfigError
from dgt.processes import environment

FEWEST_GPUS = 2
SETTINGS = """Alone it looks at this host. Under torchrun or srun it looks at all hosts and lets ranks talk.

nodes=64 asks whether 64 ranks fit on this host; a run directory, why that run failed.

gpu runs every algorithm, graph and wire on this host's GPUs, under torchrun or srun on those of all hosts, compares the
numbers with the twin, and writes dgt-gpu.json, or the file that is named after it."""


def run(options: argparse.Namespace) -> None:
    """Check this host and two ranks on it, or under a launcher all hosts and their ranks."""
    from dgt.commands.doctor import examination
    from dgt.launching.jobs import JoinOptions
    from dgt.launching.rank import be_rank

    if options.overrides[:1] == ["gpu"]:
        _examine_gpus(options)
        return
    ranks = examination.ranks_of(options.overrides)
    if options.overrides and ranks is None:
        _explain_failure(options)
        return
    if environment.placement().launcher == "alone":
        findings = examination.here(ranks or examination.RANKS) + examination.exchange()
    else:
        findings = be_rank(examination.ClusterJob, lambda _: JoinOptions(device="cpu"))
    if findings is None:
        return
    print(json.dumps(examination.as_dicts(findings), indent=2) if options.json else examination.text(findings))
    if any(finding.verdict == examination.BAD for finding in findings):
        raise SystemExit(EXIT_FAILED)


def _examine_gpus(options: argparse.Namespace) -> None:
    """The matrix on this host's GPUs, or on those of the ranks that a launcher started."""
    import torch

    from dgt.commands.doctor.gpu.job import GpuJob, text
    from dgt.launching.jobs import JoinOptions
    from dgt.launching.launch import start_ranks
    from dgt.launching.rank import be_rank

    if len(options.overrides) > 2:
        raise ConfigError(f"{' '.join(options.overrides)}: dgt doctor gpu takes the name of a file, or nothing")
    path, joining = (options.overrides[1:] or ["dgt-gpu.json"])[0], JoinOptions(device="cuda")
    where = environment.placement()
    if where.launcher == "alone":
        cards = torch.cuda.device_count()
        if cards < FEWEST_GPUS:
            raise ConfigError(f"dgt doctor gpu: {cards} GPUs here, {FEWEST_GPUS} at least; it compares ranks on GPUs")
        found = start_ranks(GpuJob.made(cards, path), cards, joining)[0]
    else:
        found = be_rank(lambda: GpuJob.made(where.size, path), lambda _: joining)
    if found is None:
        return
    print(json.dumps(found, indent=2) if options.json else f"{text(found)}\n{path}")
    if any(case["result"] != "right" for case in found["cases"].values()):
        raise SystemExit(EXIT_FAILED)


def _explain_failure(options: argparse.Namespace) -> None:
    """Print why a run failed, from the failure notes in its directory."""
    from dgt.processes import failures
    from dgt.runs.layout import CONFIG

    run_dir = Path(options.overrides[0])
    if len(options.overrides) > 1 or not os.access(run_dir / CONFIG, os.R_OK):
        raise ConfigError(f"{' '.join(options.overrides)}: dgt doctor takes one run directory, or nothing")
    notes = failures.of_run(run_dir)
    if options.json:
        print(json.dumps([dataclasses.asdict(note) for note in notes], indent=2))
    else:
        print("\n".join(failures.lines(run_dir)))
    if notes:
        raise SystemExit(EXIT_FAILED)


COMMAND = Command(
    name="doctor",
    help="look at this host: versions, GPUs, network, memory, and two ranks that talk",
    example="srun --nodes 4 --ntasks-per-node 1 dgt doctor",
    run=run,
    settings=SETTINGS.splitlines,
    order=4,
    starts_ranks=True,
)
