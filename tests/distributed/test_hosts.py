"""Two hosts on one machine: network namespaces with memory, names and a link of their own, which can be cut."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dgt
from dgt.commands.bench.hosts import Hosts, emulated_hosts
from tests.distributed.processes import commands_with, until
from tests.distributed.ranks import DGT, TORCHRUN, command
from tests.distributed.runs import NOISY, lines_of, metrics
from tests.pages import LINES

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]

if os.geteuid() != 0 or not shutil.which("ip"):
    pytest.skip("network namespaces need root and iproute2 (launch/test.sh installs it)", allow_module_level=True)

TOP = Path(dgt.__file__).parents[1]
PRIVATE = 'mount --bind "$1" /etc/hosts; hostname "$2"; shift 2; exec "$@"'
WEIGHTS = "weights=[1,2,3,4,5,6,7,8]"
# two rings, of the even and of the odd nodes, and two edges between them
EDGES = "0 2\n2 4\n4 6\n6 0\n1 3\n3 5\n5 7\n7 1\n0 1\n4 5\n"


class TwoHosts:
    """host1 and host2, and the process that is the link between them."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.hosts_file = folder / "hosts"
        lines = [f"{hosts.address(number)} host{number + 1}" for number in range(2)]
        self.hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def start(self, cwd: Path, *line: str, **variables: str) -> list[subprocess.Popen[str]]:
        """The same line on both, without what dgt's own launcher has set in this process."""
        others = ("SLURM_", "TORCHELASTIC_", "TORCH_", "GLOO_")
        plain = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        environment = {**plain, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1", **variables}
        return [
            subprocess.Popen(
                self.hosts.line(number, "unshare", "--mount", "--uts", "sh", "-c", PRIVATE, "sh",
                                str(self.hosts_file), f"host{number + 1}", *line),
                cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for number in range(2)
        ]  # fmt: skip

    def cut(self) -> None:
        os.kill(self._relay(), signal.SIGSTOP)

    def mend(self) -> None:
        os.kill(self._relay(), signal.SIGCONT)

    def _relay(self) -> int:
        assert self.hosts.relay is not None
        return self.hosts.relay


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with emulated_hosts(2, "1gbit", 1) as hosts:
        yield TwoHosts(hosts, tmp_path_factory.mktemp("hosts"))


def torchrun(port: int, *arguments: str) -> list[str]:
    """The line of docs/clusters.md, with half as many ranks."""
    (line,) = [line for line in LINES if line.startswith("torchrun --nnodes") and "dgt train weights" in line]
    words = line.replace("--nproc-per-node 8", "--nproc-per-node 4").replace("29500", str(port)).split()
    return [*TORCHRUN, *words[1 : words.index("train") + 1], *arguments]


def wait_for_lines(path: Path, lines: int, processes: list[subprocess.Popen[str]]) -> None:
    until(lambda: lines_of(path) >= lines or any(process.poll() is not None for process in processes))
    ended = [process.communicate()[1] for process in processes if process.poll() is not None]
    assert not ended, ended


def settings(folder: Path, *more: str) -> list[str]:
    (folder / "edges.txt").write_text(EDGES)
    noisy = [word for word in NOISY if not word.startswith(("weights", "topology"))]
    return [*noisy, WEIGHTS, "topology=file", f"topology.path={folder / 'edges.txt'}", *more]


def test_two_hosts_and_a_link_that_comes_back_give_the_metrics_of_one_host(two_hosts: TwoHosts, tmp_path: Path) -> None:
    own = settings(tmp_path, "problem.pause=0.05", "placement=graph")
    processes = two_hosts.start(tmp_path, *torchrun(29500, *own, f"run_dir={tmp_path / 'two'}"))
    log = tmp_path / "two" / "metrics.jsonl"
    wait_for_lines(log, 3, processes)
    two_hosts.cut()
    time.sleep(3)
    still = lines_of(log)
    two_hosts.mend()
    one = command([*DGT, "train", *settings(tmp_path), "run_dir=one"], tmp_path, PYTHONPATH=str(TOP))
    assert one.returncode == 0, one.stderr
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert still < 9, "the link was down before the end"
    assert metrics(tmp_path / "two") == metrics(tmp_path / "one"), "bit by bit"
    words = "placement=graph: 2 of 10 edges run between 2 hosts, "
    assert "".join(said).count(words) == 1, said


def test_a_link_that_is_cut_for_good_is_named_on_both_sides_and_ends_the_run(
    two_hosts: TwoHosts, tmp_path: Path
) -> None:
    timeout = 6
    own = settings(tmp_path, "problem.pause=0.05", f"timeout={timeout}", f"run_dir={tmp_path / 'r'}")
    processes = two_hosts.start(tmp_path, *torchrun(29501, *own))
    wait_for_lines(tmp_path / "r" / "metrics.jsonl", 3, processes)
    two_hosts.cut()
    since = time.monotonic()
    try:
        said = [process.communicate(timeout=60)[1] for process in processes]
        seconds = time.monotonic() - since
    finally:
        two_hosts.mend()
        for process in processes:
            process.kill()
            process.wait()
    assert all(process.returncode for process in processes)
    # the ranks' own timeout, then torchrun, which cannot reach its store
    assert seconds < 2 * timeout + 15, seconds
    for words in said:
        assert re.search(rf"dgt: error: node \d: neighbour \d did not answer within {timeout} s", words), words
    until(lambda: not commands_with(str(tmp_path)), lambda: commands_with(str(tmp_path)), 30)
