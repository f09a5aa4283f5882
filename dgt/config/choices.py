"""The groups of a config whose choices have settings of their own: problem, algorithm, topology, schedule, logger.

    TopologyConfig(name="tailored", seed=3)             # a choice of the package: its settings are checked here
    AlgorithmConfig(_target_="my_module.Mine", beta=2)  # one from outside: imported and checked by `check_targets`

A choice is plain data: it travels to the ranks and into config.yaml as its name, its target and its settings.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from dgt.config import registry
from dgt.config.checks import check_choice, nearest
from dgt.config.settings import defaults
from dgt.errors import ConfigError

AnyChoice = TypeVar("AnyChoice", bound="Choice")


class Choice:
    """What was chosen in a group.

    name    of the choice; from outside the package the last part of the target, if nothing else is said
    target  dotted path of a class or function from outside the package, else None
    values  its settings: all of them, or for a target those that were given until `check` adds the others

    Settings can be read as attributes too: `config.problem.dimension`.
    """

    group: ClassVar[str]
    usual: ClassVar[str]
    """The choice if nothing is said."""
    example: ClassVar[str]
    """What to type, for messages: the class, such as ..."""
    what: ClassVar[str]
    """What a target must be, for messages."""

    def __init__(self, *, name: str | None = None, _target_: str | None = None, **values: Any) -> None:
        self.target, self.values = _target_, values
        if _target_ is None:
            self.name = self.usual if name is None else name
            check_choice(self.group, self.name, registry.names(self.group))
            self.values = dataclasses.asdict(registry.settings_from(self.group, self.kind, self._own(values)))
        elif not isinstance(_target_, str) or not _target_:
            kind, _, path = self.example.partition(" ")
            raise ConfigError(f"{self.group}._target_: give the {kind}, such as {self.group}._target_={path}")
        else:
            self.name = name or _target_.rpartition(".")[2]

    @classmethod
    def from_dict(cls: type[AnyChoice], values: Mapping[str, Any]) -> AnyChoice:
        """Read what `to_dict` gave, or what `conf/` composes to."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{cls.group}={values}: expected a group of keys")
        if "_target_" in values and not values["_target_"]:
            values = {**values, "_target_": ""}
        return cls(**{str(key): value for key, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is unset in a choice of the package is left out."""
        if self.target is not None:
            return {"name": self.name, "_target_": self.target, **self.values}
        return {"name": self.name, **{key: value for key, value in self.values.items() if value is not None}}

    @property
    def kind(self) -> Any:
        """The class or function that was chosen."""
        if self.target is None:
            return registry.find(self.group, self.name)
        return registry.resolve(self.target, f"{self.group}._target_")

    @property
    def settings(self) -> Any:
        """The settings as an object of the class that declares them; keys, types and bounds are checked."""
        return registry.settings_from(self.group, self.kind, self.values)

    def check(self) -> None:
        """Import a target, check its settings and add those that were not given; no more to do for other choices."""
        if self.target is None:
            return
        if not self.is_suitable(self.kind):
            raise ConfigError(f"{self.group}._target_={self.target}: must be {self.what}")
        if registry.settings_class(self.group, self.kind) is not None:
            self.values = dataclasses.asdict(self.settings)

    def is_suitable(self, kind: Any) -> bool:
        """Whether a target can be what the group is about."""
        return True

    def replace(self: AnyChoice, **changes: Any) -> AnyChoice:
        """The same choice with other settings."""
        return type(self)(name=self.name, _target_=self.target, **{**self.values, **changes})

    def facts(self) -> dict[str, str]:
        """What ranks compare before they start: {'algorithm': 'dsgd', 'algorithm.key': ...}."""
        target = {} if self.target is None else {f"{self.group}.target": self.target}
        values = {f"{self.group}.{key}": str(value) for key, value in self.values.items()}
        return {self.group: self.name, **target, **values}

    def _own(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings to check, of those that are given."""
        return values

    def __getattr__(self, key: str) -> Any:
        values = self.__dict__.get("values", {})
        if key not in values:
            raise AttributeError(f"{self.group}={self.__dict__.get('name')} has no setting {key}")
        return values[key]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"


class ProblemConfig(Choice):
    """What a problem must be beside its settings, `problems.check` finds out."""

    group, usual, example = "problem", "least_squares", "class my_module.MyProblem"


class AlgorithmConfig(Choice):
    group, usual, example = "algorithm", "gradient_tracking", "class my_module.MyAlgorithm"
    what = "a class derived from dgt.algorithms.DecentralizedOptimizer"

    def is_suitable(self, kind: Any) -> bool:
        base = registry.resolve("dgt.algorithms.DecentralizedOptimizer")
        return inspect.isclass(kind) and issubclass(kind, base)


class TopologyConfig(Choice):
    """Settings of other graphs of the package are ignored: earlier versions wrote all of them into config.yaml."""

    group, usual, example = "topology", "ring", "function my_module.my_graph"
    what = "a function that makes a networkx.Graph"

    def is_suitable(self, kind: Any) -> bool:
        return callable(kind) and not inspect.isclass(kind) and not inspect.isbuiltin(kind)

    def _own(self, values: dict[str, Any]) -> dict[str, Any]:
        own = defaults(registry.settings_of(self.kind))
        foreign = [key for key in values if key not in own]
        for key in foreign:
            if key not in all_topology_settings():
                raise ConfigError(f"topology.{key}: no such key; {nearest(key, own) if own else 'it has no settings'}")
        return {key: value for key, value in values.items() if key in own}


class ScheduleConfig(Choice):
    group, usual, example = "schedule", "constant", "class my_module.MySchedule"
    what = "a class derived from dgt.training.schedules.Schedule"

    def is_suitable(self, kind: Any) -> bool:
        base = registry.resolve("dgt.training.schedules.Schedule")
        return inspect.isclass(kind) and issubclass(kind, base) and not inspect.isabstract(kind)


def all_topology_settings() -> dict[str, Any]:
    """The settings of all graphs of the package with their defaults."""
    found: dict[str, Any] = {}
    for name in registry.names("topology"):
        found |= defaults(registry.settings_of(registry.find("topology", name)))
    return found
