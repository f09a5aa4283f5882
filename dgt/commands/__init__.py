"""One module or package per command of `dgt`: what it takes, its help, an example, and what it does.

A module here that has a `COMMAND` is a command. Its top imports nothing heavy, because `python -m dgt` imports it
before torch; what the command needs is imported when it runs.
"""

from __future__ import annotations

import importlib
import pkgutil

from dgt.commands.base import Command


def find(name: str) -> Command | None:
    """The command of this name, if there is one."""
    if name not in {module.name for module in pkgutil.iter_modules(__path__)}:
        return None
    return getattr(importlib.import_module(f"{__name__}.{name}"), "COMMAND", None)


def every() -> list[Command]:
    """All commands, in the order in which they are listed."""
    found = [find(module.name) for module in pkgutil.iter_modules(__path__)]
    return sorted((command for command in found if command is not None), key=lambda command: command.order)
