"""The table of metrics, what follows from it, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgt.config.loggers import LoggerConfig
from dgt.config.settings import meanings
from dgt.runs import layout, measures

PAGE = Path(__file__).parents[2] / "docs" / "run_directory.md"


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


def test_the_page_has_the_table_of_the_code() -> None:
    cells = [
        (f"`{m.metric}`", m.label, m.unit, m.better, "log" if m.logarithmic else "linear", m.meaning)
        for m in measures.ALL
        if m.recorded
    ]
    of_nodes = [(f"`{m.metric}`", m.label, m.unit, m.meaning) for m in measures.OF_NODES]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in [*cells, *of_nodes]]
    part = PAGE.read_text(encoding="utf-8").partition("## Metrics")[2].partition("## Loggers")[0]
    assert [line for line in part.splitlines() if line.startswith("| `")] == rows


def test_the_page_names_every_file_and_every_logger() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    assert [name for name in names if name not in page and name != layout.PROBE_PREFIX] == []
    for name in ("tensorboard", "wandb", "mlflow"):
        ((_, kind, settings),) = LoggerConfig(names=[name]).sinks()
        assert f"`logger={name}` | `pip install 'dgt[{name}]'`" in page
        assert all(f"`logger.{key}`" in page for key, _ in meanings(settings)), kind
        conf = (PAGE.parents[1] / "conf" / "logger" / f"{name}.yaml").read_text(encoding="utf-8")
        assert all(meaning.help in conf for _, meaning in meanings(settings)), "conf/ says the same"
