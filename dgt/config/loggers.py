"""The config group `logger`: where metrics go besides metrics.jsonl. One sink, several, or one's own.

    logger=tensorboard
    logger=[tensorboard,wandb] logger.project=mine            each takes the settings that it declares
    logger._target_=my_module.MySink logger.path=here         besides those that are named

Sinks are modules of `dgt/runs/sinks/`, found by `registry`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dgt.config import registry
from dgt.config.checks import check_choice, nearest
from dgt.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class LoggerConfig:
    """Which sinks are wanted.

    names     sinks of the package; metrics.jsonl and progress are always written
    target    dotted path of a `Sink` from outside the package, or None
    settings  values for them; those of the package are checked at once and completed, a target's by `sinks`
    """

    names: list[str] = field(default_factory=lambda: ["jsonl"])
    target: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError(f"logger=[]: name at least one; allowed: {', '.join(names())}")
        for name in self.names:
            check_choice("logger", name, names())
        if self.target is None:
            found = [settings for _, _, settings in self.sinks()]
            self.settings = {key: value for each in found for key, value in dataclasses.asdict(each).items()}

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoggerConfig:
        """Read what `to_dict` gave, or what `conf/` composes to."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"logger={values}: expected a group of keys")
        rest = {str(key): value for key, value in values.items() if key not in ("name", "_target_")}
        name = values.get("name", "jsonl")
        listed = list(dict.fromkeys(map(str, name))) if isinstance(name, list) else [str(name)]
        target = values.get("_target_")
        if "_target_" in values and (not isinstance(target, str) or not target):
            raise ConfigError("logger._target_: give the class, such as logger._target_=my_module.MySink")
        if target is not None:  # the name may be that of a file of one's own
            listed = [one for one in listed if one in names()] or ["jsonl"]
        return cls(names=listed, target=target, settings=rest)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is unset is left out."""
        target = {} if self.target is None else {"_target_": self.target}
        values = {key: value for key, value in self.settings.items() if value is not None}
        return {"name": self.names[0] if len(self.names) == 1 else list(self.names), **target, **values}

    def sinks(self) -> list[tuple[str, Any, Any]]:
        """(name, class, its settings) of every sink that is wanted; raises where one cannot take a setting."""
        kinds = [(name, registry.find("logger", name)) for name in self.names]
        if self.target is not None:
            kinds.append((self.target, registry.resolve(self.target, "logger._target_")))
        fields = {name: _fields(kind) for name, kind in kinds}
        known = [key for own in fields.values() for key in own]
        for key in self.settings:
            if key not in known:
                hint = nearest(key, known) if known else "it has no settings"
                raise ConfigError(f"logger.{key}: no such key; {hint}")
        return [(name, kind, self._settings_of(kind, fields[name])) for name, kind in kinds]

    def _settings_of(self, kind: Any, own: list[str]) -> Any:
        given = {key: value for key, value in self.settings.items() if key in own}
        return registry.settings_from("logger", kind, given) if hasattr(kind, "Settings") else None


def names() -> tuple[str, ...]:
    """The sinks of the package."""
    return registry.names("logger")


def _fields(kind: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(kind.Settings)] if hasattr(kind, "Settings") else []
