"""What is wrong is told in one line that names the value and what is allowed: the errors and the checks behind it."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import math
import textwrap
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Section = TypeVar("Section")


class ConfigError(ValueError):
    """Bad input: one line that names the value and what is allowed, and exit code 2."""

    def __init__(self, words: str) -> None:
        super().__init__(" ".join(words.splitlines()))  # other people's reasons may have several


class SharedError(ConfigError):
    """A `ConfigError` found by comparing the ranks: all of them raise it, so only rank 0 needs to speak."""


class TrainingError(RuntimeError):
    """The run cannot go on; said by the rank that finds out."""


class AlarmError(TrainingError):
    """The network as a whole is unwell: nobody may go on, not even without the node that noticed."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """'did you mean ...' for a mistyped word, followed by all choices when they are few."""
    known = list(choices)
    by_lower = {choice.lower(): choice for choice in known}
    close = [by_lower[match] for match in difflib.get_close_matches(str(word).lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}allowed: {', '.join(known)}" if len(known) <= 24 or not close else hint.strip()


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


def build(section: type[Section], values: Mapping[str, Any], prefix: str) -> Section:
    """Make the dataclass from a dictionary, checking every key and type on the way."""
    types = typing.get_type_hints(section)
    arguments = {}
    for key, value in values.items():
        if key not in types:
            raise ConfigError(f"{prefix}{key}: no such key; {nearest(key, types)}")
        arguments[key] = _convert(types[key], value, prefix + key)
    return section(**arguments)


def _convert(kind: Any, value: Any, key: str) -> Any:
    """Check a value against its annotation; whole numbers are fine where numbers are expected."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value}: expected a group of keys")
        return build(typing.cast(type, kind), value, key + ".")
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
        raise ConfigError(f"{key}={value}: must be {words[kind]}")
    return value


def documented(section: type) -> list[str]:
    """'key: default   # meaning' for every field, from the docstrings below them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(tree, ast.ClassDef)
    words = {}
    for field, following in itertools.pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(following, ast.Expr):
            words[field.target.id] = ast.literal_eval(following.value)
    made = section()
    return [f"{key}: {getattr(made, key)}   # {meaning}" for key, meaning in words.items()]
