"""Stop and go on: the same bits as a run that was never stopped, or a clear word why not."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dgt
from dgt.errors import LaunchError
from dgt.processes.node import Node
from tests.distributed.ranks import DGT, command, run_ranks
from tests.distributed.runs import NOISY, assert_identical, commits, last_state, metrics, start_long_run, told, train

pytestmark = pytest.mark.timeout(240)

FOUR = "weights=[1,2,3,4]"
LEAST_SQUARES = [FOUR, "topology=ring", "iterations=60", "eval_every=3", "checkpoint.every=20"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["strategy=I", "transport=messages", "local_steps=2"],
        ["problem.dimension=20000", "wire=bfloat16"],
        ["problem.dimension=20000", "wire=int4", "local_steps=2", "transport=messages"],
        ["problem.dimension=20000", "overlap=false", "logger=tensorboard"],
        ["algorithm=dsgd"],
        ["algorithm=allreduce"],
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_least_squares_goes_on_bit_by_bit(overrides: list[str], tmp_path: Path) -> None:
    train(tmp_path / "whole", *LEAST_SQUARES, *overrides)
    train(tmp_path / "parts", *LEAST_SQUARES, *overrides, "iterations=33")
    train(tmp_path / "parts", *LEAST_SQUARES, *overrides, "resume=auto")
    assert commits(tmp_path / "parts")[-1].step == 60
    # the evaluation at 33 is the shorter run's last, which the whole one has too
    assert_identical(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.base=adamw", "schedule=cosine", "schedule.warmup=0.2", "clip=1", "precision=bf16"],
        ["bucket_mb=0.05", "problem.buffers=mixed", "dtype=float64"],
    ],
)
def test_a_cnn_with_augmentation_and_batchnorm_goes_on_bit_by_bit(
    overrides: list[str], data_root: Path, tmp_path: Path
) -> None:
    cnn = [
        "weights=[1,2,3]", "topology=ring", "problem=cifar10", "problem.model=cnn", "problem.norm=batch",
        "problem.batch=16", "problem.test_samples=50", "iterations=24", "eval_every=6", "checkpoint.every=10",
        "lr=0.01",
        *overrides,
    ]  # fmt: skip
    train(tmp_path / "whole", *cnn)
    # where a neighbour ends in the same tenth of a second, torch's launcher may tell of the neighbour only
    with pytest.raises(LaunchError, match=r"rank 1 was killed|neighbour 1 is gone"):
        train(tmp_path / "parts", *cnn, "chaos=kill", "chaos.rank=1", "chaos.iteration=17")
    assert [commit.step for commit in commits(tmp_path / "parts")] == [10]
    train(tmp_path / "parts", *cnn, "resume=auto")
    assert_identical(tmp_path / "whole", tmp_path / "parts")
    statistics = [name for name in last_state(tmp_path / "parts")[0]["model"] if "running_mean" in name]
    assert statistics


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 42 iterations, with checkpoints at 40 and 42."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    train(path, *LEAST_SQUARES, "iterations=42")
    return path


def test_a_damaged_checkpoint_falls_back_to_the_one_before(stopped: Path, tmp_path: Path) -> None:
    train(tmp_path / "whole", *LEAST_SQUARES)
    subprocess.run(["cp", "-r", str(stopped), str(tmp_path / "r")], check=True)
    newest = commits(tmp_path / "r")[-1].path
    data = bytearray((newest / "rank-00002.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "rank-00002.pt").write_bytes(data)
    done = command([*DGT, "train", *LEAST_SQUARES, f"run_dir={tmp_path / 'r'}", "resume=auto"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stderr) == [
        f"dgt: checkpoint {newest.name}: rank-00002.pt is damaged (its checksum differs) (on rank 2); "
        "going back to the one before"
    ]
    assert_identical(tmp_path / "whole", tmp_path / "r")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["topology=complete"], "graph is 4 edges"),
        (["weights=[1,2,3,5]"], "weights is 4 nodes"),
        (["weights=[1,2,3,4,5]"], "world is 4 nodes there, 5 nodes here"),
        (["problem.dimension=7"], "problem.dimension is 10 there, 7 here; model is 10 of torch.float64"),
        (["strategy=I"], "strategy is II there, I here"),
        (["lr=0.01"], "lr is 0.02 there, 0.01 here"),
        (["wire=bfloat16"], "traffic is wire full"),
        (["seed=1"], "seed is 0 there, 1 here"),
    ],
)
def test_a_changed_run_is_refused_with_what_changed(
    stopped: Path, tmp_path: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        train(tmp_path / "r", *LEAST_SQUARES, *overrides, f"resume={stopped}")
    assert caught.value.code == 2
    assert words in str(caught.value)
    assert f"(resume={stopped} warm_start=true takes its average model only)" in str(caught.value)


def test_a_changed_machine_is_a_warning(stopped: Path, tmp_path: Path) -> None:
    arguments = [*DGT, "train", *LEAST_SQUARES, "run_dir=r", f"resume={stopped}"]
    done = command(arguments, tmp_path, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert told(done.stderr) == ["dgt: resume: threads was 1, is 2: the last digits may differ"]
    assert [row["iteration"] for row in metrics(tmp_path / "r")][:3] == [0, 3, 6], "the history comes along"


def test_a_run_may_be_resumed_elsewhere_from_any_checkpoint(stopped: Path, tmp_path: Path) -> None:
    train(tmp_path / "whole", *LEAST_SQUARES)
    train(tmp_path / "r", *LEAST_SQUARES, f"resume={commits(stopped)[0].path}")
    assert_identical(tmp_path / "whole", tmp_path / "r")
    assert commits(stopped)[-1].step == 42, "the run it came from is left alone"


def test_a_warm_start_takes_the_average_model_into_another_network(stopped: Path, tmp_path: Path) -> None:
    states, shares = last_state(stopped), [file["share"] for file in commits(stopped)[-1].files]
    average = sum(share * state["model"]["theta"] for share, state in zip(shares, states, strict=True))
    more = ["weights=[1,1,1,1,1,1]", "topology=star", "iterations=0", "checkpoint.every=1"]
    arguments = [*DGT, "train", *LEAST_SQUARES, *more, f"resume={stopped}", "warm_start=true", "run_dir=r"]
    done = command(arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stderr) == [
        "dgt: warm start from the average model of iteration 42 (4 nodes there, 6 here); "
        "trackers start anew on all nodes"
    ]
    for state in last_state(tmp_path / "r"):
        assert torch.allclose(state["model"]["theta"], average, atol=1e-14)
        assert state["step"] == 0


@pytest.mark.parametrize(
    ("name", "whom"), [("SIGTERM", "launcher"), ("SIGUSR1", "everybody"), ("SIGUSR2", "everybody")]
)
def test_a_signal_stops_all_ranks_together(tmp_path: Path, name: str, whom: str) -> None:
    """Slurm signals every process of a job: that once ended the one that forks ranks, and with it the run, unsaved."""
    run = tmp_path / "r"
    process = start_long_run(run, FOUR)
    if whom == "launcher":
        process.send_signal(signal.Signals[name])
    else:
        os.killpg(process.pid, signal.Signals[name])
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    (commit,) = commits(run)
    assert commit.world == 4
    heard = "SIGUSR1" if name == "SIGUSR2" else name
    assert told(stderr) == [f"dgt: stopped by {heard} at iteration {commit.step}; resume=auto run_dir={run} continues"]


def test_a_run_without_checkpoints_ends_at_a_signal_and_says_so(tmp_path: Path) -> None:
    process = start_long_run(tmp_path / "r", FOUR, "checkpoint.keep_last=0")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert told(stderr) == ["dgt: ended by SIGTERM without saving"]


def test_checkpoints_by_the_clock_are_at_one_step_everywhere(tmp_path: Path) -> None:
    noisy = [word for word in NOISY if not word.startswith("checkpoint")]
    train(tmp_path / "r", *noisy, "iterations=400", "checkpoint.minutes=0.004", "checkpoint.keep_last=9")
    steps = [commit.step for commit in commits(tmp_path / "r")]
    assert len(steps) >= 3
    assert steps[-1] == 400


def test_a_finished_run_may_be_made_longer_or_left_as_it_is(stopped: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(stopped), str(tmp_path / "r")], check=True)
    before = metrics(tmp_path / "r")
    train(tmp_path / "r", *LEAST_SQUARES, "iterations=42", "resume=auto")
    assert metrics(tmp_path / "r") == before
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["final"]["iteration"] == 42


def test_half_a_line_at_the_end_of_the_metrics_is_dropped(stopped: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(stopped), str(tmp_path / "r")], check=True)
    file = tmp_path / "r" / "metrics.jsonl"
    file.write_text(file.read_text() + '{"iteration": 43, "lo')
    train(tmp_path / "r", *LEAST_SQUARES, "resume=auto")
    train(tmp_path / "whole", *LEAST_SQUARES)
    assert_identical(tmp_path / "r", tmp_path / "whole")


@dataclass
class OwnLoop:
    """A loop of one's own with a scheduler, dropout and BatchNorm; ends early where it is told to."""

    folder: str
    until: int
    ask: int = -1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    make: Any = dgt.GradientTracking

    def run(self, node: Node) -> tuple[int, list[float]]:
        node.stop_on_signals()
        torch.manual_seed(node.rank)
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0, 2.0, 3.0], laziness=0.35)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        optimizer = self.make(model.parameters(), lr=0.05, network=network, **self.options)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 12], gamma=0.5)
        checkpoints = dgt.Checkpoints(
            self.folder, network, every=4, model=model, optimizer=optimizer, scheduler=scheduler
        )
        done = checkpoints.resume()
        while done < self.until:
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            if done == self.ask and node.rank == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            optimizer.step()
            scheduler.step()
            done += 1
            if checkpoints.step(done):
                break
        else:
            checkpoints.save(done)
        state = torch.cat([value.double().flatten() for value in model.state_dict().values()])
        return done, [*state.tolist(), optimizer.param_groups[0]["lr"]]


