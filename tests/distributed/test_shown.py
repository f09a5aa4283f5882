"""What README and docs/ show, run as written: commands in a small size, the examples on real ranks."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.conftest import Said
from tests.distributed.ranks import DGT, TORCHRUN, command
from tests.distributed.runs import train
from tests.pages import EXAMPLES, LINES, TEXT, TOP

pytestmark = [pytest.mark.timeout(1200), pytest.mark.heavy]

SMALL = {
    "train": ["iterations=3"],
    "compare": ["iterations=6", "eval_every=3", "seeds=2"],
    "simulate": ["nodes=1000", "iterations=3"],
    "plan": [],
    "gaps": [],
    "report": [],
    "data": [],
    "doctor": [],
    "bench": ["rounds=1", "steps=1"],
}
# a ResNet-18 on 16 ranks takes minutes per iteration here: the small network stands in
STAND_IN = ["problem.model=cnn", "problem.batch=4", "problem.test_samples=16", "seeds=1"]
COMMANDS = [line for line in LINES if line.startswith("dgt ") and " run " not in line and "launcher=slurm" not in line]
PROGRAMS = [line for line in LINES if re.fullmatch(r"(dgt run|torchrun|python) .*\w+\.py", line) and "/" not in line]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder with the examples in it, to run them in."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_every_dgt_command_runs(line: str, examples: Path, dgt_here: Callable[..., Said]) -> None:
    words = shlex.split(line)[1:]
    for run in re.findall(r"(?:resume=|dgt report (?:--follow )?|dgt doctor )([\w/-]+)", line):  # made by a line before
        train(examples / ("long" if run == "auto" else run), "weights=A", "nodes=16", "iterations=2")
    if words[0] == "bench":  # all ways, and large models, take minutes; they have tests of their own
        words += ["nodes=4", "variants=[compute,shared]"]
    extra = [] if "--help" in words else SMALL[words[0]] + (STAND_IN if "experiment=cifar10" in line else [])
    done = dgt_here(*words, *extra)  # its ranks are real; the command itself starts quicker here
    assert done.code == 0, done.stderr
    assert done.stdout.strip() or list(examples.rglob("summary.json")), "what ranks print goes past pytest"


# what a program prints, and what it leaves behind
EXPECTED: dict[str, tuple[str, str]] = {
    "plain.py": (r"loss: 0\.\d+\n", ""),
    "my_training.py": (r"loss of every node: \[(0\.[0-4]\d*(, )?){4}\]\n", ""),
    "my_data.py": (r"loss of the average model: 0\.[01]\d*\n", "average.pt"),
    "resumable.py": (r"steps 0 to 300\n", "checkpoints/*/COMMIT"),
    "batchnorm.py": (r"the same statistics everywhere: True\n", ""),
    "faster.py": (r"loss: 0\.\d+ sent: \d+ bytes\n", ""),
    # weights 1 to 4 of the targets 0 to 3: 2, but not without a tracker
    "baselines.py": (
        r"GradientTracking +\D*((1\.99|2\.00)\d*\D*){4}\nDSGD .*\nAllReduce +\D*((1\.99|2\.00)\d*\D*){4}\n",
        "",
    ),
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_every_example_runs(line: str, examples: Path) -> None:
    launcher = {"dgt": DGT, "torchrun": TORCHRUN, "python": [sys.executable]}
    words = shlex.split(line)
    prints, leaves = EXPECTED[words[-1]]
    done = command([*launcher[words[0]], *words[1:]], examples)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(prints, done.stdout), done.stdout
    assert not leaves or list(examples.glob(leaves))


def test_quickstart_prints_a_table_and_a_figure() -> None:
    """In this checkout, as a user would: the second time nothing is installed again."""
    done = command(["bash", "launch/quickstart.sh", "iterations=6", "seeds=2"], TOP, 1200)
    assert done.returncode == 0, done.stderr
    assert "bash launch/quickstart.sh" in TEXT["README.md"]
    figure = re.search(r"^figure  (.*)$", done.stdout, flags=re.MULTILINE)
    assert figure is not None
    assert (TOP / figure.group(1)).stat().st_size > 10_000
    shutil.rmtree((TOP / figure.group(1)).parents[1])
