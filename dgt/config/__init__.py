"""What a user chooses: the dataclasses of a run (`schema`), made from overrides by Hydra (`compose`), and back."""

from __future__ import annotations

import warnings
from typing import Any

from dgt.config import registry
from dgt.config.choices import AlgorithmConfig, ProblemConfig, ScheduleConfig, TopologyConfig
from dgt.config.schema import AUTO, TRANSPORTS, WIRES, Config
from dgt.config.sections import STRATEGIES, CheckpointConfig, StopConfig, StrategyConfig, WeightsConfig

__all__ = [
    "AUTO",
    "STRATEGIES",
    "TRANSPORTS",
    "WIRES",
    "AlgorithmConfig",
    "CheckpointConfig",
    "Config",
    "ProblemConfig",
    "ScheduleConfig",
    "StopConfig",
    "StrategyConfig",
    "TopologyConfig",
    "WeightsConfig",
]

_LISTS = {"ALGORITHMS": "algorithm", "TOPOLOGIES": "topology"}
_RENAMED = {"LeastSquaresConfig": "least_squares", "Cifar10Config": "cifar10", "TextConfig": "text"}


def __getattr__(name: str) -> Any:
    """Lists that are looked up, and for one version the names of former classes."""
    if name in _LISTS:
        return registry.names(_LISTS[name])
    if name in _RENAMED:
        warnings.warn(f"{name} is now ProblemConfig(name='{_RENAMED[name]}')", DeprecationWarning, stacklevel=2)
        return lambda **settings: ProblemConfig(name=_RENAMED[name], **settings)
    if name == "CustomConfig":
        warnings.warn("CustomConfig is now ProblemConfig(_target_=...)", DeprecationWarning, stacklevel=2)
        return lambda *, name="custom", target, arguments=None: ProblemConfig(
            name=name, _target_=target, **(arguments or {})
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
