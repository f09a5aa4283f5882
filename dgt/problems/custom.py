"""A problem from outside the package, named by `_target_` in a config or on the command line.

dgt train problem=custom problem._target_=my_module.MyProblem problem.width=64
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

from dgt.checks import ConfigError
from dgt.config import CustomConfig
from dgt.problems.base import Problem, ProblemContext


def resolve(target: str) -> Any:
    """The class or function behind a dotted path; modules in the current directory count."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"problem._target_={target}: cannot import it ({error})") from None


def instantiate(value: Any, *arguments: Any) -> Any:
    """Hydra's rule: a mapping with `_target_` becomes a call with its other entries, inner ones first."""
    if isinstance(value, list):
        return [instantiate(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = {key: instantiate(item) for key, item in value.items() if key != "_target_"}
    return resolve(value["_target_"])(*arguments, **entries) if "_target_" in value else entries


def check(config: CustomConfig) -> None:
    """Whether the target can be imported and takes these arguments."""
    try:
        inspect.signature(resolve(config.target)).bind(None, **config.arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"problem._target_={config.target}: {error}") from None


def make(config: CustomConfig, context: ProblemContext) -> Problem:
    """Call the target with the context and its arguments."""
    problem = instantiate({"_target_": config.target, **config.arguments}, context)
    if not isinstance(problem, Problem):
        raise ConfigError(f"problem._target_={config.target}: made a {type(problem).__name__}, not a dgt.Problem")
    return problem
