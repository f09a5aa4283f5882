"""A problem from outside the package, named by `_target_` in a config or on the command line.

dgt train problem=custom problem._target_=my_module.MyProblem problem.width=64
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from dgt.config import ProblemConfig
from dgt.config.registry import resolve
from dgt.errors import ConfigError
from dgt.problems.base import Problem, ProblemContext


def instantiate(value: Any, *arguments: Any) -> Any:
    """Hydra's rule: a mapping with `_target_` becomes a call with its other entries, inner ones first."""
    if isinstance(value, list):
        return [instantiate(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = {key: instantiate(item) for key, item in value.items() if key != "_target_"}
    return resolve(value["_target_"])(*arguments, **entries) if "_target_" in value else entries


def check(config: ProblemConfig) -> None:
    """Whether the target can be imported, can be a problem, and takes these arguments."""
    target, label = config.kind, f"problem._target_={config.target}"
    other_class = inspect.isclass(target) and not issubclass(target, Problem)
    if not callable(target) or inspect.isbuiltin(target) or other_class:
        raise ConfigError(f"{label}: must be a class derived from dgt.Problem, or a function that makes one")
    if inspect.isabstract(target):
        raise ConfigError(f"{label}: give it the method {' and '.join(sorted(target.__abstractmethods__))}")
    config.check()
    signature = inspect.signature(target)
    try:
        signature.bind(None, **config.values)
    except TypeError as error:
        allowed = ", ".join(list(signature.parameters)[1:]) or "none"
        raise ConfigError(f"{label}: {error}; its arguments beside the context: {allowed}") from None
    for inner in _targets(config.values):
        resolve(inner)


def _targets(value: Any) -> Iterator[str]:
    """Every `_target_` within the arguments."""
    if isinstance(value, dict) and "_target_" in value:
        yield str(value["_target_"])
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _targets(item)


def make(config: ProblemConfig, context: ProblemContext) -> Problem:
    """Call the target with the context and its arguments."""
    problem = instantiate({"_target_": config.target, **config.values}, context)
    if not isinstance(problem, Problem):
        raise ConfigError(f"problem._target_={config.target}: made {type(problem).__name__}, must make a dgt.Problem")
    return problem
