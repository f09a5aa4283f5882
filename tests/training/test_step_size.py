"""The search for an lr, on losses that are known for every lr."""

from __future__ import annotations

import math

import pytest

from dgt.errors import TrainingError
from dgt.training.step_size import BELOW, MOST, Search


class Losses:
    """A valley over log lr, as wide as that of AdamW on text, whose lowest point longer runs have at a larger lr."""

    lengths = 40, 120
    before = 4.0
    whole = False

    def __init__(self, best: float, edge: float, later: float = 1.0) -> None:
        self.best, self.edge, self.later = best, edge, later

    def loss(self, lr: float, steps: int) -> float:
        best = self.best * (self.later if steps > 40 else 1.0)
        if lr > self.edge * best:
            return math.inf
        return self.before - 2.0 * math.exp(-(math.log2(lr / best) ** 2) / 4)


@pytest.mark.parametrize("edge", [2.1, 16.0, 1e9])
@pytest.mark.parametrize("later", [1.0, 2.0])
@pytest.mark.parametrize("share", [1e-5, BELOW**-1, 0.03, 1.0, 7.0, 900.0])
def test_the_suggestion_is_near_the_best(share: float, edge: float, later: float) -> None:
    made: list[int] = []
    found = Search(Losses(0.02 * share, edge, later), lambda trials: made.append(len(trials))).run(0.02)
    assert 0.5 <= found.lr / (0.02 * share * later) <= 2.0
    assert found.lr <= edge * 0.02 * share * later
    assert made == list(range(1, len(found.trials) + 1))
    assert len(found.trials) <= MOST


def test_of_trials_as_long_as_the_run_the_best_is_taken() -> None:
    losses = Losses(0.01, 1e9)
    losses.whole = True
    assert Search(losses).run(0.02).lr == pytest.approx(0.01)


def test_a_step_that_always_diverges_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"every trial diverged, down to lr=\d"):
        Search(Losses(1e-60, 2.0)).run(0.02)


def test_where_nothing_happens_the_search_ends() -> None:
    class Flat(Losses):
        def loss(self, lr: float, steps: int) -> float:
            return 4.0

    assert len(Search(Flat(1.0, 2.0)).run(0.02).trials) <= 12
