"""`dgt run -n 4 my_training.py`: a program of the user's own as every node of a network on this host."""

from __future__ import annotations

import argparse
from pathlib import Path

from dgt.commands.base import Command
from dgt.config.checks import check_range
from dgt.errors import ConfigError
from dgt.processes import environment


def run(options: argparse.Namespace) -> None:
    """Start the ranks, each running the program."""
    from dgt.launching.launch import JoinOptions, Script, start_ranks

    here = environment.placement()
    if here.launcher != "alone":
        raise ConfigError(f"dgt run starts its own ranks; inside {here.launcher}, run the program itself")
    check_range("-n", options.nodes, 1)
    if not Path(options.program).is_file():
        raise ConfigError(f"{options.program}: no such file")
    start_ranks(Script(options.program, options.arguments), options.nodes, JoinOptions())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", dest="nodes", type=int, required=True, metavar="NODES", help="how many ranks to start")
    parser.add_argument("program", metavar="PROGRAM.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the program")


COMMAND = Command(
    name="run",
    help="run a program of your own as every node",
    example="dgt run -n 4 my_training.py",
    run=run,
    settings=lambda: ["NODES ranks on this host each run PROGRAM.py, which joins the network with dgt.join()."],
    order=10,
    add_arguments=add_arguments,
    takes="",
    starts_ranks=True,
    writes_results=True,
)
