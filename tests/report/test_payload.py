"""What the page is given, where it is more than a copy of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgt.network import graphs, weights
from dgt.network.mixing import mixing_matrix
from dgt.report.compare import runs_of
from dgt.report.payload import MOST_SHOWN, payload
from tests.report import crafted as made_up


def test_a_comparison_has_the_networks_that_its_config_names(tmp_path: Path) -> None:
    folder = made_up.compare_directory(tmp_path / "compare", made_up.runs(topologies=["exponential"], seeds=2))
    one, two = payload(runs_of(folder))["runs"]
    own = weights.named("A")
    for entry, mixing_weights in ((one, weights.uniform(16)), (two, own)):
        (network,) = entry["networks"]
        W = mixing_matrix(graphs.exponential(16), mixing_weights, 0.3)
        assert network["weights"] == pytest.approx(own)
        assert len(network["edges"]) == len(network["places"]) * 7 // 2
        for i, row in enumerate(network["rows"]):
            assert dict(row) == pytest.approx({int(j): W[i, j] for j in W[[i]].indices})
        assert entry["notes"] == []


def test_a_network_that_no_config_names_is_left_out() -> None:
    unknown = made_up.run()
    unknown.config["weights"] = {"name": "data_size"}
    large = made_up.run("uniform", nodes=100_000)
    assert [entry["networks"] for entry in payload([unknown, large])["runs"]] == [[], []]


def test_of_too_many_lines_the_lowest_are_shown_in_their_order() -> None:
    found = [made_up.run(lr=0.001 * k) for k in range(1, MOST_SHOWN + 41)]
    for k, run in enumerate(found):
        run.records = [record | {"grad_norm": 1.0 + (k * 7) % 100} for record in run.records]
    shown = payload(found)
    values = [entry["values"]["grad_norm"][-1] for entry in shown["runs"]]
    assert sorted(values) == [1.0 + k for k in range(MOST_SHOWN)]
    assert values == [run.records[-1]["grad_norm"] for run in found if run.records[-1]["grad_norm"] <= MOST_SHOWN]
    assert shown["notes"] == ["100 lines would not be told apart: the 60 lowest are shown"]
