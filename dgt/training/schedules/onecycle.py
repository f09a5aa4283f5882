"""`schedule=onecycle`: up to lr and down to almost nothing, momentum the other way round, as torch's OneCycleLR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.errors import ConfigError
from dgt.training.schedules import Schedule


class OneCycle(Schedule):
    """Half a cosine from start lr to lr, over the share `peak_at` of the iterations, then another to floor lr.

    The momentum of parameter groups that have one (`momentum` above 0, or `betas`) goes from `momentum_high` to
    `momentum_low` and back meanwhile.
    """

    @dataclass(slots=True, kw_only=True)
    class Settings:
        peak_at: float = setting(
            0.3, "share of the iterations after which lr is reached", low=0, high=1, open_low=True, open_high=True
        )
        start: float = setting(0.04, "share of lr at the start", low=0, high=1, open_low=True)
        floor: float = setting(4e-6, "share of lr at the end", low=0, high=1)
        momentum_low: float = setting(0.85, "momentum where the step is lr", low=0, high=1, open_high=True)
        momentum_high: float = setting(0.95, "momentum at the start and at the end", low=0, high=1, open_high=True)

        def check(self) -> None:
            if self.momentum_low > self.momentum_high:
                raise ConfigError(
                    f"schedule.momentum_low={self.momentum_low}: must be at most "
                    f"schedule.momentum_high={self.momentum_high}"
                )

    def share_after(self, t: int, iterations: int) -> float:
        settings = self.settings
        return _there_and_back(t, iterations, settings.peak_at, (settings.start, 1.0, settings.floor))

    def momentum(self, t: int) -> float:
        low, high = self.settings.momentum_low, self.settings.momentum_high
        return _there_and_back(t, self.iterations, self.settings.peak_at, (high, low, high))


def _there_and_back(t: int, iterations: int, peak_at: float, values: tuple[float, float, float]) -> float:
    """From the first value to the second and on to the third, which iteration T - 1 has."""
    start, peak, end = values
    top = peak_at * iterations - 1  # torch's: the iteration of the peak, a fraction in general
    if t <= top and top > 0:
        return _half_cosine(start, peak, t / top)
    return _half_cosine(peak, end, (t - top) / (iterations - 1 - top or 1.0))


def _half_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


SCHEDULE = OneCycle
