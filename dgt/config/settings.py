"""Settings: default, meaning and bounds of a value stand once, where it is declared; help, checks and files follow.

    @dataclass(slots=True, kw_only=True)
    class Settings:
        momentum: float = setting(0.0, "share of the last direction that is kept", low=0, high=1, open_high=True)

A class that can be chosen in a config (an algorithm, a problem, a logger) carries such a class as `Settings`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dgt.config.checks import check_choice, check_range
from dgt.errors import ConfigError

_KEY = "dgt"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is said about a setting besides its default, and what its values are checked against."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str, ...] = ()
    needed: str = ""
    """What is said where the value is None, if it must not be."""

    @property
    def _bounded(self) -> bool:
        return self.low > -math.inf or self.high < math.inf

    def check(self, key: str, value: Any) -> None:
        """Raise `ConfigError` unless the value, or every item of a list, is allowed; None is, if it is not `needed`."""
        if value is None and self.needed:
            raise ConfigError(self.needed)
        for item in value if isinstance(value, list) else [value]:
            if self.choices and item is not None:
                check_choice(key, item, self.choices)
            elif self._bounded and isinstance(item, (int, float)) and not isinstance(item, bool):
                check_range(key, item, self.low, self.high, open_low=self.open_low, open_high=self.open_high)


def setting(
    default: Any,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    choices: Iterable[str] = (),
) -> Any:
    """A field of a settings dataclass.

    default    its value if nothing is said; a list is copied
    help       its meaning, in one line
    low, high  bounds of a number, or of every number of a list; an open end excludes the bound itself
    choices    the words that are allowed
    """
    return _field(Meaning(help, low, high, open_low, open_high, tuple(choices)), default)


def meanings(settings: Any) -> Iterator[tuple[str, Meaning]]:
    """(name, meaning) of every field that `setting` declared, of a settings class or an instance."""
    for field in dataclasses.fields(settings):
        if _KEY in field.metadata:
            yield field.name, field.metadata[_KEY]


def check_settings(settings: Any, prefix: str = "") -> None:
    """Raise `ConfigError` at the first value out of its bounds, as `prefix` + its name."""
    for name, meaning in meanings(settings):
        meaning.check(prefix + name, getattr(settings, name))


@dataclass(slots=True, kw_only=True)
class Empty:
    """The settings of what has none."""


@lru_cache
def settings_of(function: Callable[..., Any]) -> type:
    """A settings dataclass of a function's arguments but the first, with the defaults of its signature.

    Help and bounds stand in the annotation: `radius: Annotated[float, Meaning("...", low=0)] = 0.3`.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    fields = []
    for argument in list(inspect.signature(function).parameters.values())[1:]:
        if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            kind, *extras = _taken_apart(hints.get(argument.name, Any))
            meaning = next((extra for extra in extras if isinstance(extra, Meaning)), Meaning(""))
            given = () if argument.default is argument.empty else (argument.default,)
            fields.append((argument.name, kind, _field(meaning, *given)))
    return dataclasses.make_dataclass("Settings", fields, kw_only=True)


def _field(meaning: Meaning, *default: Any) -> Any:
    """A field of a dataclass with this default, or none; a list or dictionary is copied."""
    metadata = {_KEY: meaning}
    if default and isinstance(default[0], (list, dict)):
        return dataclasses.field(default_factory=default[0].copy, metadata=metadata)
    return dataclasses.field(default=default[0], metadata=metadata) if default else dataclasses.field(metadata=metadata)


def _taken_apart(hint: Any) -> tuple[Any, ...]:
    """Annotated[kind, extras...] -> (kind, extras...)."""
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)


def defaults(settings: type) -> dict[str, Any]:
    """The value of every setting if nothing is said; None where one must be given."""
    return {field.name: _default(field) for field in dataclasses.fields(settings)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def documented(settings: type) -> list[str]:
    """'key: default   # help' of every setting, as it would be written in a file of `conf/`."""
    values = defaults(settings)
    return [
        f"{name}: {in_yaml(values[name])}" + f"   # {meaning.help}" * bool(meaning.help)
        for name, meaning in meanings(settings)
    ]


def in_yaml(value: Any) -> str:
    """null, true, false, numbers, words and lists of them."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(in_yaml, value))}]" if isinstance(value, list) else str(value)
