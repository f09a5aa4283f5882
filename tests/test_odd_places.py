"""Names, limits and systems that are not the usual ones: one line says what is wrong, or the run goes on without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dgt
from dgt.errors import ConfigError
from dgt.exchange import fences, shared
from dgt.processes import limits, probing
from dgt.processes.node import Node
from dgt.runs.claiming import claim
from tests.distributed.ranks import DGT, command, run_ranks

pytestmark = pytest.mark.timeout(120)
TOP = str(Path(dgt.__file__).parents[1])
TWO = ["train", "weights=[1,2]", "iterations=3"]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\rb", "a\udcffb"])
def test_a_run_directory_with_control_characters_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    """Rank 0 told the others its directory and the time, a line each: a line break in it was a traceback per rank."""
    with pytest.raises(ConfigError, match="choose a name without control characters") as refused:
        claim(str(tmp_path / name), "train")
    assert str(refused.value).isprintable()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "files", "words"),
    [
        (["report", "x" * 300], 1024, "xxx...: File name too long; names have at most 255 characters"),
        (TWO, 20, "2 ranks need 26 open files, 20 are allowed: ulimit -n 47"),
    ],
    ids=["long name", "few files"],
)
def test_what_the_system_does_not_allow_is_one_line(line: list[str], files: int, words: str, tmp_path: Path) -> None:
    ended = command(["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *DGT, *line], tmp_path, PYTHONPATH=TOP)
    assert ended.returncode in (1, 2)
    assert ended.stderr.startswith("dgt: error: ")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


def test_a_current_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    """One of torch's libraries ended the process with a fatal error of its own."""
    (tmp_path / "gone").mkdir()
    for line in (TWO, ["gaps"]):
        remove = 'mkdir -p "$0" && cd "$0" && rmdir "$0" && exec "$@"'
        ended = command(["sh", "-c", remove, str(tmp_path / "gone"), *DGT, *line], tmp_path, PYTHONPATH=TOP)
        words = "dgt: error: the current directory was removed; cd to another one\n"
        assert (ended.returncode, ended.stderr) == (2, words)


class OpenFiles:
    def run(self, node: Node) -> int:
        network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0] * node.size, strategy="II")
        layer = torch.nn.Linear(200, 200)
        optimizer = dgt.GradientTracking(layer.parameters(), lr=0.01, network=network)
        layer(torch.ones(200)).sum().backward()
        optimizer.step()
        return len(os.listdir("/dev/fd"))


def test_ranks_open_as_many_files_as_the_doctor_says() -> None:
    most = max(run_ranks(OpenFiles(), 4).values())
    assert most + limits.SPARE // 2 <= limits.wanted(4, 3) <= most + 2 * limits.SPARE


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a network of its own needs root")
def test_a_loopback_interface_that_is_down_is_named(tmp_path: Path) -> None:
    """It asked whether GLOO_SOCKET_IFNAME was the network between hosts."""
    ended = command(["unshare", "--net", *DGT, *TWO], tmp_path, PYTHONPATH=TOP)
    assert ended.returncode == 1
    assert ended.stderr == f"dgt: error: {probing.DOWN}\n"
    assert probing.loopback_is_up()


@pytest.mark.parametrize("module", ["fcntl", "resource"])
def test_another_system_is_told_which_ones_are_supported(module: str) -> None:
    hidden = f"import sys; sys.modules[{module!r}] = None; sys.platform = 'win32'\n"
    words = "dgt runs on Linux and macOS, not on win32; on Windows, install it inside WSL 2"
    for program, said in (
        ("import dgt", f"ImportError: {words}\n"),
        ("sys.argv = ['dgt', 'gaps']\nimport dgt.__main__", f"dgt: error: {words}\n"),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", hidden + program], capture_output=True, text=True, timeout=60, cwd=TOP
        )
        assert ended.returncode != 0
        assert ended.stderr.endswith(said)
    assert ended.stderr == said, "the command says nothing else"


# what macOS does not have; torch was built for Linux, and is imported first
MACOS = """
import os, platform, select, signal, sys, multiprocessing.forkserver, multiprocessing.resource_tracker, torch
import torch.distributed.elastic.multiprocessing
for name in ("pidfd_open", "memfd_create", "eventfd", "posix_fallocate", "sched_getaffinity", "sched_setscheduler",
             "sched_param", "SCHED_BATCH", "sched_setaffinity"):
    if hasattr(os, name):
        delattr(os, name)
del signal.pidfd_send_signal, select.epoll
sys.platform = "darwin"
platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"

def hide(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))

sys.addaudithook(hide)
"""


def test_without_what_linux_alone_has_ranks_train_over_messages(tmp_path: Path) -> None:
    """As on a Mac: no pidfd, no memfd, no futex that is known, no scheduler calls, no /proc and no /dev/shm."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MACOS)
    mac = {"PYTHONPATH": f"{tmp_path / 'site'}:{TOP}", "GLOO_SOCKET_IFNAME": "lo"}
    line = ["weights=[1,2,3]", "topology=ring", "iterations=20", "checkpoint.every=10"]
    program = "from dgt.__main__ import main; main(); from dgt.exchange import shared; assert not shared.available()"
    ended = command([sys.executable, "-c", program, "train", *line, "run_dir=mac"], tmp_path, **mac)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "mac" / "summary.json").exists()


class Fenced:
    """The same steps with and without fences."""

    def run(self, node: Node) -> list[torch.Tensor]:
        found = []
        calls = 0
        fence = fences.fence

        def counted() -> None:
            nonlocal calls
            calls += 1
            fence()

        fences.fence = counted
        for fences.NEEDED in (False, True):
            network = dgt.Network(node, dgt.graphs.complete(node.size), [1.0, 2.0, 3.0], strategy="II")
            torch.manual_seed(node.rank)
            layer = torch.nn.Linear(20, 20)
            optimizer = dgt.GradientTracking(layer.parameters(), lr=0.01, network=network)
            for _ in range(200):
                optimizer.zero_grad()
                layer(torch.ones(20)).square().sum().backward()
                optimizer.step()
            found.append(layer.weight.detach().clone())
            found.append(torch.tensor(calls))
        return found


@pytest.mark.skipif(not shared.available(), reason="shared memory boards are for Linux")
def test_fences_change_no_number_and_are_used_where_they_are_needed_only() -> None:
    """What ARM needs, on whatever machine this is: that it orders memory there cannot be shown here."""
    for plain, none, fenced, some in run_ranks(Fenced(), 3).values():
        assert torch.equal(plain, fenced)
        assert int(none) == 0
        assert int(some) >= 200 * 3
