"""What can be chosen by name in a config, and from outside the package by `_target_`: looked up, listed nowhere.

    algorithm=x   dgt/algorithms/x.py   with  ALGORITHM = a class
    problem=x     dgt/problems/x.py     with  PROBLEM = a class
    logger=x      dgt/runs/sinks/x.py   with  SINK = a class
    schedule=x    dgt/training/schedules/x.py   with  SCHEDULE = a class
    topology=x    dgt/network/*.py      with  @topology above a function

The names are read from the files; a module is imported when what it has is chosen. Imports are by dotted name, because
all of these packages are above this one.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dgt.config.checks import build, check_choice
from dgt.config.settings import Empty, check_settings, settings_of
from dgt.errors import ConfigError

_TOP = Path(__file__).parents[1]
_TABLE = "dgt.network.topologies"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the choices of a config group are: modules of a package with a line that begins with `mark`."""

    package: str
    mark: str

    def modules(self) -> list[str]:
        folder = _TOP.joinpath(*self.package.split(".")[1:])
        line = re.compile(rf"^{self.mark}\b", re.MULTILINE)
        names = [module.name for module in pkgutil.iter_modules([str(folder)]) if not module.ispkg]
        return [name for name in names if line.search((folder / f"{name}.py").read_text(encoding="utf-8"))]


PLACES = {
    "algorithm": Place("dgt.algorithms", "ALGORITHM"),
    "problem": Place("dgt.problems", "PROBLEM"),
    "logger": Place("dgt.runs.sinks", "SINK"),
    "schedule": Place("dgt.training.schedules", "SCHEDULE"),
    "topology": Place("dgt.network", "@topology"),
}


@lru_cache
def names(group: str) -> tuple[str, ...]:
    """The choices of a group that are part of the package."""
    return tuple(_topologies()) if group == "topology" else tuple(PLACES[group].modules())


def find(group: str, name: str) -> Any:
    """The class or function of this name; raises `ConfigError` with the nearest names."""
    check_choice(group, name, names(group))
    if group == "topology":
        return _topologies()[name]
    place = PLACES[group]
    return getattr(importlib.import_module(f"{place.package}.{name}"), place.mark)


@lru_cache
def _topologies() -> dict[str, Any]:
    place = PLACES["topology"]
    for name in place.modules():
        importlib.import_module(f"{place.package}.{name}")
    found: dict[str, Any] = importlib.import_module(_TABLE).TOPOLOGIES
    return found


def resolve(target: str, key: str = "problem._target_") -> Any:
    """The class or function behind a dotted path; modules in the current directory count."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return pkgutil.resolve_name(target)
    except Exception as error:  # whatever the user's module does while it is imported
        raise ConfigError(f"{key}={target}: cannot import it ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """The error's own words; with kind and place where the user's code raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, (ImportError, SyntaxError)) or last.filename == pkgutil.__file__:
        return str(error)
    return f"{type(error).__name__}: {error}, {last.filename}, line {last.lineno}"


def settings_class(group: str, chosen: Any) -> type | None:
    """The settings that a chosen class or function declares; None for a problem that declares none.

    A topology declares them as keyword arguments, all others as a nested dataclass `Settings`. A problem without one
    takes any keyword arguments that its constructor takes.
    """
    if group == "topology":
        return settings_of(chosen)
    return getattr(chosen, "Settings", None) or (None if group == "problem" else Empty)


def settings_from(group: str, chosen: Any, values: dict[str, Any]) -> Any:
    """The settings of a chosen class or function with these values: keys, types and bounds are checked.

    A `Settings` class may have a method `check()` for what concerns several of its values.
    """
    kind, prefix = settings_class(group, chosen), f"{group}."
    assert kind is not None, "asked before"
    settings: Any = build(kind, values, prefix)
    check_settings(settings, prefix)
    if hasattr(settings, "check"):
        try:
            settings.check()
        except ConfigError as error:  # also raised where the class is used without a config
            raise ConfigError(f"{prefix if not str(error).startswith(prefix) else ''}{error}") from None
    return settings
