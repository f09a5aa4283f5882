"""The typed configuration of a run: one dataclass per config group, each checking its own values.

`Config.from_dict(...)` turns the plain dictionary that `conf/` and the overrides compose to into a `Config`,
or raises one `ConfigError` that names the key, the value and what is allowed. No Hydra in here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

STRATEGIES = ("I", "II")
ALGORITHMS = ("gradient_tracking", "dsgd", "allreduce")
TOPOLOGIES = (
    "ring", "grid", "torus", "exponential", "erdos_renyi", "geometric", "complete", "star", "tailored", "file",
)  # fmt: skip
WEIGHTS = ("uniform", "A", "B", "C", "D", "list", "file", "data_size")
PROBLEMS = ("least_squares",)
LOGGERS = ("jsonl", "tensorboard")
BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float64", "float32")

Section = TypeVar("Section")


class ConfigError(ValueError):
    """Bad input: one line that names the value and what is allowed, and exit code 2."""


class SharedError(ConfigError):
    """A `ConfigError` found by comparing the ranks: all of them raise it, so only rank 0 needs to speak."""


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
    if not math.isfinite(value) or too_low or too_high:
        lower = "" if low == -math.inf else f"{'above' if open_low else 'at least'} {low:g}"
        upper = "" if high == math.inf else f"{'below' if open_high else 'at most'} {high:g}"
        allowed = " and ".join(part for part in (lower, upper) if part) or "a finite number"
        raise ConfigError(f"{key}={value}: must be {allowed}")


@dataclass(slots=True, kw_only=True)
class StrategyConfig:
    name: str = "II"
    """I: weights in the loss, W doubly stochastic. II: weights in the mixing, W row-stochastic."""

    def __post_init__(self) -> None:
        check_choice("strategy", self.name, STRATEGIES)


@dataclass(slots=True, kw_only=True)
class WeightsConfig:
    name: str = "A"
    """uniform, one of the paper's A to D, a list, a file, or data_size (shares of the samples)."""
    values: list[float] | None = None
    """The weights themselves, for weights=list (short: weights=[1,2,3])."""
    path: str | None = None
    """The file with the weights, for weights=file."""

    def __post_init__(self) -> None:
        check_choice("weights", self.name, WEIGHTS)
        if self.name == "list" and self.values is None:
            raise ConfigError("weights=list: give the numbers, for example weights=[1,2,3]")
        if self.name == "file" and self.path is None:
            raise ConfigError("weights=file: give the file, weights.path=FILE")


@dataclass(slots=True, kw_only=True)
class TopologyConfig:
    name: str = "ring"
    """The graph the nodes form."""
    seed: int = 0
    """Seed of the random graphs (erdos_renyi, geometric, tailored); independent of the run's seed."""
    avg_degree: float | None = None
    """tailored: average degree; null is 5 up to 16 nodes and 10 above."""
    probability: float | None = None
    """erdos_renyi: probability of each edge; null is 2 ln(n) / n."""
    radius: float = 0.3
    """geometric: nodes of the unit square at most this far apart are neighbours."""
    tries: int = 1000
    """erdos_renyi, geometric: graphs drawn before giving up on a connected one."""
    path: str | None = None
    """file: text file with one edge 'i j' per line, nodes counted from 0."""

    def __post_init__(self) -> None:
        check_choice("topology", self.name, TOPOLOGIES)
        check_range("topology.seed", self.seed, 0)
        check_range("topology.tries", self.tries, 1)
        check_range("topology.radius", self.radius, 0, open_low=True)
        if self.avg_degree is not None:
            check_range("topology.avg_degree", self.avg_degree, 1)
        if self.probability is not None:
            check_range("topology.probability", self.probability, 0, 1, open_low=True)
        if self.name == "file" and self.path is None:
            raise ConfigError("topology=file: give the edge list, topology.path=FILE")


@dataclass(slots=True, kw_only=True)
class LeastSquaresConfig:
    name: str = "least_squares"
    """The paper's synthetic quadratic experiment."""
    dimension: int = 10
    """d, number of parameters."""
    noise: float = 1.0
    """sigma, standard deviation of the gradient noise; 0 gives exact gradients."""
    curvature_min: float = 5.5
    """Lower end of the curvatures zeta_i."""
    curvature_max: float = 12.5
    """Upper end of the curvatures zeta_i."""
    offset: float = 3.0
    """mu_0, distance of the local centers from the shared one."""
    regularization: float = 0.01
    """rho."""

    def __post_init__(self) -> None:
        check_choice("problem", self.name, PROBLEMS)
        check_range("problem.dimension", self.dimension, 1)
        check_range("problem.noise", self.noise, 0)
        check_range("problem.curvature_min", self.curvature_min, 0, open_low=True)
        check_range("problem.curvature_max", self.curvature_max, self.curvature_min)
        check_range("problem.offset", self.offset, 0)
        check_range("problem.regularization", self.regularization, 0)


@dataclass(slots=True, kw_only=True)
class AlgorithmConfig:
    name: str = "gradient_tracking"
    """gradient_tracking, or the baselines dsgd (no tracker) and allreduce (centralised weighted SGD)."""

    def __post_init__(self) -> None:
        check_choice("algorithm", self.name, ALGORITHMS)


@dataclass(slots=True, kw_only=True)
class LoggerConfig:
    name: str = "jsonl"
    """jsonl, or tensorboard to mirror it there."""

    def __post_init__(self) -> None:
        check_choice("logger", self.name, LOGGERS)


@dataclass(slots=True, kw_only=True)
class Config:
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    problem: LeastSquaresConfig = field(default_factory=LeastSquaresConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    nodes: int | None = None
    """Number of nodes; null is as many as the weights have, else one per rank, else 16."""
    laziness: float = 0.3
    """epsilon in W = (1 - epsilon) P + epsilon I."""
    lr: float = 0.02
    """Step size alpha."""
    iterations: int = 300
    """Number of updates."""
    eval_every: int = 3
    """Iterations between evaluations of the whole network."""
    seed: int = 0
    """Seed of problem data, start and gradient noise."""
    timeout: float = 60.0
    """Seconds to wait for a neighbour before giving up."""
    backend: str = "auto"
    """auto (nccl when every rank has its own GPU, else gloo), gloo or nccl."""
    device: str = "auto"
    """auto (what suits the problem), cpu or cuda."""
    overlap: bool = True
    """Let the tracker exchange travel while the next gradient is computed."""
    dtype: str = "float64"
    """float64 or float32."""
    run_dir: str | None = None
    """Run directory; null is runs/<time>-<problem>-<weights>-<topology>-<strategy>."""

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_range("nodes", self.nodes, 1)
        check_range("laziness", self.laziness, 0, 1, open_low=True, open_high=True)
        check_range("lr", self.lr, 0, open_low=True)
        check_range("iterations", self.iterations, 0)
        check_range("eval_every", self.eval_every, 1)
        check_range("seed", self.seed, 0, 2**63 - 1)
        check_range("timeout", self.timeout, 0, open_low=True)
        check_choice("backend", self.backend, BACKENDS)
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        return _build(cls, values, "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; what is unset within a group is left out."""
        values = dataclasses.asdict(self)
        for key, value in values.items():
            if isinstance(value, dict):
                values[key] = {name: item for name, item in value.items() if item is not None}
        return values


def _build(section: type[Section], values: Mapping[str, Any], prefix: str) -> Section:
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
        return _build(typing.cast(type, kind), value, key + ".")
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
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise ConfigError(f"{key}={value}: must be {words[kind]}")
    return value
