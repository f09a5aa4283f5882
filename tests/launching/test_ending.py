"""How a run ends when it is told to: saved or not, the right words, the right exit code, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dgt.errors import EXIT_STOPPED
from dgt.launching.ranks import Ranks
from dgt.processes import signals
from dgt.processes.node import STOPS_ON_SIGNALS
from dgt.processes.process import Process
from tests.distributed.processes import all_end, descendants, until
from tests.distributed.ranks import DGT, TORCHRUN
from tests.distributed.runs import HELD, commits, start_long_run, told

pytestmark = pytest.mark.timeout(180)
TWO = "weights=[1,1]"
STOPPING = "dgt: interrupted: all ranks save and leave; Ctrl-C again ends them at once"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory of commands that are started; short, as names of sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ending-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_the_first_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, temporary: Path) -> None:
    run = tmp_path / "r"
    process = start_long_run(run, TWO)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole foreground group
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (commit,) = commits(run)
    again = f"dgt train iterations=10000000 eval_every=10 '{TWO}' run_dir={run} resume=auto"
    assert told(stderr) == [STOPPING, f"dgt: interrupted at iteration {commit.step}; to go on: {again}"]
    until(lambda: not left(temporary), lambda: left(temporary))
    words = [word.replace("10000000", str(commit.step + 10)) for word in shlex.split(again)[1:]]
    done = subprocess.run([*DGT, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert commits(run)[-1].step == commit.step + 10


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """Rank 0 sleeps for a minute, and nothing can be saved before."""
    run = tmp_path / "r"
    process = start_long_run(run, TWO, *HELD, "chaos.rank=0", "checkpoint.every=50", "chaos.seconds=60")
    pids = descendants(process.pid)
    until(lambda: (run / "chaos-struck").exists() and commits(run))
    saved = [commit.step for commit in commits(run)]
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    until(lambda: STOPPING in process.stderr.readline())
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told(stderr) == ["dgt: interrupted; 2 ranks stopped"]
    all_end(pids)
    assert commits(run)[-1].step >= saved[-1] > 0, "what was committed is whole"


def test_ctrl_c_ends_a_sweep_and_names_the_run(tmp_path: Path) -> None:
    line = [*DGT, "train", "-m", TWO, "iterations=10000000", "eval_every=10", "seed=1,2"]
    process = subprocess.Popen(
        line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: any(file.read_text().count("\n") > 2 for file in tmp_path.glob("runs/*/metrics.jsonl")))
    process.send_signal(signal.SIGINT)  # nobody but the launcher
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    (run,) = (tmp_path / "runs").iterdir()
    assert re.search(rf"; to go on: dgt train .*seed=1 run_dir=runs/{run.name} resume=auto$", told(stderr)[-1])


OWN_LOOP = """
import sys
from pathlib import Path

import torch

import dgt

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
    theta = torch.nn.Parameter(torch.zeros(5))
    optimizer = dgt.GradientTracking([theta], lr=0.1, network=network)
    node.stop_on_signals()
    for step in range(10**7):
        theta.grad = torch.ones(5)
        optimizer.step()
        if step == 3:
            Path(f"begun-{node.rank}").touch()
        if optimizer.stop_now:
            Path(f"stopped-{node.rank}").write_text(str(step))
            break
"""


def test_ctrl_c_asks_a_program_of_ones_own_to_stop(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_LOOP)
    process = subprocess.Popen([*DGT, "run", "-n", "2", "own.py"], cwd=tmp_path, start_new_session=True)
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 0
    stops = {path.read_text() for path in tmp_path.glob("stopped-*")}
    assert len(stops) == 1
    assert len(list(tmp_path.glob("stopped-*"))) == 2


@pytest.mark.heavy
def test_ctrl_c_saves_under_torchrun(tmp_path: Path) -> None:
    """The terminal and torchrun both signal the ranks; torchrun waits for them for half a minute."""
    run = tmp_path / "r"
    process = start_long_run(run, TWO, launcher=[*TORCHRUN, "--nproc-per-node=2", "-m", "dgt"])
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    (commit,) = commits(run)
    words = f"dgt: interrupted at iteration {commit.step}; resume=auto run_dir={run} continues"
    assert [line for line in stderr.splitlines() if line.startswith("dgt: ")] == [words]


def test_a_run_that_nohup_started_outlives_its_terminal(tmp_path: Path) -> None:
    """torch's launcher took SIGHUP over, though it was ignored, and ended the run."""
    process = start_long_run(tmp_path / "r", TWO, launcher=["nohup", *DGT])
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, stderr


