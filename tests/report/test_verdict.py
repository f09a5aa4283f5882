"""The verdict says who is lower, and no more than the runs can bear."""

from __future__ import annotations

import pytest

from dgt.report.compare import summarise, text
from dgt.report.payload import entries
from dgt.report.verdict import verdict
from tests.report import crafted as made_up


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"I": 0.0, "II": 0.0}, "in weighted gradient norm: the same on ring"),
        ({"I": 1e-10, "II": 1e-12}, "by 99.0% on ring"),
        ({"I": 0.0, "II": 0.25}, "in weighted gradient norm: +0.25 on ring"),
        ({"I": 0.25, "II": 0.0}, "by 100.0% on ring"),
        ({"I": 0.0, "II": -0.5}, "by 0.5 on ring"),
        ({"I": -1.0, "II": -1.5}, "by 50.0% on ring"),
        ({"II": 0.0, "III": -0.5}, "A ring III has the lowest weighted gradient norm, -0.5: 0.5 below A ring II."),
    ],
)
def test_the_verdict_knows_no_percent_of_nothing(values: dict[str, float], words: str) -> None:
    found = [made_up.run(strategy="II") for _ in values]
    for run, (name, value) in zip(found, values.items(), strict=True):
        run.config["strategy"] = {"name": name}
        run.records = [{"iteration": k, "grad_norm": value} for k in (0, 3, 6)]
    assert words in verdict(found).headline
    for row in summarise(found):
        assert row["II/I"] == (values["II"] / values["I"] if values["I"] else None)
    if "I" in values:
        assert ("I is 0" in text(summarise(found), found, 1)) == (values["I"] == 0)


def test_the_verdict_does_not_credit_the_strategy_with_another_setting() -> None:
    found = verdict([made_up.run(strategy="I", lr=0.01), made_up.run(strategy="II", lr=0.02)])
    assert found.headline.startswith("A ring II, lr 0.02 has the lowest weighted gradient norm")
    assert found.headline.endswith("A ring I, lr 0.01.")


def test_the_verdict_of_several_objectives_says_on_how_many_networks_a_strategy_is_lower() -> None:
    runs = made_up.runs("AB", seeds=2)
    assert "Strategy I on all 4 networks, by " in verdict(runs).headline
    for run in runs:
        run.records = [{**record, "grad_norm": 1.0} for record in run.records if run.choice("weights") == "B"] or (
            run.records
        )
    assert "Strategy I on 2 of 4 networks, by " in verdict(runs).headline


def test_where_both_strategies_are_one_algorithm_neither_is_called_lower() -> None:
    one, two = made_up.run("uniform", strategy="I"), made_up.run("uniform", strategy="II")
    two.records = [record | {"grad_norm": record["grad_norm"] * (1 + 1e-14)} for record in one.records]
    assert verdict([one, two]).headline == "Strategy II against Strategy I in weighted gradient norm: the same on ring."


def test_a_metric_that_became_no_number_has_no_late_mean() -> None:
    run = made_up.run()
    for record in run.records[-3:]:
        record["grad_norm"] = float("nan")
    assert verdict([run]).headline.endswith("; weighted gradient norm is no finite number from iteration 270 on.")


def test_a_copy_of_a_run_is_no_second_seed() -> None:
    shown = entries([made_up.run(seed=0), made_up.run(seed=1), made_up.run(seed=0)])
    assert [[run.choice("seed") for run in runs] for runs in shown] == [["0", "1"], ["0"]]


def test_the_verdict_counts_seeds() -> None:
    found = verdict(made_up.runs(seeds=3, topologies=["ring"]))
    assert found.headline.endswith("on ring (in 3 of 3 seeds).")
    assert "the spread over 3 seeds" in found.details[0]
