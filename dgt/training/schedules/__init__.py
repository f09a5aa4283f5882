"""Schedules of the step size: one module per schedule, found by its name (`schedule=x` is `SCHEDULE` of `x.py` here).

    alpha_t = lr share(t)          share(t) = (t + 1) / (warmup + 1)            in the warm-up, t < warmup
                                              share_after(t - warmup, T - warmup) from then on

share(t) depends on t, the iterations T and the settings alone: all ranks compute it alike, a resumed run needs no
state, and the twin of `dgt simulate` uses the same function. Nothing here needs torch.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dgt.config import Config
from dgt.config.settings import setting
from dgt.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class WithWarmup:
    """What schedules share that begin with a warm-up."""

    warmup: float = setting(
        0, "iterations at the start over which the step grows linearly to lr; below 1 a share of all", low=0
    )

    def check(self) -> None:
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ConfigError(f"schedule.warmup={self.warmup:g}: must be a whole number of iterations, or below 1")


class Schedule(abc.ABC):
    """A schedule over T iterations; a class of one's own derives from it and is named by `schedule._target_`.

    iterations  T
    settings    the values of `Settings`, whose names are keys `schedule.NAME` of configs
    """

    Settings: ClassVar[type] = WithWarmup

    def __init__(self, iterations: int, **settings: Any) -> None:
        self.iterations, self.settings = iterations, self.Settings(**settings)
        warmup = getattr(self.settings, "warmup", 0)
        self.warmup = round(warmup * iterations) if warmup < 1 else int(warmup)
        if self.warmup >= max(iterations, 1):
            raise ConfigError(f"schedule.warmup={self.warmup}: must be below iterations={iterations}")

    def share(self, t: int) -> float:
        """alpha_t / lr at iteration t, 0 <= t < T."""
        if t < self.warmup:
            return (t + 1) / (self.warmup + 1)
        return self.share_after(t - self.warmup, self.iterations - self.warmup)

    @abc.abstractmethod
    def share_after(self, t: int, iterations: int) -> float:
        """The same once the warm-up is over, of whose end t is counted; `iterations` are left from there."""

    def momentum(self, t: int) -> float | None:
        """The momentum of iteration t, for parameter groups that have one; None: it stays as it is."""
        return None

    @property
    def is_constant(self) -> bool:
        """Whether the step is lr throughout."""
        return False

    @property
    def depends_on_length(self) -> bool:
        """Whether another T changes alpha_t at the same t, so that a run cannot be made longer."""
        return True

    def __str__(self) -> str:
        """All that alpha_t depends on, for ranks and for a run that is resumed to be compared by."""
        kind = type(self)
        name = kind.__module__.rpartition(".")[2] if kind.__module__.startswith(__name__) else kind.__qualname__
        length = f" over {self.iterations} iterations" if self.depends_on_length else ""
        values = dataclasses.asdict(self.settings)
        values |= {"warmup": self.warmup} if "warmup" in values else {}
        return name + length + "".join(f", {key} {value}" for key, value in values.items() if value)


def of(config: Config) -> Schedule:
    """The schedule of a config; raises `ConfigError` where it does not fit the iterations."""
    schedule = config.schedule
    made: Schedule = schedule.kind(config.iterations, **dataclasses.asdict(schedule.settings))
    return made


def step_size(config: Config) -> float | Callable[[int], float]:
    """alpha for the twins: a number, or a function of the iteration."""
    schedule, lr = of(config), config.lr
    return lr if schedule.is_constant else lambda t: lr * schedule.share(t)
