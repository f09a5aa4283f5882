"""Killing things: nothing is lost, nobody is fooled, everybody is gone in time.

The suites of random trials run a few of them by default; `pytest -m trials` runs them all.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import dgt
from dgt.errors import EXIT_STOPPED, LaunchError, PeerError
from dgt.processes.node import Node
from dgt.training.chaos import MARKER
from tests.distributed.processes import all_end, descendants
from tests.distributed.ranks import DGT, TORCHRUN, command, run_ranks
from tests.distributed.runs import NOISY, assert_identical, commits, configured, metrics, start_long_run, train

pytestmark = pytest.mark.timeout(240)
PHASES = ("step", "copy", "write", "rename", "commit", "prune")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    train(path, *NOISY)
    return path


def kill_and_resume(seed: int, phase: str, undisturbed: Path, folder: Path) -> None:
    """One trial: a rank is killed at a random iteration in this phase, and the run is started again."""
    draw, run = random.Random(seed), folder / f"kill-{seed}"
    rank = 0 if phase in ("commit", "prune") else draw.randrange(4)
    fault = ["chaos=kill", f"chaos.rank={rank}", f"chaos.iteration={draw.randrange(25, 50)}", f"chaos.phase={phase}"]
    with pytest.raises(LaunchError, match=f"rank {rank} was killed"):
        train(run, *NOISY, *fault)
    assert (run / MARKER).exists()
    before = commits(run)
    assert before, "killed before the first checkpoint: the trial would show nothing"
    train(run, *NOISY, *fault, "resume=auto")
    assert_identical(run, undisturbed)
    assert commits(run)[-1].step == 60


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_run_continues_bit_by_bit(phase: str, undisturbed: Path, tmp_path: Path) -> None:
    kill_and_resume(PHASES.index(phase), phase, undisturbed, tmp_path)


@pytest.mark.trials
@pytest.mark.timeout(3000)
def test_fifty_kills(undisturbed: Path, tmp_path: Path) -> None:
    done = Counter[str]()
    for seed in range(50):
        phase = PHASES[seed % len(PHASES)]
        kill_and_resume(100 + seed, phase, undisturbed, tmp_path)
        done[phase] += 1
    print("identical after kill:", dict(done))
    assert min(done.values()) >= 5


def term_and_resume(seed: int, undisturbed: Path, folder: Path) -> None:
    draw, run = random.Random(seed), folder / f"term-{seed}"
    at = draw.randrange(5, 50)
    struck = ["chaos=term", f"chaos.rank={draw.randrange(4)}", f"chaos.iteration={at}"]
    plain = [word for word in NOISY if not word.startswith("checkpoint")]
    with pytest.raises(
        LaunchError, match=r"stopped by SIGTERM at iteration \d+; resume=auto run_dir=.* continues"
    ) as caught:
        train(run, *plain, *struck)
    assert caught.value.code == EXIT_STOPPED == 75
    (commit,) = commits(run)
    assert at < commit.step <= at + 2 + 1  # a ring of four: two hops
    train(run, *plain, "resume=auto")
    assert_identical(run, undisturbed)


def test_sigterm_on_one_rank_stops_all_at_one_step(undisturbed: Path, tmp_path: Path) -> None:
    for seed in range(2):
        term_and_resume(seed, undisturbed, tmp_path)


@pytest.mark.trials
@pytest.mark.timeout(1200)
def test_twenty_sigterms(undisturbed: Path, tmp_path: Path) -> None:
    for seed in range(20):
        term_and_resume(100 + seed, undisturbed, tmp_path)


@dataclass
class Mortal:
    """Steps until one rank is killed; notes when it was, and when the others knew whom."""

    folder: str
    victim: int
    at: int
    transport: str
    size: int

    def run(self, node: Node) -> None:
        graph = dgt.graphs.ring(node.size)
        node.stop_on_signals()  # as in training: the launcher's SIGTERM is not what ends the others
        network = dgt.Network(node, graph, [1.0] * node.size, transport=self.transport)
        theta = torch.nn.Parameter(torch.zeros(self.size))
        optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
        try:
            for step in range(10_000):
                theta.grad = torch.ones(self.size)
                time.sleep(0.002)
                if node.rank == self.victim and step == self.at:
                    (Path(self.folder) / "killed").write_text(repr(time.time()))
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
        except PeerError as error:
            (Path(self.folder) / f"noticed-{node.rank}").write_text(f"{time.time()!r} {error}")
            raise


def die_and_measure(seed: int, folder: Path) -> tuple[float, float]:
    """Seconds until the first neighbour named the dead rank, and until everybody was gone."""
    draw = random.Random(seed)
    folder = folder / f"death-{seed}"
    folder.mkdir()
    victim, size = draw.randrange(6), draw.choice([10, 50_000])
    job = Mortal(str(folder), victim, draw.randrange(3, 60), draw.choice(["auto", "messages"]), size)
    with pytest.raises(LaunchError, match=f"rank {victim} was killed|neighbour {victim} is gone"):
        run_ranks(job, 6, timeout=60)
    out, killed = time.time(), float((folder / "killed").read_text())
    words = [path.read_text() for path in folder.glob("noticed-*")]
    named = [float(text.split()[0]) - killed for text in words if f"neighbour {victim} is gone" in text]
    assert named, words
    return min(named), out - killed


def test_a_dead_neighbour_is_named_and_everybody_leaves(tmp_path: Path) -> None:
    """Long before the timeout of a minute; how long exactly is measured below, on a machine that is at rest."""
    for seed in range(4):
        named, out = die_and_measure(seed, tmp_path)
        assert named < 2
        assert out < 4


@pytest.mark.trials
def test_twenty_deaths(tmp_path: Path) -> None:
    times = [die_and_measure(100 + seed, tmp_path) for seed in range(20)]
    print(f"named after at most {max(t[0] for t in times):.2f} s, all gone after {max(t[1] for t in times):.2f} s")
    assert max(t[0] for t in times) < 1
    assert max(t[1] for t in times) < 2


def restart(seed: int, agents: int, undisturbed: Path, folder: Path) -> None:
    """torchrun restarts a struck run by itself, and the restarted ranks find each other the first time."""
    folder = folder / f"restart-{agents}-{seed}"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    fault = ["chaos=kill", f"chaos.seed={seed}", "chaos.iteration=25", "resume=auto", f"run_dir={folder / 'run'}"]
    line = [
        *TORCHRUN, f"--nnodes={agents}", f"--nproc-per-node={4 // agents}", "--max-restarts=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "-m", "dgt", "train", *NOISY, *fault,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            line, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        for _ in range(agents)
    ]
    said = [process.communicate(timeout=150)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * agents, said
    assert (folder / "run" / MARKER).exists()
    assert_identical(folder / "run", undisturbed)


@pytest.mark.heavy
def test_torchrun_restarts_work_the_first_time(undisturbed: Path, tmp_path: Path) -> None:
    restart(0, 2, undisturbed, tmp_path)


@pytest.mark.trials
@pytest.mark.timeout(1800)
def test_ten_restarts(undisturbed: Path, tmp_path: Path) -> None:
    for seed in range(1, 6):
        for agents in (1, 2):
            restart(seed, agents, undisturbed, tmp_path)


@pytest.mark.heavy
def test_no_rank_outlives_torchrun(tmp_path: Path) -> None:
    torchrun = [*TORCHRUN, "--nproc-per-node=3", "-m", "dgt"]
    process = start_long_run(tmp_path / "r", "weights=[1,1,1]", launcher=torchrun)
    pids = descendants(process.pid)
    assert len(pids) >= 3
    process.kill()
    process.communicate(timeout=60)
    all_end(pids)


@pytest.mark.parametrize("overrides", [[], ["transport=messages"]])
def test_a_stopped_rank_changes_nothing(overrides: list[str], undisturbed: Path, tmp_path: Path) -> None:
    train(tmp_path / "r", *NOISY, *overrides, "chaos=pause", "chaos.iteration=20", "chaos.seconds=2.5")
    assert (tmp_path / "r" / MARKER).exists()
    if not overrides:
        assert_identical(tmp_path / "r", undisturbed)
    else:
        assert metrics(tmp_path / "r")[-1]["iteration"] == 60


@pytest.mark.parametrize("algorithm", ["gradient_tracking", "dsgd", "allreduce"])
def test_nothing_that_is_not_a_number_spreads(algorithm: str, tmp_path: Path) -> None:
    fault = ["chaos=not_a_number", "chaos.rank=2", "chaos.iteration=33", "checkpoint.every=1", f"algorithm={algorithm}"]
    words = r"node 2: the gradient is not finite at iteration 33, nothing of it was sent"
    with pytest.raises(LaunchError, match=words) as caught:
        train(tmp_path / "r", *NOISY, *fault)
    assert caught.value.code == 1
    for commit in commits(tmp_path / "r"):
        assert commit.step <= 33
        for rank in range(4):
            state = torch.load(commit.path / f"rank-{rank:05d}.pt", weights_only=True)
            for tensor in [*state["model"].values(), *state["optimizer"]["dgt"].values()]:
                assert not isinstance(tensor, torch.Tensor) or bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("overrides", [["dtype=auto"], ["dtype=float64"], ["on_peer_loss=continue"]])
@pytest.mark.parametrize("fault", ["forget", "rollback"])
def test_a_node_that_loses_its_memory_raises_the_alarm(
    fault: str, overrides: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    words = r"the trackers no longer track at iteration \d+: residual .* rounding explains .* resume=auto"
    often = ["checkpoint.every=2", "checkpoint.keep_last=9"]
    with pytest.raises(LaunchError, match=words) as caught:
        train(tmp_path / "r", *NOISY, *often, *overrides, f"chaos={fault}", "chaos.iteration=31")
    assert caught.value.code == 1
    assert [row["iteration"] for row in metrics(tmp_path / "r")][-1] == 28
    assert commits(tmp_path / "r")[-1].step <= 28, "what was saved after the last sound evaluation does not count"
    if overrides == ["dtype=auto"]:
        train(tmp_path / "r", *NOISY, "resume=auto")
        assert_identical(tmp_path / "r", undisturbed)


@pytest.mark.heavy
@pytest.mark.parametrize("overrides", [["dtype=float64"], ["dtype=float32"], ["wire=bfloat16", "iterations=2000"]])
def test_no_false_alarm_in_ten_thousand_iterations(overrides: list[str], tmp_path: Path) -> None:
    plain = ["weights=[1,2,3,4]", "iterations=10000", "eval_every=50", "topology=ring", "checkpoint.keep_last=0"]
    train(tmp_path / "r", *plain, *overrides)
    assert metrics(tmp_path / "r")[-1]["iteration"] == configured(tmp_path, *plain, *overrides).iterations


def test_an_explosion_ends_the_run_with_the_limit_from_theory(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"loss is .* lr=1 is too large .* 1/beta = 0\.0799 .* at most 0\.00\d+ for"
    ) as caught:
        train(tmp_path / "r", "weights=[1,2,3,4]", "lr=1", "iterations=3000")
    assert int(re.findall(r"iteration (\d+)", str(caught.value))[0]) < 100


@pytest.mark.parametrize("overrides", [["transport=auto"], ["transport=messages", "wire=bfloat16"]])
@pytest.mark.parametrize("damage", ["flip", "stale", "swap", "short", "dtype"])
def test_a_wrong_message_is_named(damage: str, overrides: list[str], tmp_path: Path) -> None:
    fault = ["chaos=corrupt", f"chaos.damage={damage}", "chaos.rank=1", "chaos.iteration=12", "crc=true"]
    with pytest.raises(LaunchError, match=r"of iteration 12 from neighbour 1 is wrong: ") as caught:
        train(tmp_path / "r", *NOISY, *overrides, *fault)
    assert caught.value.code == 1


@pytest.mark.trials
@pytest.mark.timeout(1800)
def test_two_hundred_damaged_messages(tmp_path: Path) -> None:
    """Flips, stale, swapped, short, wrong dtype: on every transport and wire, at random iterations of random ranks."""
    draw, done = random.Random(7), Counter[str]()
    for trial in range(240):
        damage = ("flip", "flip", "flip", "flip", "flip", "stale", "swap", "short", "dtype")[trial % 9]
        rank, iteration = draw.randrange(4), draw.randrange(1, 15)
        ways = [
            f"transport={draw.choice(['auto', 'messages'])}",
            f"wire={draw.choice(['full', 'bfloat16', 'float16', 'int8', 'int4'])}",
        ]
        fault = [
            "chaos=corrupt", f"chaos.damage={damage}", f"chaos.rank={rank}", f"chaos.iteration={iteration}",
            f"chaos.seed={trial}", "crc=true", "iterations=16", "checkpoint.keep_last=0",
        ]  # fmt: skip
        words = rf"of iteration {iteration} from neighbour {rank} is wrong: "
        with pytest.raises(LaunchError, match=words):
            train(tmp_path / str(trial), *NOISY, *ways, *fault)
        done[damage] += 1
    print("noticed:", dict(done))
    assert sum(done.values()) == 240


def test_a_full_disk_skips_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    here = {"PYTHONPATH": str(Path(__file__).parents[2])}
    plain = [*DGT, "train", *NOISY, "checkpoint.keep_last=1", f"run_dir={disk / 'r'}", "resume=auto"]
    try:
        train(disk / "r", *NOISY, "checkpoint.keep_last=1", "iterations=20")
        assert [commit.step for commit in commits(disk / "r")] == [20]
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 20_000))
        done = command([*plain, "iterations=40"], tmp_path, **here)
        assert done.returncode == 0
        told = [line for line in done.stderr.splitlines() if "skipped" in line]
        assert re.fullmatch(
            r"dgt: checkpoint of iteration 30 skipped: rank \d: (No space left on device|no room)", told[0]
        )
        assert len(told) == 2, "one line per checkpoint"
        assert [commit.step for commit in commits(disk / "r")] == [20]
        assert metrics(disk / "r")[-1]["iteration"] == 40
        (disk / "filler").unlink()
        train(disk / "r", *NOISY, "checkpoint.keep_last=1", "resume=auto")
        assert commits(disk / "r")[-1].step == 60
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=20)


def test_keep_every_keeps_what_keep_last_alone_would_remove(tmp_path: Path) -> None:
    """Two checkpoints, the first long written when the second is: none is skipped however slow the disk is."""
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    often = ["checkpoint.every=30", "checkpoint.keep_last=1"]
    train(kept, *NOISY, *often, "checkpoint.keep_every=30")
    train(removed, *NOISY, *often)
    assert [commit.step for commit in commits(kept)] == [30, 60]
    assert [commit.step for commit in commits(removed)] == [60]
    assert "keep_every: 30" in (kept / "config.yaml").read_text()
