"""`dgt bench` as users call it: every variant, every preset, under torchrun, over an emulated slow link."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dgt
from tests.distributed.conftest import Said
from tests.distributed.ranks import TORCHRUN, command

pytestmark = pytest.mark.timeout(180)

VARIANTS = {"compute", "limit", "ddp", "decent_dp", "naive", "messages", "shared", "no_overlap", "buckets", "bfloat16"}


def test_bench_measures_all_variants_by_turns(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("bench", "preset=logistic", "nodes=2", "rounds=2", "steps=2", "--json")
    assert done.code == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)}
    assert set(rows) == VARIANTS
    assert rows["compute"]["cpu/compute"] == 1
    assert rows["shared"]["mb_sent"] == pytest.approx(rows["naive"]["mb_sent"])
    assert rows["bfloat16"]["mb_sent"] == pytest.approx(rows["shared"]["mb_sent"] / 2)
    assert rows["shared"]["wait_ms"] > 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert (directory / "figures" / "bench.png").stat().st_size > 10_000
    assert json.loads((directory / "bench.json").read_text())["rows"] == list(rows.values())


@pytest.mark.parametrize("preset", ["vector", "sleep"])
def test_bench_under_torchrun(preset: str, tmp_path: Path) -> None:
    words = ["bench", f"preset={preset}", "rounds=1", "steps=1", "batch=2", "variants=[compute,messages,buckets]"]
    done = command([*TORCHRUN, "--nproc-per-node=2", "-m", "dgt", *words, "run_dir=here"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == ["compute", "messages", "buckets"]
    assert (tmp_path / "here" / "figures" / "bench.pdf").exists()


def test_bench_scaling_grows_ranks_degree_and_bytes(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    words = ["bench", "scaling", "nodes=3", "preset=logistic", "rounds=1", "steps=1", "variants=[compute,shared]"]
    done = dgt_here(*words, "--json")
    assert done.code == 0, done.stderr
    values = {}
    for row in json.loads(done.stdout):
        values.setdefault(row["grows"], set()).add(row["value"])
    assert values == {"ranks": {2, 3}, "degree": {2}, "bytes": {4 * 10**k for k in range(3, 8)}}
    (directory,) = (tmp_path / "runs").iterdir()
    assert (directory / "figures" / "scaling.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["preset=mpl"], "preset=mpl: did you mean mlp"),
        (["variants=[compute,sharde]"], "variants=sharde: did you mean shared"),
        (["variants=[ddp,ddp]"], "one of them is there twice"),
        (["degree=4"], "degree=4: must be at least 0 and at most 3"),
        (["nodes=5", "degree=3"], "degree=3: 5 nodes cannot all have an odd number"),
        (["scalign"], "scalign"),
    ],
)
def test_bad_bench_settings_are_one_line(
    words: list[str], said: str, tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    done = dgt_here("bench", *words)
    assert (done.code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def test_two_hosts_on_a_slow_link(tmp_path: Path) -> None:
    """The emulated link runs, and leaves no namespace behind."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("network namespaces need root, ip and tc")
    script = Path(dgt.__file__).parents[1] / "launch" / "slow_links.py"
    words = ["preset=sleep", "batch=4", "rounds=1", "steps=1", "variants=[shared,buckets,messages]", "run_dir=here"]
    done = command([sys.executable, str(script), "rate=1gbit", "delay=1", "--", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["shared", "buckets", "messages"]
    names = subprocess.run(["ip", "netns"], capture_output=True, check=True, text=True).stdout
    left = [pid for pid in re.findall(r"dgt-(\d+)-", names) if not Path(f"/proc/{pid}").exists()]
    assert not left, "what is there belongs to somebody who is"
