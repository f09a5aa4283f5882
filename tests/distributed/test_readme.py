"""The README's words, run as written: its commands in a small size, its library example under both launchers."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.conftest import Said
from tests.distributed.ranks import DGT, TORCHRUN, command
from tests.distributed.runs import train

pytestmark = [pytest.mark.timeout(1200), pytest.mark.heavy]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]
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
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
# a ResNet-18 on 16 ranks takes minutes per iteration here: the small network stands in
STAND_IN = ["problem.model=cnn", "problem.batch=4", "problem.test_samples=16", "seeds=1"]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("dgt ") and " run " not in line])
def test_every_dgt_command_runs(line: str, tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    (tmp_path / "my_problem.py").write_text(PYTHON[-1])
    (tmp_path / "my_conf" / "problem").mkdir(parents=True)
    (settings,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "my_conf" / "problem" / "parity.yaml").write_text(settings)
    words = shlex.split(line)[1:]
    for run in re.findall(r"(?:resume=|dgt report (?:--follow )?)(\w+)", line):  # a run that a line before has made
        train(tmp_path / ("long" if run == "auto" else run), "weights=A", "nodes=16", "iterations=2")
    if words[0] == "bench":  # all ways, and large models, take minutes; they have tests of their own
        words += ["nodes=4", "variants=[compute,shared]"]
    extra = [] if "--help" in words else SMALL[words[0]] + (STAND_IN if "experiment=cifar10" in line else [])
    done = dgt_here(*words, *extra)  # its ranks are real; the command itself starts quicker here
    assert done.code == 0, done.stderr
    assert done.stdout.strip() or list(tmp_path.rglob("summary.json")), "what ranks print goes past pytest"


@pytest.mark.parametrize("launcher", ["torchrun", "dgt run"])
def test_the_library_example_trains_under_both_launchers(launcher: str, tmp_path: Path) -> None:
    example, uneven, average, saving, _ = PYTHON
    assert len(example.splitlines()) < 40
    # the next snippets belong into the same block, after training
    indented = "".join(f"    {line}\n" for line in (uneven + average).splitlines())
    example += "    evaluate = lambda model: model(inputs).mean().item()\n" + indented
    loop = example[example.index("        optimizer.zero_grad") : example.index("    losses =")]
    example += "    def train_one_step():\n" + loop + "".join(f"    {line}\n" for line in saving.splitlines())
    (tmp_path / "my_training.py").write_text(example)
    (line,) = [line for line in LINES if line.endswith("my_training.py") and line.startswith(launcher)]
    done = command([*(TORCHRUN if launcher == "torchrun" else DGT), *shlex.split(line)[1:]], tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"\d+\.\d+", done.stdout)]
    assert len(losses) == 4
    assert max(losses) < 0.5
    assert (tmp_path / "average.pt").is_file()
    assert len(list((tmp_path / "checkpoints").glob("*/COMMIT"))) == 2


def test_quickstart_prints_a_table_and_a_figure() -> None:
    """In this checkout, as a user would: the second time nothing is installed again."""
    done = command(["bash", "launch/quickstart.sh", "iterations=6", "seeds=2"], ROOT, 1200)
    assert done.returncode == 0, done.stderr
    assert "bash launch/quickstart.sh" in README
    figure = re.search(r"^figure  (.*)$", done.stdout, flags=re.MULTILINE)
    assert figure is not None
    assert (ROOT / figure.group(1)).stat().st_size > 10_000
    shutil.rmtree((ROOT / figure.group(1)).parents[1])


def test_every_picture_exists() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).is_file()
