"""Settings: default, meaning and bounds of a value stand once, where it is declared; help, checks and files follow.

    @dataclass(slots=True, kw_only=True)
    class Settings:
        momentum: float = setting(0.0, "share of the last direction that is kept", low=0, high=1, open_high=True)

A class that can be chosen in a config (an algorithm, a problem, a logger) carries such a class as `Settings`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dgt.config.checks import check_choice, check_range

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

    def check(self, key: str, value: Any) -> None:
        """Raise `ConfigError` unless the value, or every item of a list, is allowed; None is."""
        for item in value if isinstance(value, list) else [value]:
            if self.choices and item is not None:
                check_choice(key, item, self.choices)
            elif isinstance(item, (int, float)) and not isinstance(item, bool):
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
    metadata = {_KEY: Meaning(help, low, high, open_low, open_high, tuple(choices))}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def meanings(settings: Any) -> Iterator[tuple[str, Meaning]]:
    """(name, meaning) of every field that `setting` declared, of a settings class or an instance."""
    for field in dataclasses.fields(settings):
        if _KEY in field.metadata:
            yield field.name, field.metadata[_KEY]


def check_settings(settings: Any, prefix: str = "") -> None:
    """Raise `ConfigError` at the first value out of its bounds, as `prefix` + its name."""
    for name, meaning in meanings(settings):
        meaning.check(prefix + name, getattr(settings, name))
