"""One HTML file that needs nothing else: the template of `page/` with its styles, its scripts and the data inside."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from dgt.config import files
from dgt.report.payload import payload
from dgt.runs.run import Run

SCRIPTS = ("draw.js", "curves.js", "network.js", "nodes.js", "words.js", "page.js")


def page(runs: Sequence[Run], live: bool = False) -> str:
    """The text of the page; a live one reloads itself."""
    parts = resources.files("dgt.report") / "page"

    def part(name: str) -> str:
        return (parts / name).read_text(encoding="utf-8")

    data = payload(runs, live)
    name = data["runs"][0]["name"] if len(data["runs"]) == 1 else f"{len(data['runs'])} runs"
    # `<` is escaped: `</script>` inside a string would end the script element
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    pieces = {
        "/* styles */": part("page.css"),
        "/* scripts */": "\n".join(part(script) for script in SCRIPTS),
        "/* data */": embedded,
        "<!-- title -->": html.escape(name),
    }
    text = part("page.html")
    for mark, piece in pieces.items():
        before, mark, after = text.partition(mark)
        assert mark, "the template has a place for every piece"
        text = before + piece + after
    return text


def write(runs: Sequence[Run], path: Path, live: bool = False) -> None:
    """Write the page atomically, through a draft that is renamed: a browser may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, page(runs, live))
