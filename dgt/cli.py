"""The `dgt` command: parses the command line, runs the command, and logs an error in one line."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import dgt
from dgt import commands
from dgt.commands.base import Command
from dgt.errors import EXIT_BAD_INPUT, ConfigError, DataError, LaunchError
from dgt.launching import forkserver
from dgt.processes import environment, output, signals

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors are one line on standard error and exit code 2 (bad input) or 1."""
    output.log_to_stderr(is_main=not environment.is_other_rank())
    try:
        options, more = parser().parse_known_args(arguments)
        unknown = next((word for word in more if word.startswith("-")), None)
        if unknown is not None:
            raise ConfigError(f"{unknown}: no such option; see dgt --help")
        options.overrides += more  # argparse leaves arguments after an option here
        if getattr(options, "config_dir", None):
            from dgt.config.compose import search_override

            options.overrides.insert(0, search_override(Path(options.config_dir)))
        options.command.run(options)
    except ConfigError as error:
        _refuse(error)
    except LaunchError as error:
        _leave(str(error), error.code)
    except KeyboardInterrupt:
        _leave("interrupted", 128 + signal.SIGINT)


class _Parser(argparse.ArgumentParser):
    """Mistakes are a `ConfigError`, like all others; the settings for --help are collected only when it is printed."""

    command: Command | None = None

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def format_help(self) -> str:
        if self.command is not None:
            self.epilog = "\n".join([*self.command.settings(), "", f"example: {self.command.example}"])
        return super().format_help()


def parser() -> argparse.ArgumentParser:
    """For `dgt COMMAND ...`."""
    top = _Parser(prog="dgt", description="Weighted decentralized training: one process per network node.")
    top.add_argument("--version", action="version", version=f"dgt {dgt.__version__}")
    subparsers = top.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in commands.every():
        made = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.command = command
        made.set_defaults(command=command, overrides=[])
        command.add_arguments(made)
        if command.takes:
            made.add_argument("overrides", nargs="*", metavar=command.takes, help="settings, listed below")
            made.add_argument("--json", action="store_true", help="print JSON in place of text")
        if command.composes:
            made.add_argument("--config-dir", metavar="DIR", help="a folder with config groups of your own")
    return top


def _refuse(error: ConfigError) -> NoReturn:
    """Exit for bad input. A launcher kills all ranks when the first exits: so they join, rank 0 prints it, all exit.

    Where the data of one host is wrong its own ranks print it: the ranks of other hosts do not come here.
    """

    def again() -> NoReturn:
        raise error

    if environment.is_launched() and not isinstance(error, DataError):
        from dgt.launching.jobs import JoinOptions
        from dgt.launching.rank import be_rank

        be_rank(again, lambda _: JoinOptions())
    forkserver.stop()
    log.error("%s", error)
    raise SystemExit(EXIT_BAD_INPUT)


def _leave(words: str, code: int) -> NoReturn:
    """Exit with this code. Under a launcher all ranks come here with the same message, and rank 0 prints it."""
    signals.ignore_signals()
    forkserver.stop()
    if not environment.is_other_rank():  # above 2 are codes of signals and stops, which are no errors
        log.log(logging.INFO if code > EXIT_BAD_INPUT else logging.ERROR, "%s", words)
    raise SystemExit(code)
