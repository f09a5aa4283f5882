"""Early stopping, as one rank counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dgt.config import Config, StopConfig
from dgt.config.compose import compose, expand
from dgt.config.fragment import overrides_of
from dgt.errors import ConfigError
from dgt.training import stopping
from dgt.training.stopping import EarlyStop


def ended(words: str, values: list[float], patience: int = 1) -> int | None:
    """The evaluation at which a run ends; None if it does not."""
    early = EarlyStop(Config(stop=StopConfig(when=words, patience=patience)))
    return next((t for t, value in enumerate(values) if early.observe(t, value)), None)


def test_a_bound_ends_the_run_once_it_is_passed() -> None:
    assert ended("accuracy>0.6", [0.1, 0.6, 0.61, 0.7]) == 2
    assert ended("loss<1e-1", [3, 0.1, 0.09]) == 2
    assert ended("accuracy > .6", [0.1, 0.5]) is None
    assert ended("loss<0.1", [3, float("nan"), 0.01]) == 2


def test_patience_counts_evaluations_in_a_row() -> None:
    assert ended("accuracy>0.6", [0.7, 0.5, 0.7, 0.7, 0.8], patience=3) == 4
    assert ended("loss", [5, 4, 4, 3, 3.5, 3, 2.9], patience=3) is None
    assert ended("loss", [5, 4, 4, 3, 3.5, 3, 3.1], patience=3) == 6
    assert ended("accuracy", [0.1, 0.3, 0.2, 0.2], patience=2) == 3, "higher is better"


def test_an_evaluation_that_is_made_again_counts_once() -> None:
    early = EarlyStop(Config(stop=StopConfig(when="loss<1", patience=2)))
    assert not early.observe(3, 0.5)
    assert not early.observe(3, 0.5)
    assert early.observe(6, 0.5)
    assert not early.observe(6, 2.0)


def test_measurements_before_a_resume_count(tmp_path: Path) -> None:
    class Alone:
        is_main = True

    early = EarlyStop(Config(stop=StopConfig(when="loss<1", patience=3)))
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"iteration": t, "loss": 0.5}) + "\n" for t in (0, 3, 6, 9)))
    texts: list[str] = []

    def same(node: object, text: str, most: int) -> str:
        texts.append(text)
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "broadcast_text", same)
        early.go_on(Alone(), 6, evaluated=False, history=file)  # type: ignore[arg-type]
    assert texts == ["3 2 0.5"], "the evaluation at 6 is made again"
    assert "below 1 for 3 evaluations" in early.observe(6, 0.4)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["stop.when=accuracy>much"], "stop.when=accuracy>much: give METRIC>NUMBER, METRIC<NUMBER or METRIC, such as "),
        (["stop.when=acuracy>0.5"], "stop.when=acuracy: did you mean accuracy"),
        (["stop.when=consensus"], "stop.when=consensus: say which way, consensus<NUMBER or consensus>NUMBER"),
        (["stop.patience=3"], "stop.patience=3: of what? give stop.when too"),
        (["stop.when=loss", "stop.patience=0"], "stop.patience=0: must be at least 1"),
    ],
)
def test_a_rule_that_is_none_is_told_in_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stopping.check(compose(overrides))
    assert str(caught.value).startswith(words)


def test_a_rule_needs_no_quotes_of_hydras() -> None:
    assert compose(["stop.when=accuracy>0.6"]).stop.when == "accuracy>0.6"
    assert compose(["stop.when='loss<0.1'"]).stop.when == "loss<0.1"
    assert compose(["stop.when=loss"]).stop.when == "loss"
    assert [compose(run).stop.when for run in expand(["stop.when=loss<0.1,loss<0.2"])] == ["loss<0.1", "loss<0.2"]
    config = compose(["stop.when=loss<0.1", "schedule=cosine", "schedule.floor=0.5"])
    assert compose(overrides_of(config)) == config
