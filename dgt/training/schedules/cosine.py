"""`schedule=cosine`: from lr to a share of it along half a cosine, as torch's CosineAnnealingLR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.training.schedules import Schedule, WithWarmup


class Cosine(Schedule):
    """alpha_t = lr (floor + (1 - floor) (1 + cos(pi t / T)) / 2)."""

    @dataclass(slots=True, kw_only=True)
    class Settings(WithWarmup):
        floor: float = setting(0.0, "share of lr at the end", low=0, high=1)

    def share_after(self, t: int, iterations: int) -> float:
        floor: float = self.settings.floor
        return floor + (1 - floor) * (1 + math.cos(math.pi * t / iterations)) / 2


SCHEDULE = Cosine