def test_signals_that_come_while_a_stopped_run_leaves_do_not_change_its_exit_code(tmp_path: Path) -> None:
    """A second SIGTERM gave -15 in place of 75 while Python shut down, and before that the words that there was nothing
    to save yet."""
    process = start_long_run(tmp_path / "r", TWO)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.002)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 75
    (line,) = told(stderr)
    assert re.fullmatch(r"dgt: stopped by SIGTERM at iteration \d+; resume=auto run_dir=.* continues", line)


def test_a_killed_forkserver_is_named(tmp_path: Path, temporary: Path) -> None:
    process = start_long_run(tmp_path / "r", TWO)
    pids = descendants(process.pid)
    (forkserver,) = [pid for pid in pids if len(descendants(pid)) >= 2]
    os.kill(forkserver, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    words = "dgt: error: the process that forks ranks was ended (SIGKILL), and all ranks with it; out of memory?"
    assert told(stderr) == [words]
    all_end(pids)
    assert not left(temporary)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


MOMENTS: dict[str, Callable[[Path], object]] = {
    "the forkserver": lambda folder: list(folder.glob("pymp-*")),
    "the meeting": lambda folder: list(folder.glob("dgt-*")),
    "the ranks": lambda folder: list(folder.glob("dgt-*/pid-*")),
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("the forkserver", signal.SIGTERM),
        ("the forkserver", signal.SIGKILL),
        ("the meeting", signal.SIGINT),
        ("the ranks", signal.SIGTERM),
        ("the ranks", signal.SIGKILL),
        ("the forkserver", signal.SIGHUP),
    ],
)
def test_an_early_end_leaves_no_folders(moment: str, number: signal.Signals, tmp_path: Path, temporary: Path) -> None:
    """A terminal that closes signals the forkserver as well, which tidied up: its folder stayed."""
    process = subprocess.Popen(
        [*DGT, "train", TWO, "iterations=10000000"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    until(lambda: MOMENTS[moment](temporary))
    if number == signal.SIGKILL:  # a moment earlier nobody would be left who knows of the folder
        until(lambda: any("forkserver import main" in command_of(pid) for pid in descendants(process.pid)))
    pids = descendants(process.pid)
    if number == signal.SIGHUP:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    all_end(pids)
    until(lambda: not left(temporary), lambda: left(temporary), seconds=20)


def test_nobody_else_is_signalled_who_has_the_number_of_a_lost_rank(tmp_path: Path) -> None:
    """A SIGTERM that was passed on ended whoever had got it meanwhile."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        until(lambda: Path(f"/proc/{stranger.pid}/stat").exists())
        (tmp_path / "pid-0").write_text(f"{stranger.pid} 1")  # a rank that started just after the machine
        ranks = Ranks(tmp_path, 1)
        assert ranks.all_registered
        ranks.send(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(timeout=0.3)
        started = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19]
        itself = Process(stranger.pid, started)
        assert itself.send(signal.SIGKILL)
        itself.wait()
        stranger.wait(timeout=10)
        assert not itself.send(signal.SIGKILL)


def test_a_rank_that_does_not_listen_is_not_waited_for(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    for rank in (0, 1):
        assert not ranks.all_wrote(STOPS_ON_SIGNALS)
        Process(10 + rank, "1").write(tmp_path / f"pid-{rank}")
    (tmp_path / f"{STOPS_ON_SIGNALS}-10").touch()
    assert not ranks.all_wrote(STOPS_ON_SIGNALS)
    ranks.mark_lost(1)
    assert ranks.all_wrote(STOPS_ON_SIGNALS), "a lost one has nothing to say"


def test_words_after_training_do_not_say_that_there_was_nothing_to_save() -> None:
    program = (
        "import signal, time\nfrom dgt.processes import output, signals\noutput.log_to_stderr(True)\n"
        "signals.exit_on_signals(lambda: None)\n"
        "signals.training_began()\nsignal.raise_signal(signal.SIGTERM)\ntime.sleep(20)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert re.fullmatch(r"dgt: ended by SIGTERM \d+ s after the start\n", done.stderr)
    assert signals.PASSED_ON[:2] == signals.ENDING
