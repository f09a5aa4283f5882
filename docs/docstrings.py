"""For the library reference: in docstrings, arguments stand in two columns; the site shows them as a table.

every      steps between two checkpoints
minutes    time between two checkpoints;
           0 for none
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import Class, Extension, Function, Module, Object

ROW = re.compile(r"^ {0,4}(\*{0,2}\w+(?:, \w+)*) {2,}(\S.*)$")
MORE = re.compile(r"^ {4,}(\S.*)$")


class Columns(Extension):
    """Rewrites docstrings of classes and functions; of a module's it keeps the first paragraph, which has no code."""

    def on_module_instance(self, *, mod: Module, **_: Any) -> None:
        if mod.docstring is not None:
            mod.docstring.value = mod.docstring.value.split("\n\n")[0]

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        rewrite(cls)

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        rewrite(func)


def rewrite(documented: Object) -> None:
    if documented.docstring is not None:
        documented.docstring.value = as_markdown(documented.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its columns as tables; a line that is indented further continues the row above it."""
    return "\n".join(_lines(text.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    row: list[str] = []  # name and text of the argument that is being read
    within = False
    for line in lines:
        new, more = ROW.match(line), MORE.match(line)
        if new is None and more is not None and row:
            row[1] += f" {more[1]}"
            continue
        if row:
            yield _row(row)
            row = []
        if new is not None:
            if not within:
                yield from ("", "| | |", "|---|---|")
            within, row = True, [new[1], new[2]]
            continue
        if within:
            yield ""
        within = False
        yield line
    if row:
        yield _row(row)


def _row(row: list[str]) -> str:
    text = row[1].replace("|", "\\|")
    return f"| `{row[0]}` | {text} |"