@pytest.mark.parametrize(
    ("make", "options", "stops_at"),
    [
        (dgt.GradientTracking, {"momentum": 0.9}, 10),
        (dgt.GradientTracking, {"base": "adamw"}, 10),
        (dgt.ExactDiffusion, {"momentum": 0.9}, 10),
        (dgt.ExactDiffusion, {"form": "extra"}, 11),  # a message takes a step longer
    ],
)
def test_a_loop_of_ones_own_goes_on_bit_by_bit(
    make: Any, options: dict[str, Any], stops_at: int, tmp_path: Path
) -> None:
    whole = run_ranks(OwnLoop(str(tmp_path / "whole"), 20, options=options, make=make), 3)
    stopped = run_ranks(OwnLoop(str(tmp_path / "parts"), 20, ask=9, options=options, make=make), 3)
    assert {done for done, _ in stopped.values()} == {stops_at}, "all at one step"
    assert run_ranks(OwnLoop(str(tmp_path / "parts"), 20, options=options, make=make), 3) == whole


def test_nothing_listens_beyond_the_loopback_interface(tmp_path: Path) -> None:
    """Every socket of every rank, of the launcher and of the process that forks ranks."""
    process = start_long_run(tmp_path / "r", FOUR, "transport=messages")
    try:
        found = listening(os.getpgid(process.pid))
        assert found, "gloo listens for its neighbours"
        assert all(address in ("127.0.0.1", "::1") for address in found), found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)


def listening(group: int) -> list[str]:
    """Addresses at which processes of this group accept connections."""
    inodes = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if os.getpgid(int(entry.name)) == group:
                links = [os.readlink(file) for file in (entry / "fd").iterdir()]
                inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
        except OSError:
            continue
    found = []
    for family, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                raw = bytes.fromhex(fields[1][:width])
                quads = [raw[k : k + 4][::-1] for k in range(0, len(raw), 4)]
                found.append(socket_address(b"".join(quads)))
    return found


def socket_address(raw: bytes) -> str:
    import ipaddress

    return str(ipaddress.ip_address(raw))
