"""What is wrong is told in one line that names the value and what is allowed: the errors and the checks behind it."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dgt.errors import ConfigError, printable

Section = TypeVar("Section")
NEAR = 0.75  # share of letters that two words must have in common, in order, to be taken for one another


def nearest(word: str, choices: Iterable[str]) -> str:
    """'did you mean ...' for a mistyped word, followed by all choices when they are few."""
    known = list(choices)
    close = close_to(str(word), known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}allowed: {', '.join(known)}" if len(known) <= 24 or not close else hint.strip()


def close_to(word: str, choices: Iterable[str]) -> list[str]:
    """At most three choices that `word` may have been meant for, the nearest first; often none.

    Near is what differs in a letter or two, its beginning (iter), or one with a word too many (num_nodes). A section
    that both have (checkpoint.) is no likeness, nor is the `=...` of an example.
    """
    likeness = {choice: _likeness(*_without_section(word.lower(), choice.lower())) for choice in choices}
    near = [choice for choice, ratio in likeness.items() if ratio >= NEAR]
    return sorted(near, key=lambda choice: -likeness[choice])[:3]


def _without_section(word: str, choice: str) -> tuple[str, str]:
    choice, section = choice.partition("=")[0], choice.rpartition(".")[0] + "."
    return (word.removeprefix(section), choice.removeprefix(section)) if word.startswith(section) else (word, choice)


def _likeness(word: str, choice: str) -> float:
    """From 0 to 1, the same word."""
    ratio = difflib.SequenceMatcher(None, word, choice).ratio()
    swapped = len(word) > 1 and sorted(word) == sorted(choice)
    beginning = len(word) > 2 and choice.startswith(word)
    one_of_several = len(choice) > 3 and choice in re.split(r"[._-]", word)
    return max(ratio, NEAR if swapped or beginning or one_of_several else 0.0)


def check_choice(key: str, value: str, choices: Iterable[str]) -> None:
    if value not in tuple(choices):
        raise ConfigError(f"{key}={value}: {nearest(value, choices)}")


def check_range(
    key: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise unless value lies between low and high; an open end excludes the bound itself."""
    too_low = value <= low if open_low else value < low
    too_high = value >= high if open_high else value > high
    finite = isinstance(value, int) or math.isfinite(value)
    if not finite or too_low or too_high:
        lower = "" if low == -math.inf else f"{'above' if open_low else 'at least'} {low:g}"
        upper = "" if high == math.inf else f"{'below' if open_high else 'at most'} {high:g}"
        allowed = " and ".join(part for part in ("" if finite else "finite", lower, upper) if part)
        raise ConfigError(f"{key}={value}: must be {allowed}")


def check_name(key: str, value: str) -> None:
    """Raise if a path has line breaks, other control characters, or bytes that are no text."""
    odd = next((letter for letter in value if letter != printable(letter) or "\ud800" <= letter <= "\udfff"), None)
    if odd is not None:
        shown = printable(value.encode("utf-8", "backslashreplace").decode())
        raise ConfigError(f"{key}={shown}: has {odd!r} in it; choose a name without control characters")


def build(section: type[Section], values: Mapping[str, Any], prefix: str) -> Section:
    """Make the dataclass from a dictionary, checking every key and type on the way."""
    types, arguments = typing.get_type_hints(section), {}
    for key, value in values.items():
        if key not in types:
            hint = nearest(key, types) if types else "it has no settings"
            raise ConfigError(f"{prefix}{key}: no such key; {hint}")
        arguments[key] = _convert(types[key], value, prefix + key)
    for field in dataclasses.fields(typing.cast(Any, section)):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in arguments:
            raise ConfigError(f"{prefix}{field.name}: has no default; give it, {prefix}{field.name}=VALUE")
    return section(**arguments)


def _convert(kind: Any, value: Any, key: str) -> Any:
    """Check a value against its annotation; whole numbers are fine where numbers are expected."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value}: expected a group of keys")
        return build(typing.cast(type, kind), value, key + ".")
    if kind is Any:
        return value
    if kind is dict or typing.get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value}: expected a group of keys")
        return dict(value)
    options = typing.get_args(kind) if typing.get_origin(kind) is not list else ()
    if options:
        if value is None and type(None) in options:
            return None
        return _convert(next(option for option in options if option is not type(None)), value, key)
    if typing.get_origin(kind) is list:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key}={value}: expected a list")
        return [_convert(typing.get_args(kind)[0], item, key) for item in value]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and value == "":
        raise ConfigError(f"{key}=: must not be empty")
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise ConfigError(f"{key}={value}: must be {words.get(kind, f'a {kind.__name__}')}")
    return value
