"""What `dgt plan` varies: overrides in, configs out by graph and by algorithm, with the wires and local steps to try.

    dgt plan weights=A algorithm=gradient_tracking,exact_diffusion topology=ring,one_peer wire=full,int8 local_steps=1,4

What the user does not name is varied as far as it may be of use: graphs, algorithms and strategies always, the wire and
local steps where a link is known, because without one they gain nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dgt.config import STRATEGIES, Config
from dgt.config import compose as composing
from dgt.config.checks import build
from dgt.errors import ConfigError
from dgt.network import systems
from dgt.network.topologies import PROPOSED

ALGORITHMS = ("gradient_tracking", "exact_diffusion")
"""Those that are compared when none is named."""
WITH_LINK: dict[str, list[Any]] = {"wire": ["full", "int8"], "local_steps": [1, 4]}
"""What is compared where a link is known."""
GROUPS = ("topology", "algorithm")
Given: TypeAlias = dict[str, Any]
"""The overrides that were given, parsed, by their keys."""


@dataclass(frozen=True, slots=True)
class Variants:
    """Every candidate has one of each; some combinations are refused."""

    graphs: dict[str, Config]
    """By the name in the table; of the config, the topology counts."""
    algorithms: dict[str, Config]
    """Of the config, all but the topology counts."""
    exchanges: list[dict[str, Any]]
    """wire and local_steps."""
    strategies: list[str]
    named: frozenset[str]
    """Which keys the user has given."""
    left_out: dict[str, str]

    @property
    def first(self) -> Config:
        return next(iter(self.algorithms.values()))

    @property
    def lr_is_given(self) -> bool:
        return "lr" in self.named or self.first.lr != self.first.usual_lr

    def configs(self) -> Iterator[tuple[str, str, Config]]:
        """(graph, algorithm, config) of every combination, with the first strategy; raises nothing."""
        for (graph, on), (label, made), exchange in itertools.product(
            self.graphs.items(), self.algorithms.items(), self.exchanges
        ):
            yield graph, label, dataclasses.replace(made, topology=on.topology, **exchange)


def variants(overrides: Sequence[str], has_link: bool) -> Variants:
    """What these overrides leave to vary. Settings of a graph or an algorithm go to those that have them."""
    settings = {group: [word for word in overrides if word.startswith(f"{group}.")] for group in GROUPS}
    rest = [word for word in overrides if not word.startswith(tuple(f"{group}." for group in GROUPS))]
    given = {str(item.key_or_group): item for item in composing.parse(rest)}
    _refuse_other_sweeps(given)
    search = [word for word in rest if word.startswith("hydra.searchpath=")]
    kept = [word for word in rest if word.partition("=")[0] not in GROUPS and not _is_axis(word, given)]
    runs = {
        group: list(_runs(group, _choices(group, given, settings[group]), settings[group], search)) for group in GROUPS
    }
    algorithms, refused = _algorithms(kept, runs)
    graphs = _graphs(kept, runs, algorithms)
    for config in algorithms.values():
        config.check_targets()
        check(config)
    first = next(iter(algorithms.values()))
    named = frozenset([*given, *(group for group in GROUPS if _is_custom(group, settings[group]))])
    left_out = refused if "algorithm" in named or settings["algorithm"] else {}
    return Variants(graphs, algorithms, _exchanges(given, first, has_link), _strategies(given), named, left_out)


def _refuse_other_sweeps(given: Given) -> None:
    for key, item in given.items():
        if item.is_sweep_override() and key not in (*GROUPS, *WITH_LINK, "strategy"):
            varied = "topology, algorithm and their settings, strategy, wire and local_steps"
            raise ConfigError(f"{key}: dgt plan varies {varied}; give one {key}")


def _is_axis(word: str, given: Given) -> bool:
    """Whether it gives several values of what is put into configs afterwards."""
    key = word.partition("=")[0]
    return key in (*WITH_LINK, "strategy") and given[key].is_sweep_override()


def _is_custom(group: str, settings: Sequence[str]) -> bool:
    return any(word.startswith(f"{group}._target_=") for word in settings)


def _choices(group: str, given: Given, settings: Sequence[str]) -> list[str]:
    if group in given:
        return [str(value) for value in _values(given[group])]
    if _is_custom(group, settings):
        return ["custom"]
    return list(PROPOSED if group == "topology" else ALGORITHMS)


def _values(item: Any) -> list[Any]:
    return list(item.sweep_string_iterator()) if item.is_sweep_override() else [item.value()]


def _runs(group: str, choices: Sequence[str], settings: Sequence[str], search: Sequence[str]) -> list[_Run]:
    """The words of every choice with those of the settings that it has; several values of one make several."""
    found, taken = [], set()
    for choice in choices:
        words = [f"{group}={choice}"]
        known = composing.keys_of(group, [*search, *words]) if settings else []
        fitting = [word for word in settings if _key(word) in known or "_target_" in known]
        taken.update(fitting)
        for chosen in composing.expand(fitting):
            varied = [word.removeprefix(f"{group}.") for word in chosen if word not in fitting]
            found.append(_Run([*words, *chosen], varied))
    for word in settings:
        if word not in taken:
            composing.compose([*search, *found[-1].words, *composing.expand([word])[0]])  # raises the error for it
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    words: list[str]
    varied: list[str]
    """The settings by which it differs from others of the same choice."""

    def label(self, name: str) -> str:
        return " ".join([name, *self.varied])


def _key(word: str) -> str:
    return word.partition("=")[0].partition(".")[2]


def _algorithms(kept: Sequence[str], runs: dict[str, list[_Run]]) -> tuple[dict[str, Config], dict[str, str]]:
    """A config for every algorithm, on the first graph, and why others are not among them.

    Raises where none is left, and where a setting was meant for one that is not.
    """
    found: dict[str, Config] = {}
    errors: list[tuple[_Run, ConfigError]] = []
    used: set[str] = set()
    for run in runs["algorithm"]:
        try:
            config = composing.compose([*kept, *runs["topology"][0].words, *run.words])
        except ConfigError as error:
            errors.append((run, error))
            continue
        found[run.label(config.algorithm.name)] = config
        used.update(run.words)
    for run, why in errors:
        if not found or not used.issuperset(run.words[1:]):
            raise why
    return found, {run.label(run.words[0].partition("=")[2]): str(why) for run, why in errors}


def _graphs(kept: Sequence[str], runs: dict[str, list[_Run]], algorithms: dict[str, Config]) -> dict[str, Config]:
    """A config for every graph, with an algorithm that can be composed."""
    first = next(iter(algorithms.values()))
    found = {runs["topology"][0].label(first.topology.name): first}
    words = next(run.words for run in runs["algorithm"] if run.label(first.algorithm.name) in algorithms)
    for run in runs["topology"][1:]:
        config = composing.compose([*kept, *run.words, *words])
        found[run.label(config.topology.name)] = config
    return found


def _exchanges(given: Given, first: Config, has_link: bool) -> list[dict[str, Any]]:
    """Those that are named, else what a link makes worth trying; values are checked as those of a config."""
    axes = {}
    for key, usual in WITH_LINK.items():
        if key in given and given[key].is_sweep_override():
            texts = [f"{key}={value}" for value in _values(given[key])]
            axes[key] = [composing.plain_values([text])[key] for text in texts]
        else:
            supported = key in getattr(first.algorithm.kind, "supports", ())
            free = has_link and key not in given and getattr(first, key) == usual[0] and supported
            axes[key] = usual if free else [getattr(first, key)]
    found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for exchange in found:
        build(Config, exchange, "")
    return found


def _strategies(given: Given) -> list[str]:
    """Both, if none is named; I first, whose rows come first where all is equal."""
    if "strategy" not in given:
        return list(STRATEGIES)
    chosen = [str(value) for value in _values(given["strategy"])]
    return [name for name in STRATEGIES if name in chosen]


def check(config: Config) -> None:
    """Raise for settings for which the prediction does not hold."""
    config.check_lr_is_known("plan")
    name, base = config.algorithm.name, config.algorithm.values.get("base")
    if systems.named(name) is None or config.algorithm.target is not None:
        known = ", ".join(systems.names())
        more = "; centralised SGD stands below every plan as DDP" * (name == "allreduce")
        raise ConfigError(f"algorithm={name}: dgt plan predicts {known}; take one of them, or leave it out{more}")
    if base is not None and config.problem.name == "least_squares":  # for others it only stands in
        raise ConfigError(f"algorithm.base={base}: dgt plan predicts gradient tracking, with momentum or without it")
    for key, value, usual in (
        ("schedule", config.schedule.name, "constant"), ("clip", config.clip, None), ("epochs", config.epochs, None),
        ("stop.when", config.stop.when, None),
    ):  # fmt: skip
        if value != usual and config.problem.name == "least_squares":  # for others it only stands in
            words = "dgt plan predicts so many iterations of the same step, gradients as they are"
            raise ConfigError(f"{key}={value}: {words}; leave it out")
    if config.iterations < 1:
        raise ConfigError(f"iterations={config.iterations}: dgt plan needs at least 1")
