"""The README's words, run as written: its commands in a small size, its library example under both launchers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.distributed.ranks import DGT, TORCHRUN, command

pytestmark = [pytest.mark.timeout(240), pytest.mark.heavy]

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LINES = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]
SMALL = {"train": ["iterations=3"], "compare": ["iterations=6", "seeds=2"], "gaps": []}


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("dgt ")])
def test_every_dgt_command_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line)[1:]
    extra = [] if "--help" in words else SMALL[words[0]]
    done = command([*DGT, *words, *extra], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_torchrun_line_of_several_hosts_runs_as_one_host(tmp_path: Path) -> None:
    (line,) = [line for line in LINES if line.startswith("torchrun --nnodes")]
    words = shlex.split(line.replace("--nnodes 2", "--nnodes 1").replace("host1:29500", "localhost:0"))[1:]
    words = [word.replace("weights=A", "nodes=8") for word in words] + ["weights=uniform", "iterations=3", "run_dir=r"]
    done = command([*TORCHRUN, *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "summary.json").exists()


def test_the_library_example_trains_under_torchrun(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.splitlines()) < 40
    (tmp_path / "my_training.py").write_text(example)
    (line,) = [line for line in LINES if line.endswith("my_training.py")]
    done = command([*TORCHRUN, *shlex.split(line)[1:]], tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"\d+\.\d+", done.stdout)]
    assert len(losses) == 4
    assert max(losses) < 0.5


def test_the_two_scripts_are_the_ones_the_readme_names() -> None:
    for script in ("launch/quickstart.sh", "launch/test.sh"):
        assert f"bash {script}" in README
        assert (Path(__file__).parents[2] / script).is_file()
