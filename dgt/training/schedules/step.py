"""`schedule=step`: lr times a factor after every so many iterations, as torch's StepLR."""

from __future__ import annotations

from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.training.schedules import Schedule, WithWarmup


class Step(Schedule):
    """alpha_t = lr factor^floor(t / every)."""

    @dataclass(slots=True, kw_only=True)
    class Settings(WithWarmup):
        every: int | None = setting(
            None, "iterations from one reduction to the next; null: a third of those after the warm-up", low=1
        )
        factor: float = setting(0.1, "what the step is multiplied by", low=0, high=1, open_low=True)

    def share_after(self, t: int, iterations: int) -> float:
        every = self.settings.every or -(-iterations // 3)
        return float(self.settings.factor ** (t // every))

    @property
    def depends_on_length(self) -> bool:
        return self.settings.every is None


SCHEDULE = Step
