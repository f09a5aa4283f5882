"""docs/examples/cheaper_figures.py: what docs/cheaper.md says of it, with one kind of weights and few seeds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.pages import EXAMPLES, TEXT

SCRIPT = EXAMPLES / "cheaper_figures.py"


def test_tables_and_figure_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ["--weights", "A", "--seeds", "2", "--iterations", "100", "--write", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    messages, ways = (part.splitlines()[2:] for part in capsys.readouterr().out.split("\n\n")[1::2])
    vectors = {line[:31].strip(): float(line[31:]) for line in messages}
    assert f"| ring | {vectors['ring']:.0f} |" in TEXT["cheaper.md"]
    assert f"sorted hypercube | {vectors['one_peer, hypercube']:.1f} |" in TEXT["cheaper.md"]
    norms = [float(line.split()[-2]) for line in ways]
    assert max(norms) < 1.03 * min(norms), "all ways come to the same gradient norm"
    sent = [float(line.split()[-1]) for line in ways]
    assert sent[1] == 100 * 2 * 2 * 4, "MB: two vectors to two neighbours, a million numbers of four bytes"
    assert sent[3] == sent[5] == sent[1] / 2, "exact diffusion on a ring, one partner per step"
    assert (tmp_path / "cheaper.png").stat().st_size > 10_000
