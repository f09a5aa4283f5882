from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.training.schedules import Schedule, WithWarmup


class Root(Schedule):
    """alpha_t = lr / sqrt(1 + t / scale), after the warm-up."""

    @dataclass(slots=True, kw_only=True)
    class Settings(WithWarmup):
        scale: float = setting(100.0, "iterations after which the step is lr / sqrt(2)", low=0, open_low=True)

    def share_after(self, t: int, iterations: int) -> float:
        return (1 + t / self.settings.scale) ** -0.5
