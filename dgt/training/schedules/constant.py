"""`schedule=constant`: the same step throughout, after a warm-up if one is asked for."""

from __future__ import annotations

from dgt.training.schedules import Schedule


class Constant(Schedule):
    """alpha_t = lr."""

    def share_after(self, t: int, iterations: int) -> float:
        return 1.0

    @property
    def is_constant(self) -> bool:
        return self.warmup == 0

    @property
    def depends_on_length(self) -> bool:
        return False


SCHEDULE = Constant
