"""The table of metrics, and what follows from it."""

from __future__ import annotations

import numpy as np

from dgt.runs import measures


def test_every_metric_stands_once_and_is_explained() -> None:
    names = [measure.metric for measure in measures.ALL]
    assert len(set(names)) == len(names)
    assert all(measure.label and measure.meaning for measure in (*measures.ALL, *measures.OF_NODES))
    assert {measure.better for measure in measures.ALL} == {"", "lower", "higher"}
    assert not set(measures.UPKEEP) & set(measures.LEARNT)


def test_a_line_has_the_known_metrics_first_and_leaves_out_what_only_alarms_need() -> None:
    measured = ("zeal", "bytes_sent", "average_norm", "tracking_scale", "accuracy", "loss", "aim", "grad_norm")
    found = measures.recorded({name: np.ones(1) for name in measured})
    assert list(found) == ["loss", "grad_norm", "accuracy", "bytes_sent", "aim", "zeal"]


def test_a_metric_of_ones_own_is_shown_under_its_name() -> None:
    own = measures.measure_of("word_error_rate")
    assert (own.label, own.unit, own.better, own.recorded) == ("word error rate", "", "", True)
    words = measures.in_words({"iteration": 3, "seconds": 1.0, "word_error_rate": 0.25, "consensus": 2, "loss": 0.5})
    assert words == "loss 0.5  consensus 2  word_error_rate 0.25"
