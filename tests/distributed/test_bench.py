"""`dgt bench` as users call it: every variant, every preset, under torchrun, over an emulated slow link."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import dgt
from dgt.commands.bench.job import WARM_UP, BenchConfig
from dgt.commands.bench.presets import PRESETS, workload
from tests.distributed.conftest import Said
from tests.distributed.ranks import TORCHRUN, command

pytestmark = pytest.mark.timeout(180)

VARIANTS = {
    "compute", "limit", "ddp", "ddp_bfloat16", "ddp_local", "decent_dp", "naive", "messages", "shared", "no_overlap",
    "buckets", "bfloat16", "local_steps",
}  # fmt: skip
NAMESPACES = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
needs_namespaces = pytest.mark.skipif(not NAMESPACES, reason="network namespaces need root, ip and tc")


def test_bench_measures_all_variants_by_turns(tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("bench", "preset=logistic", "nodes=2", "rounds=2", "steps=2", "local_steps=2", "--json")
    assert done.code == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)}
    assert set(rows) == VARIANTS
    assert rows["compute"]["cpu/compute"] == 1
    assert rows["shared"]["mb_sent"] == pytest.approx(rows["naive"]["mb_sent"])
    assert rows["bfloat16"]["mb_sent"] == pytest.approx(rows["shared"]["mb_sent"] / 2)
    assert rows["ddp_bfloat16"]["mb_sent"] == pytest.approx(rows["ddp"]["mb_sent"] / 2)
    assert rows["ddp_local"]["mb_sent"] == pytest.approx(rows["ddp"]["mb_sent"] / 2), "every second step"
    assert rows["shared"]["wait_ms"] > 0
    assert not rows["ddp"]["terms"]
    assert "every 2 steps" in rows["local_steps"]["terms"]
    (directory,) = (tmp_path / "runs").iterdir()
    assert (directory / "figures" / "bench.png").stat().st_size > 10_000
    assert json.loads((directory / "bench.json").read_text())["rows"] == list(rows.values())


def test_what_sends_less_sends_that_much_less(dgt_here: Callable[..., Said]) -> None:
    """Against gradient tracking on a ring, with two vectors for each of two neighbours."""
    less = {
        "exact_diffusion": 2.0,
        "extra": 2.0,
        "one_peer": 2.0,
        "exact_diffusion_int8": 7.75,
        "exact_diffusion_int4": 15.0,
    }
    words = ["preset=vector", "nodes=4", "rounds=1", "steps=2", f"variants=[shared,{','.join(less)}]"]
    done = dgt_here("bench", *words, "--json")
    assert done.code == 0, done.stderr
    rows = {row["variant"]: row["mb_sent"] for row in json.loads(done.stdout)}
    for name, times in less.items():
        assert rows["shared"] / rows[name] == pytest.approx(times, rel=0.01), name


def test_bench_under_torchrun(tmp_path: Path) -> None:
    words = ["bench", "preset=sleep", "batch=2", "rounds=1", "steps=1", "variants=[compute,messages,buckets]"]
    done = command([*TORCHRUN, "--nproc-per-node=2", "-m", "dgt", *words, "run_dir=here"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == ["compute", "messages", "buckets"]
    assert (tmp_path / "here" / "figures" / "bench.pdf").exists()


def test_only_models_have_buffers() -> None:
    """Constants of a preset were buffers once: DDP broadcast them, as large as the model, before every forward."""
    with_buffers = {name for name in PRESETS if list(workload(name, 1, 10, 0, torch.device("cpu")).model.buffers())}
    assert with_buffers == {"resnet18"}, "BatchNorm"


@pytest.mark.parametrize(("nodes", "preset"), [(2, "sleep"), (3, "vector")])
def test_mb_sent_is_what_the_kernel_counts(nodes: int, preset: str, tmp_path: Path) -> None:
    """Ranks in a network namespace of their own, whose loopback device counts every byte of DDP, Decent-DP and dgt.

    Two ranks are a pair for Decent-DP, of three all average; DDP's count once left out a broadcast of half as much
    again.
    """
    own = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if not shutil.which("ip") or subprocess.run([*own, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("a network namespace needs root and iproute2 (launch/test.sh installs it)")
    line = [*own, sys.executable, "-m", "tests.distributed.counted", str(nodes), preset]
    done = command(line, tmp_path, PYTHONPATH=str(Path(dgt.__file__).parents[1]))
    assert done.returncode == 0, done.stderr
    for name, (said, counted) in json.loads(done.stdout)[preset].items():
        assert said <= counted <= 1.03 * said, f"{name}: nothing but headers beside it"


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
        (["size=10"], "size=10: of preset=vector only; preset=mlp has a size of its own"),
        (["preset=vector", "batch=4"], "batch=4: preset=vector has no samples"),
        (["topology=star", "degree=2"], "degree=2: in place of a topology"),
        (["scaling", "topology=star"], "topology=star: dgt bench scaling varies it itself"),
        (["ddp_bucket_mb=-1"], "ddp_bucket_mb=-1.0: must be at least 0"),
        (["rate=1gbit"], "rate=1gbit: of preset=links only, not of preset=mlp"),
        (["variants=[ddp_local]", "steps=6"], "steps=6: of ddp_local a multiple of local_steps=4"),
    ],
)
def test_bad_bench_settings_are_one_line(
    words: list[str], said: str, tmp_path: Path, dgt_here: Callable[..., Said]
) -> None:
    done = dgt_here("bench", *words)
    assert (done.code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["layout=4"], "layout=4: hosts x ranks on each, such as 4x1 or 2x2"),
        (["layout=1x4"], "layout=1: must be at least 2 and at most 250"),
        (["nodes=4"], "nodes=4: preset=links has as many as layout says; leave it out"),
        (["rate=fast"], "rate=fast: tc takes 100mbit, 1gbit and the like"),
        (["delay=-1"], "delay=-1.0: must be at least 0 and at most 10000"),
    ],
)
@needs_namespaces
def test_bad_links_are_one_line(words: list[str], said: str, tmp_path: Path, dgt_here: Callable[..., Said]) -> None:
    done = dgt_here("bench", "preset=links", *words)
    assert (done.code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def test_links_without_root_are_one_line(monkeypatch: pytest.MonkeyPatch, dgt_here: Callable[..., Said]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = dgt_here("bench", "preset=links")
    assert (done.code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "preset=links: network namespaces need root" in done.stderr


@pytest.mark.heavy
@needs_namespaces
@pytest.mark.parametrize(("layout", "delay"), [("2x2", 2), ("3x1", 0)])
def test_hosts_on_slow_links(
    layout: str, delay: int, dgt_here: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulated links carry what they should, and leave no process, and so no namespace, behind."""
    mark = f"DGT_TEST_LINKS_{os.getpid()}_{layout}"
    monkeypatch.setenv(mark, "1")
    words = ["rate=100mbit", f"layout={layout}", f"delay={delay}", "size=50000", "rounds=1", "steps=2", "local_steps=2"]
    done = dgt_here("bench", "preset=links", *words, "--json")
    assert done.code == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)}
    assert list(rows) == BenchConfig(preset="links", layout=layout, steps=2, local_steps=2).usual_variants
    # z and y of 0.2 MB leave each host on two edges at 12.5 MB/s; tbf lets a burst of 0.13 MB pass
    assert rows["messages"]["wall_ms"] > 0.8 * 0.8 / 12.5 * 1000 + 2 * delay
    assert rows["ddp"]["wall_ms"] > 2 * delay
    assert not on_other_hosts(mark)


def on_other_hosts(variable: str) -> list[int]:
    """Processes in another network namespace that were started with this variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_elsewhere = os.readlink(path / "ns/net") != os.readlink("/proc/self/ns/net")
            if is_elsewhere and variable.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def test_an_all_reduce_waits_for_the_slowest_rank_of_every_step(dgt_here: Callable[..., Said]) -> None:
    """All variants sleep the same random times: what each has to wait for at least is known."""
    nodes, steps = 4, 16
    words = [f"nodes={nodes}", "rounds=1", f"steps={steps}", "variants=[compute,ddp,shared]"]
    done = dgt_here("bench", "preset=jitter", *words, "--json")
    assert done.code == 0, done.stderr
    walls = {row["variant"]: row["wall_ms"] for row in json.loads(done.stdout)}
    draws = [random.Random(rank) for rank in range(nodes)]
    sleeps = np.array([[10 + 20 * draw.expovariate(1) for _ in range(WARM_UP + steps)] for draw in draws])[:, WARM_UP:]
    assert walls["ddp"] > sleeps.max(0).mean()
    assert min(walls.values()) > sleeps.mean(1).max()
