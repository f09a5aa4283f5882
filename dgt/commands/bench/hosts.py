"""Hosts on one machine, for `dgt bench preset=links` and tests: network namespaces with links of a rate and a delay.

    with emulated_hosts(4, rate="100mbit", delay_ms=5) as hosts:
        enter(hosts.pids[2])         # this process is on host 2 from here on: its eth0, its /dev/shm

A host is two namespaces, of the network and of mounts, that live as long as a sleeping process in them, which the
kernel kills with the process that made it: whatever happens, nothing is left. The hosts hang on a switch in a
namespace of its own; nothing is added to the machine's network. A link's rate holds each way (tbf, which is no
delay); with a delay `relay.py` is the switch, else the kernel is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dgt.commands.bench.relay import enter_network
from dgt.errors import ConfigError

MTU = 16_000  # bytes: large frames, few for the relay to carry
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
HOST = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec sleep infinity"
SWITCH = "echo ready && exec sleep infinity"
SECONDS = 30  # for a command to end


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts that are there."""

    pids: list[int]
    """Of a process on each."""
    relay: int | None
    """Of the process that is the switch; None where the kernel is."""

    @staticmethod
    def address(number: int) -> str:
        """Of the host's eth0."""
        return f"10.78.0.{number + 1}"

    def line(self, number: int, *line: str) -> list[str]:
        """The same command on a host."""
        return ["nsenter", f"--net=/proc/{self.pids[number]}/ns/net", f"--mount=/proc/{self.pids[number]}/ns/mnt",
                "--wd=.", *line]  # fmt: skip


def refuse_without_rights() -> None:
    """`ConfigError` where no hosts can be made."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if os.geteuid() != 0:
        raise ConfigError("preset=links: network namespaces need root: run it with sudo, or in a container of yours")
    if missing:
        raise ConfigError(f"preset=links: install {' and '.join(missing)} (apt-get install {' '.join(missing)})")
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, timeout=SECONDS, check=False)
    if tried.returncode:
        why = tried.stderr.decode(errors="replace").strip() or "unshare failed"
        raise ConfigError(f"preset=links: this machine does not let root make network namespaces ({why})")


@contextlib.contextmanager
def emulated_hosts(number: int, rate: str, delay_ms: float) -> Iterator[Hosts]:
    """So many hosts on one switch; gone after the block."""
    refuse_without_rights()
    with contextlib.ExitStack() as ends:
        switch = ends.enter_context(_started("unshare", "--net", "sh", "-c", SWITCH))
        pids = [
            ends.enter_context(_started("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", HOST))
            for _ in range(number)
        ]
        _connect(switch, pids, rate, with_bridge=not delay_ms)
        relay = None
        if delay_ms:
            script = str(Path(__file__).with_name("relay.py"))
            relay = ends.enter_context(_started(sys.executable, script, str(delay_ms), str(switch), *map(str, pids)))
        yield Hosts(pids, relay)


@contextlib.contextmanager
def _started(*line: str) -> Iterator[int]:
    """The pid of a process that says it is ready, and ends with this one or with the block."""
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *line], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{' '.join(line[:3])} ended with {process.wait(SECONDS)}")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _connect(switch: int, pids: Sequence[int], rate: str, with_bridge: bool) -> None:
    """A pair of devices per host, eth0 there and a port of the switch here, each sending at most at `rate`."""
    bridge = ["link add bridge0 type bridge", f"link set bridge0 mtu {MTU} up"] if with_bridge else []
    for number, pid in enumerate(pids):
        mac = f"02:00:00:00:00:{number + 1:02x}"
        bridge.append(f"link add port{number} mtu {MTU} type veth peer name eth0 mtu {MTU} address {mac} netns {pid}")
        bridge.append(f"link set port{number} {'master bridge0 ' if with_bridge else ''}up")
        _batch(switch, "ip", bridge)
        _batch(pid, "ip", ["link set eth0 up", f"addr add {Hosts.address(number)}/24 dev eth0"])
        bridge = []
    shape = f"root tbf rate {rate} burst 128kb latency 200ms"
    try:
        _batch(switch, "tc", [f"qdisc add dev port{number} {shape}" for number in range(len(pids))])
        for pid in pids:
            _batch(pid, "tc", [f"qdisc add dev eth0 {shape}"])
    except RuntimeError as error:
        raise ConfigError(f"rate={rate}: tc takes 100mbit, 1gbit and the like ({error})") from None


def _batch(pid: int, tool: str, lines: Sequence[str]) -> None:
    """Run these commands of ip or tc in that process's network namespace."""
    line = ["nsenter", f"--net=/proc/{pid}/ns/net", tool, "-batch", "-"]
    done = subprocess.run(line, input="\n".join(lines), capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool}: {' '.join(done.stderr.split())}")


def enter(pid: int) -> None:
    """This thread, and those that it starts, are on that host from here on: its network and its mounts."""
    library, here = ctypes.CDLL(None, use_errno=True), Path.cwd()
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    try:
        enter_network(pid)
        # the thread's own current directory first: the kernel refuses to move one that is shared with other threads
        if library.unshare(CLONE_FS) or library.setns(mounts, CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(mounts)
    os.chdir(here)
