"""`dgt run`: a program of one's own as every node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import DGT, command

pytestmark = pytest.mark.timeout(240)

PROGRAM = """
import sys

import torch

import dgt

for _ in range(2):
    with dgt.join() as node:
        ranks = node.all_gather(torch.tensor([node.rank]))
if node.is_main:
    print("ranks", ranks.flatten().tolist(), sys.argv[1:])
if "fail" in sys.argv and node.rank == 1:
    raise ValueError("told so")
if "exit" in sys.argv:
    sys.exit(7)
"""


def test_a_program_of_ones_own_runs_as_every_node(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = command([*DGT, "run", "-n", "3", "program.py", "--width", "4"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ranks [0, 1, 2] ['--width', '4']\n"
    done = command([*DGT, "run", "-n", "3", "program.py", "fail"], tmp_path)
    assert done.returncode == 1
    assert "ValueError: told so" in done.stderr.splitlines()[-1]
    assert 'program.py", line 14' in done.stderr
    done = command([*DGT, "run", "-n", "2", "program.py", "exit"], tmp_path)
    assert done.returncode != 0
    assert "exited with 7" in done.stderr
