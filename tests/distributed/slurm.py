"""A throw-away Slurm cluster on this machine, as root and without systemd: real munged, slurmctld and slurmd.

Several slurmd run on one host, each with a name and a port of its own. Everything lives below one directory.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.distributed.processes import until

CONF = """\
ClusterName=throwaway
SlurmctldHost=localhost
SlurmctldPort={port}
FirstJobId={port}
AuthInfo=socket={top}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool-%n
SlurmctldPidFile={top}/slurmctld.pid
SlurmdPidFile={top}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2
KillWait=30
SlurmdTimeout=10
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9 PreemptMode=off State=UP
"""


class SlurmCluster:
    """with SlurmCluster(nodes=2) as cluster: cluster.run("srun", "-N2", "hostname")"""

    def __init__(self, nodes: int = 4) -> None:
        self.nodes, self.port = nodes, free_ports(nodes + 1)
        # munged refuses a socket below a private directory, which pytest's tmp_path is
        self.top = Path(tempfile.mkdtemp(prefix="dgt-slurm-"))
        self.top.chmod(0o755)
        self.environment = dict(os.environ, SLURM_CONF=str(self.top / "slurm.conf"), GLOO_SOCKET_IFNAME="lo")
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        top, port = self.top, self.port
        (top / "state").mkdir()
        text = CONF.format(top=top, port=port, nodes=self.nodes, first=port + 1, last=port + self.nodes)
        (top / "slurm.conf").write_text(text)
        # slurmd insists on a cgroup plugin; v1 with linuxproc tracking never touches the cgroup file system
        (top / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = top / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {
            "key-file": key,
            "socket": top / "munge.sock",
            "pid-file": top / "munged.pid",
            "seed-file": top / "seed",
        }
        self._daemon(
            "munged",
            "--foreground",
            f"--log-file={top}/munged.log",
            *(f"--{k}={v}" for k, v in files.items()),
        )
        until(lambda: (top / "munge.sock").exists(), self._logs)
        self._daemon("slurmctld", "-D", "-i")
        for number in range(1, self.nodes + 1):
            (top / f"spool-n{number}").mkdir()
            self._daemon("slurmd", "-D", "-N", f"n{number}")
        until(
            lambda: self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split().count("idle") == self.nodes,
            self._logs,
        )

    def _daemon(self, *arguments: str) -> None:
        log = (self.top / f"{arguments[0]}-{len(self._daemons)}.log").open("w")
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self._daemons.append(
            subprocess.Popen(
                arguments,
                env={**self.environment, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-500:] for path in self.top.glob("*.log"))

    def run(self, *arguments: str, timeout: float = 60, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(arguments, env=self.environment, capture_output=True, text=True, timeout=timeout, cwd=cwd)

    def submit(self, *arguments: str, cwd: Path, **variables: str) -> str:
        """Hand a batch file in; returns the job's number."""
        said = subprocess.run(
            ["sbatch", "--parsable", *arguments],
            env={**self.environment, **variables},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    def wait_for_end(self, job: str) -> list[tuple[str, int]]:
        """Until the job has ended, and every task of an array; returns how, and how often it was queued again."""

        def ends() -> list[tuple[str, int]]:
            said = self.run("scontrol", "-o", "show", "job", job).stdout
            return [(state, int(count)) for state, count in re.findall(r"JobState=(\w+) .*?Restarts=(\d+)", said)]

        def over() -> bool:
            return bool(ends()) and all(state in ("COMPLETED", "FAILED", "CANCELLED") for state, _ in ends())

        until(over, lambda: f"job {job}: {ends()}\n{self._logs()}", 150)
        return ends()

    def __exit__(self, *_: object) -> None:
        if len(self._daemons) > 1:
            self.run("scancel", "-f", "-u", "root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        shutil.rmtree(self.top, ignore_errors=True)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses: another cluster may be running on this machine."""
    while True:
        first = random.SystemRandom().randrange(10_000, 30_000)
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("", port)))
            return first
        except OSError:
            continue
