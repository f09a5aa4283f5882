"""The smaller groups of a config: strategy, weights, checkpoint, stop, chaos. Each checks its own values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dgt.config.checks import check_choice
from dgt.config.settings import check_settings, setting
from dgt.errors import ConfigError

STRATEGIES = ("I", "II")
DEFAULT_WEIGHTS = "auto"  # A, or uniform where only `nodes` is given
WEIGHTS = ("uniform", "A", "B", "C", "D", "lognormal", "list", "file", "data_size")
FAULTS = (
    "none", "kill", "term", "pause", "delay", "slow", "churn", "corrupt", "not_a_number", "forget", "rollback",
    "disk_full",
)  # fmt: skip
PHASES = ("step", "copy", "write", "rename", "commit", "prune", "written", "drain", "barrier", "summary", "leave")
DAMAGES = ("flip", "stale", "swap", "short", "dtype")


@dataclass(slots=True, kw_only=True)
class StrategyConfig:
    """I: weights in the loss, W doubly stochastic. II: weights in the mixing, W row-stochastic."""

    name: str = "II"

    def __post_init__(self) -> None:
        check_choice("strategy", self.name, STRATEGIES)


@dataclass(slots=True, kw_only=True)
class WeightsConfig:
    """uniform, one of the paper's A to D, lognormal, a list, a file, or data_size (shares of the samples).

    In `conf/` also auto: A, or uniform where only `nodes` is given.
    """

    name: str = "A"
    values: list[float] | None = setting(None, "the weights themselves")
    path: str | None = setting(None, "numbers separated by spaces, commas or lines; or a .npy file")
    spread: float = setting(1.0, "standard deviation of ln(lambda_i); 0 is uniform", low=0, high=10)
    seed: int = setting(0, "of the draw, independent of the run's seed", low=0)

    def __post_init__(self) -> None:
        check_choice("weights", self.name, WEIGHTS)
        check_settings(self, "weights.")
        if self.name == "list" and self.values is None:
            raise ConfigError("weights=list: give the numbers, for example weights=[1,2,3]")
        if self.name == "file" and self.path is None:
            raise ConfigError("weights=file: give the file, weights.path=FILE")


@dataclass(slots=True, kw_only=True)
class CheckpointConfig:
    every: int = setting(0, "iterations between checkpoints; 0: by time alone", low=0)
    minutes: float = setting(10.0, "minutes between checkpoints; 0: by iterations alone", low=0)
    keep_last: int = setting(2, "how many of the last ones to keep; 0: write none", low=0)
    keep_every: int = setting(0, "keep those of every so many iterations for good; 0: none", low=0)
    best: str | None = setting(
        None,
        "keep the average model of the best evaluation by this metric as best.pt; of your own metric say METRIC:max or "
        "METRIC:min; null: none",
    )

    def __post_init__(self) -> None:
        check_settings(self, "checkpoint.")


@dataclass(slots=True, kw_only=True)
class ReplaceConfig:
    """With on_peer_loss=replace: how lost ranks are started again."""

    most: int = setting(10, "how often a rank is started again", low=0)
    pause: float = setting(0.5, "seconds before that; twice as many before each further time", low=0)

    def __post_init__(self) -> None:
        check_settings(self, "replace.")


_RULE = re.compile(r"\s*(\w+)\s*(?:([<>])\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*)?")


@dataclass(slots=True, kw_only=True)
class StopConfig:
    """When a run ends before its last iteration: what `training/stopping.py` does."""

    when: str | None = setting(
        None, "end early: accuracy>0.6 or loss<0.1 once it is so, a metric alone once it gets no better; null: never"
    )
    patience: int = setting(1, "evaluations in a row that must say so", low=1)

    def __post_init__(self) -> None:
        check_settings(self, "stop.")
        if self.when is not None and _RULE.fullmatch(self.when) is None:
            raise ConfigError(
                f"stop.when={self.when}: give METRIC>NUMBER, METRIC<NUMBER or METRIC, such as accuracy>0.6"
            )
        if self.when is None and self.patience != 1:
            raise ConfigError(f"stop.patience={self.patience}: of what? give stop.when too, such as stop.when=loss")

    @property
    def rule(self) -> tuple[str, str, float]:
        """The metric, < or > or nothing, and the bound."""
        found = _RULE.fullmatch(self.when or "")
        assert found is not None, "checked when it was made"
        return found[1], found[2] or "", float(found[3] or "nan")


@dataclass(slots=True, kw_only=True)
class ChaosConfig:
    """A fault to rehearse, once per run directory; slow and churn go on."""

    name: str = "none"
    rank: int | None = setting(None, "the node it happens to; null: drawn from the seed", low=0)
    iteration: int | None = setting(None, "when; null: drawn from the seed", low=0)
    seed: int = setting(0, "of what is drawn", low=0)
    phase: str = setting(
        "step",
        "step; of a checkpoint: copy, write, rename, written, commit, prune; or: drain, barrier, summary, leave",
        choices=PHASES,
    )
    seconds: float = setting(2.0, "for how long; slow: before every step", low=0)
    rate: float = setting(0.002, "churn: the probability that a node is lost in an iteration", low=0, high=1)
    damage: str = setting("flip", "flip (a bit), stale, swap, short or dtype", choices=DAMAGES)

    def __post_init__(self) -> None:
        check_choice("chaos", self.name, FAULTS)
        check_settings(self, "chaos.")
