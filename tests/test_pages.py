"""The pages in docs/: figures are those of the code, files exist. That links lead somewhere, mkdocs checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgt.models import resnet18
from dgt.network import graphs
from dgt.network.hosts import edges_between

TOP = Path(__file__).parents[1]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").glob("*.md"))]


def test_expected_traffic_is_that_of_the_graphs() -> None:
    page = (TOP / "docs" / "benchmark.md").read_text()
    numbers = sum(parameter.numel() for parameter in resnet18().parameters())
    assert f"{numbers:,} parameters" in page
    model = 4 * numbers / 1e6
    for nodes, name in ((8, "ring"), (8, "exponential"), (16, "ring"), (16, "grid"), (16, "exponential")):
        graph = getattr(graphs, name)(nodes)
        degree = max(dict(graph.degree).values())
        row = f"| {nodes} | {name} | {degree} | {2 * degree * model:.0f} |"
        if nodes == 16:
            across = edges_between(graph, range(nodes), [rank // 8 for rank in range(nodes)])
            megabytes = 2 * across * model
            row += f" {across} | {megabytes:.0f} | {megabytes * 8 / 100:.0f} ms |"
        assert row in page
    for nodes in (8, 16):
        assert f"| {nodes} | DDP | | {2 * (nodes - 1) / nodes * model:.0f} |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"(?:launch|docker|docs|tests)/[\w/]+\.\w+", page.read_text())
    assert [name for name in named if not (TOP / name).exists()] == []


def test_modules_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (TOP / "docs" / "architecture.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (TOP / "dgt" / name).exists()] == []
