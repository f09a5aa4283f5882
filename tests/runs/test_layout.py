"""The names of a run directory stand in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import dgt
from dgt.runs import layout

PACKAGE = Path(dgt.__file__).parent
# where a name means something else, or where the layers forbid to ask: `processes/` is below `runs/`
ELSEWHERE = {
    "runs/layout.py",
    "config/compose.py",  # conf/config.yaml
    "processes/failures.py",
}


def _names() -> set[str]:
    values = [value for name, value in vars(layout).items() if name.isupper()]
    words = {word for value in values for word in ([value] if isinstance(value, str) else value)}
    # words of everyday use, such as figures, are keys and titles as well
    return {word for word in words if not word.isalpha()}


def _written_out(tree: ast.AST) -> set[str]:
    """String constants of the code, without docstrings."""
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {word for word in found if "\n" not in word and len(word) < 60}


def test_nobody_else_writes_the_names_of_files_out() -> None:
    names = _names()
    assert {"metrics.jsonl", "summary.json", ".checkpointed", "compare.csv"} <= names
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).as_posix() not in ELSEWHERE:
            taken = _written_out(ast.parse(path.read_text(encoding="utf-8"))) & names
            assert not taken, f"{path}: take {sorted(taken)} from dgt/runs/layout.py"
