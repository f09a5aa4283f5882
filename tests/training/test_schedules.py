"""The step of every iteration: that of torch's schedulers, the same function for ranks and for the twin."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import lr_scheduler

from dgt.config import Config, ScheduleConfig, registry
from dgt.config.compose import compose
from dgt.errors import ConfigError
from dgt.training import schedules

LR, T = 0.3, 60
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
# overrides, and torch's scheduler of the same step
SAME: dict[str, Scheduler] = {
    "schedule=constant": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0),
    "schedule=cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T),
    "schedule=cosine schedule.floor=0.1": lambda o: lr_scheduler.CosineAnnealingLR(o, T, eta_min=0.1 * LR),
    "schedule=linear": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, T),
    "schedule=linear schedule.floor=0.2": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, T),
    "schedule=step": lambda o: lr_scheduler.StepLR(o, 20, 0.1),
    "schedule=step schedule.every=7 schedule.factor=0.5": lambda o: lr_scheduler.StepLR(o, 7, 0.5),
    "schedule=onecycle": lambda o: lr_scheduler.OneCycleLR(o, LR, T),
    "schedule=onecycle schedule.peak_at=0.1 schedule.start=0.5 schedule.floor=0.05": lambda o: lr_scheduler.OneCycleLR(
        o, LR, T, pct_start=0.1, div_factor=2, final_div_factor=10
    ),
    "schedule=constant schedule.warmup=9": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 9),
    "schedule=cosine schedule.warmup=9 schedule.floor=0.1": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, 1.0, 9), lr_scheduler.CosineAnnealingLR(o, T - 9, eta_min=0.1 * LR)],
        milestones=[9],
    ),
}  # fmt: skip


def configured(words: str, iterations: int = T) -> Config:
    return compose([*words.split(), f"lr={LR}", f"iterations={iterations}"])


@pytest.mark.parametrize("words", SAME)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_step_of_every_iteration_is_that_of_torch(words: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR, momentum=0.9)
    scheduler, found = SAME[words](optimizer), schedules.of(configured(words))
    for t in range(T):
        group = optimizer.param_groups[0]
        assert LR * found.share(t) == pytest.approx(group["lr"], rel=1e-9, abs=1e-12), t
        assert (found.momentum(t) or 0.9) == pytest.approx(group["momentum"]), t
        optimizer.step()
        if t + 1 < T:
            scheduler.step()


@pytest.mark.parametrize("name", registry.names("schedule"))
@pytest.mark.parametrize("iterations", [1, 2, 3, 50])
def test_every_step_is_above_0_and_at_most_lr(name: str, iterations: int) -> None:
    """At 0 an iteration would be for nothing."""
    found = schedules.of(configured(f"schedule={name}", iterations))
    shares = [found.share(t) for t in range(iterations)]
    assert all(0 < share <= 1 for share in shares), shares
    if "warmup" in ScheduleConfig(name=name).values and iterations > 3:
        warm = schedules.of(configured(f"schedule={name} schedule.warmup=3", iterations))
        assert [warm.share(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_the_twin_gets_a_number_or_the_same_function() -> None:
    assert schedules.step_size(configured("schedule=constant")) == LR
    step = schedules.step_size(configured("schedule=cosine"))
    assert callable(step)
    assert step(15) == LR * schedules.of(configured("schedule=cosine")).share(15)


def test_what_a_longer_run_changes_is_known() -> None:
    """A run may be made longer only where that leaves the steps that it has made as they were."""
    for words in SAME:
        one, other = (schedules.of(configured(words, iterations)) for iterations in (60, 90))
        as_before = [one.share(t) for t in range(60)] == [other.share(t) for t in range(60)]
        assert (str(one) == str(other)) == as_before, words
    assert str(schedules.of(configured("schedule=cosine schedule.warmup=5"))) == "cosine over 60 iterations, warmup 5"
    assert str(schedules.of(configured("schedule=constant schedule.warmup=0.1"))) == "constant, warmup 6"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("schedule=cosine schedule.warmup=60", "schedule.warmup=60: must be below iterations=60"),
        (
            "schedule=cosine schedule.warmup=7.5",
            "schedule.warmup=7.5: must be a whole number of iterations, or below 1",
        ),
        ("schedule=linear schedule.floor=1.5", "schedule.floor=1.5: must be at least 0 and at most 1"),
        ("schedule=step schedule.every=0", "schedule.every=0: must be at least 1"),
        ("schedule=step schedule.factor=0", "schedule.factor=0.0: must be above 0 and at most 1"),
        ("schedule=onecycle schedule.peak_at=1", "schedule.peak_at=1.0: must be above 0 and below 1"),
        ("schedule=onecycle schedule.warmup=3", "schedule.warmup: schedule=onecycle has no such key; allowed: "),
        ("schedule=onecycle schedule.momentum_low=0.99", "schedule.momentum_low=0.99: must be at most schedule.mom"),
        ("schedule=cosin", "schedule=cosin: did you mean cosine"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_one_line(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedules.of(configured(words))
    assert str(caught.value).startswith(message)


MINE = """
    from dgt.training.schedules import Schedule

    class Half(Schedule):
        def share_after(self, t, iterations):
            return 0.5

    class Missing(Schedule):
        pass
"""


def test_a_schedule_from_outside_is_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedule_toys.py").write_text(textwrap.dedent(MINE))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = configured("schedule._target_=schedule_toys.Half schedule.warmup=1")
    config.check_targets()
    found = schedules.of(config)
    assert [found.share(t) for t in (0, 1, 2)] == [0.5, 0.5, 0.5]
    assert str(found) == "Half over 60 iterations, warmup 1"
    with pytest.raises(ConfigError, match=r"schedule._target_=schedule_toys.Missing: must be a class derived from dgt"):
        configured("schedule._target_=schedule_toys.Missing").check_targets()


def test_schedules_need_no_torch() -> None:
    code = "import sys, dgt.training.schedules.onecycle; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
