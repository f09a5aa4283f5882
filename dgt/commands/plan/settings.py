"""What `dgt plan` takes besides the settings of a run: a budget, a link, an accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dgt.config import Config
from dgt.config import compose as composing
from dgt.config.checks import build, close_to
from dgt.config.settings import check_settings, documented, setting
from dgt.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class BudgetConfig:
    degree: int | None = setting(None, "most neighbours that any node may have", low=1)
    bytes: float | None = setting(
        None, "most bytes that any node may send per iteration, on average over local steps", low=0, open_low=True
    )

    def __post_init__(self) -> None:
        check_settings(self, "budget.")


@dataclass(slots=True, kw_only=True)
class PlanConfig:
    """What `dgt plan` takes besides the settings of a run."""

    budget: BudgetConfig = field(default_factory=BudgetConfig)
    parameters: int | None = setting(None, "parameters of the model; null: the problem's own", low=1)
    accuracy: float = setting(
        0.05,
        "target: gradient norm and consensus error as a share of their initial values",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )
    bandwidth: float | None = setting(
        None,
        "GB/s that a node can send; with it candidates are ranked by time, other wires and local_steps among them",
        low=0,
        open_low=True,
    )
    latency: float = setting(0.0, "microseconds for a message to arrive", low=0)
    compute: float = setting(0.0, "milliseconds for a gradient", low=0)
    measure: bool = setting(False, "measure bandwidth and latency between two ranks on this host")
    write: str | None = setting(None, "folder for the config: dgt train --config-dir FOLDER experiment=plan")

    def __post_init__(self) -> None:
        check_settings(self)
        stated = {key: value for key in ("bandwidth", "latency", "compute") if (value := getattr(self, key))}
        for key, value in stated.items():
            if self.measure and key != "compute":
                raise ConfigError(f"measure=true: {key}={value:g} is given; leave one of them out")
            if not self.measure and self.bandwidth is None:
                raise ConfigError(f"{key}={value:g}: times need bandwidth=GB/s too, or measure=true")

    @property
    def has_link(self) -> bool:
        """Whether times can be told."""
        return self.measure or self.bandwidth is not None


def settings() -> list[str]:
    """'key: default   # meaning' for --help."""
    return [f"budget.{line}" for line in documented(BudgetConfig)] + documented(PlanConfig)


def split(overrides: Sequence[str]) -> tuple[PlanConfig, list[str]]:
    """Settings of the plan itself, and overrides of the runs that are planned."""
    own: dict[str, Any] = {}
    rest, top = [], [field.name for field in dataclasses.fields(PlanConfig)]
    config_keys = {field.name for field in dataclasses.fields(Config)}
    for override in overrides:
        key = override.partition("=")[0]
        section, _, name = key.partition(".")
        if section not in top:
            close = close_to(section, top)
            if close and section not in config_keys and not key.startswith(("hydra", "experiment", "+", "~")):
                raise ConfigError(f"{key}: no such key; did you mean {close[0]}?")
            rest.append(override)
            continue
        (value,) = composing.plain_values([override]).values()
        if name:
            own.setdefault(section, {})[name] = value
        else:
            own[section] = value
    return build(PlanConfig, own, ""), rest
