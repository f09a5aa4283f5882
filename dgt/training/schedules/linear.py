"""`schedule=linear`: from lr to a share of it on a straight line, as torch's LinearLR."""

from __future__ import annotations

from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.training.schedules import Schedule, WithWarmup


class Linear(Schedule):
    """alpha_t = lr (1 - (1 - floor) t / T)."""

    @dataclass(slots=True, kw_only=True)
    class Settings(WithWarmup):
        floor: float = setting(0.0, "share of lr at the end", low=0, high=1)

    def share_after(self, t: int, iterations: int) -> float:
        return 1 - (1 - self.settings.floor) * t / iterations


SCHEDULE = Linear
