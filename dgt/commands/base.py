"""`Command`, of which every command of `dgt` has one, and functions that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from dgt.errors import ConfigError
from dgt.processes import environment


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """For commands that take only overrides and --json."""


@dataclass(frozen=True, slots=True)
class Command:
    """`dgt NAME ...`: its parser, its help and its body."""

    name: str
    help: str
    """A line for `dgt --help`."""
    example: str
    run: Callable[[argparse.Namespace], None]
    settings: Callable[[], list[str]]
    """What can be set, in lines for `dgt NAME --help`."""
    order: int
    """Its place in the list of commands."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    takes: str = "key=value"
    """Metavar of its positional arguments in --help; empty if it takes none."""
    composes: bool = False
    """Whether it composes configs, and so takes --config-dir."""
    starts_ranks: bool = False
    """Whether the forkserver is started first, so that both processes import torch at the same time."""
    computes_alone: bool = False
    """Whether it does linear algebra in this process, which is then limited to one thread."""
    writes_results: bool = False
    """Whether its results are files, so that an error of writing to standard output does not end it."""


def choices() -> list[str]:
    """Lines for --help of commands that compose configs: groups, experiments, settings, as in `conf/`."""
    from dgt.config import compose as composing

    lines = ["choices:", *(f"  {group:<10} {', '.join(names)}" for group, names in composing.groups().items())]
    lines += ["             weights=[1,2,3] is a list, weights=my.txt a file", "", "experiments:"]
    lines += [f"  {line}" for line in composing.experiments()]
    return [*lines, "", "settings:", *(f"  {line}" for line in composing.settings())]


def refuse_ranks(command: str) -> None:
    """Raise if a launcher has started several processes of a command that runs in one."""
    here = environment.placement()
    if here.size > 1:
        raise ConfigError(f"dgt {command} is one process; run it outside {here.launcher}")
