"""The runs of a sweep, before any of them starts."""

from __future__ import annotations

import pytest

from dgt.cli import parser
from dgt.commands.train.sweeping import runs_of
from dgt.errors import ConfigError

SWEEP = ["strategy=I,II", "topology=ring,grid"]


def test_only_picks_one_run_of_a_sweep() -> None:
    options = parser().parse_args(["train", "-m", "--only", "2", *SWEEP])
    runs, swept, configs = runs_of(options, SWEEP)
    assert swept == [{"strategy": "II", "topology": "ring"}]
    assert [(config.strategy.name, config.topology.name) for config in configs] == [("II", "ring")]
    assert runs == [["strategy=II", "topology=ring"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "--only", "4"], r"--only=4: must be at least 0 and at most 3"),
        (["-m", "--only", "-1"], r"--only=-1: must be at least 0"),
        (["--only", "0"], r"--only=0: picks one run of a sweep; add -m"),
    ],
)
def test_only_beyond_the_sweep_or_without_one_is_refused(words: list[str], said: str) -> None:
    options = parser().parse_args(["train", *words, *SWEEP])
    with pytest.raises(ConfigError, match=said):
        runs_of(options, SWEEP)
