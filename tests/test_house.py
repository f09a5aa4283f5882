"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "dgt").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_module_reads_the_environment(path: Path) -> None:
    if path.name == "environment.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        assert name not in ("environ", "getenv", "putenv"), f"{path.name}:{getattr(node, 'lineno', 0)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_crosses_a_socket(path: Path) -> None:
    words = (
        r"_object_list|_object\(|gather_object|distributed\.rpc|distributed\.checkpoint|allow_pickle=True|"
        r"(pickle|dill|marshal)\.(load|dump)|import (pickle|cloudpickle|dill|marshal|shelve)\b|"
        r"torch\.load\((?!.*weights_only=True)"
    )
    found = re.search(words, path.read_text())
    assert found is None, found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_opens_with_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.heavy
def test_the_wheel_carries_conf_and_all_files(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
        timeout=200,
    )
    (wheel,) = tmp_path.glob("dgt-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for file in (ROOT / "conf").rglob("*.yaml"):
        assert f"dgt/conf/{file.relative_to(ROOT / 'conf')}" in names
    for file in (ROOT / "dgt").rglob("*.*"):  # page and texts too
        assert "__pycache__" in file.parts or str(file.relative_to(ROOT)) in names
