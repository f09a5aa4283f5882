"""`dgt train`: one training run, or with -m one per combination of values; a rank where a launcher started it."""

from __future__ import annotations

import argparse
import shlex

from dgt.commands.base import Command, choices
from dgt.errors import ConfigError, LaunchError
from dgt.processes import environment


def run(options: argparse.Namespace) -> None:
    """One run, or with -m one run per combination."""
    from dgt.commands.train import sweeping
    from dgt.config import compose as composing
    from dgt.config import effect
    from dgt.launching import sweeps
    from dgt.launching.jobs import JoinOptions
    from dgt.launching.rank import be_rank
    from dgt.launching.run import prepared, run_here

    here = environment.placement()
    show = "json" if options.json else "text"
    overrides, slurm = sweeps.split(options.overrides)
    effect.refuse("train", overrides)
    settings = sweeps.checked(slurm, options.multirun) if slurm else {}
    if here.launcher != "alone":
        if options.multirun:
            raise ConfigError(f"-m: sweeps start their own ranks; run them outside {here.launcher}")
        be_rank(
            lambda: prepared(composing.compose(overrides), here, show),
            lambda job: JoinOptions.from_config(job.config),
        )
        return
    runs, swept, configs = sweeping.runs_of(options, overrides, below_one_directory=bool(slurm))
    if slurm:
        done, failed = sweeps.on_slurm(settings, swept, configs)
        swept, summaries = [swept[number] for number, _ in done], [summary for _, summary in done]
    else:
        how = "nothing" if options.multirun and options.json else show
        typed = [shlex.join(["dgt", "train", *words]) if options.multirun else "" for words in runs]
        summaries, failed = [run_here(*one, how) for one in zip(configs, swept, typed, strict=True)], 0
    sweeping.show(options, summaries, swept)
    if failed:
        raise LaunchError(f"{failed} of {len(configs)} runs failed")


SLURM = "; with hydra/launcher=slurm each is a Slurm job"


def add_arguments(parser: argparse.ArgumentParser, more: str = SLURM) -> None:
    sweep = "sweep: every combination of comma-separated values"
    parser.add_argument("-m", "--multirun", action="store_true", help=sweep + more)
    parser.add_argument("--only", type=int, metavar="K", help="of a sweep, the K-th run only, counted from 0")


COMMAND = Command(
    name="train",
    help="train one network (or, with -m, one per combination of values)",
    example="dgt train weights=A topology=exponential strategy=II",
    run=run,
    settings=choices,
    order=1,
    add_arguments=add_arguments,
    composes=True,
    starts_ranks=True,
    writes_results=True,
)
