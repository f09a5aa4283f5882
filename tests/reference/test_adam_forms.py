"""docs/examples/adam_forms.py: what docs/optimizers.md says of it, in small."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.pages import EXAMPLES

SCRIPT = EXAMPLES / "adam_forms.py"
SMALL = '{"width": 8, "layers": 1, "context": 8, "batch": 2}'


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> dict[str, list[str]]:
    """The cells of the table that the script prints, by the name of the form."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


@pytest.mark.parametrize("graph", ["ring", "hypercube", "matchings"])
def test_every_form_trains_the_transformer(
    graph: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = printed(capsys, monkeypatch, "--steps", "8", "--graph", graph, "--lr", "0.01", "--size", SMALL)
    losses = {name: float(cells[3]) for name, cells in table.items()}
    assert len(losses) >= 9
    assert all(3 < loss < 4.2 for loss in losses.values()), losses  # ln of 65 symbols is 4.2


def test_tracked_forms_find_the_weighted_optimum_and_local_gradients_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the paper's least squares, all networks and both strategies."""
    forms = ["own", "mixed", "together", "predicted", "dsgd"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    script = runpy.run_path(str(SCRIPT))
    settings = script["Settings"](lr=0.03, schedule="down", beta2=0.99)
    far = {
        (name, which): script["_distance"](name, "paper", graph, 8, which, 2000, settings)
        for name in forms
        for which, graph in (("I", "ring"), ("II", "hypercube"))
    }
    assert all(distance < 1e-8 for (name, _), distance in far.items() if name != "dsgd"), far
    assert all(distance > 0.1 for (name, _), distance in far.items() if name == "dsgd"), far
