#!/usr/bin/env python3
"""`dgt bench` over a slow link: two hosts emulated on one machine, with the bandwidth and delay you choose.

    sudo python launch/slow_links.py rate=200mbit delay=5 -- preset=sleep batch=40 topology=ring

Each host is a network namespace with its own memory for sharing; what follows `--` goes to dgt bench, which runs on
`ranks` ranks per host. The link is a process that passes packets on after `delay` milliseconds: no kernel module.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

SETTINGS = {"rate": "200mbit", "delay": "5", "ranks": "2"}
HOSTS = ("10.78.0.1", "10.78.0.2")
FRAME = 16_000  # bytes: large frames, few packets for the relay to carry
SIOCETHTOOL, SWITCHES_OFF = 0x8946, (0x15, 0x17, 0x1F, 0x24, 0x2C)  # checksums and segmentation: frames as sent
PACKET_OUTGOING = 4


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["relay"]:
        relay(float(arguments[1]) / 1000)
        return 0
    if arguments[:1] == ["plain-frames"]:
        send_plain_frames("eth0")
        return 0
    own, _, bench = " ".join(arguments).partition("--")
    settings = dict(SETTINGS)
    for word in own.split():
        key, _, value = word.partition("=")
        if key not in settings or not value:
            return complain(f"{word}: no such setting; {', '.join(f'{name}=...' for name in settings)}")
        settings[key] = value
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return complain("needs root, and ip and tc (apt-get install iproute2)")
    with hosts(settings["rate"], settings["delay"]) as names:
        return run(names, settings["ranks"], bench.split())


def complain(words: str) -> int:
    print(f"slow_links: {words}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def hosts(rate: str, delay: str) -> Iterator[list[str]]:
    """Two namespaces, and a third between them where the relay runs; nothing is left of them afterwards."""
    link, *names = (f"dgt-{os.getpid()}-{word}" for word in ("link", "a", "b"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in (link, *names):
            call("ip", "netns", "add", name)
            call("ip", "-n", name, "link", "set", "lo", "up")
        for number, (name, address) in enumerate(zip(names, HOSTS, strict=True)):
            call("ip", "-n", link, "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", name)
            for where, device in ((link, f"port{number}"), (name, "eth0")):
                call("ip", "-n", where, "link", "set", device, "mtu", str(FRAME), "up")
            call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            call("ip", "netns", "exec", name, sys.executable, __file__, "plain-frames")
            shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "200ms"]
            call("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
        started.append(subprocess.Popen(["ip", "netns", "exec", link, sys.executable, __file__, "relay", delay]))
        yield names
    finally:
        for process in started:
            process.kill()
            process.wait()
        for name in (link, *names):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def call(*words: str) -> None:
    subprocess.run(words, check=True, timeout=30)


def run(names: list[str], ranks: str, bench: list[str]) -> int:
    """The same torchrun line on both hosts; the first one's output is shown."""
    processes = []
    for number, name in enumerate(names):
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}",
            f"--nproc-per-node={ranks}", f"--master-addr={HOSTS[0]}", "--master-port=29500", "-m", "dgt", "bench",
        ]  # fmt: skip
        # a host's memory is its own: neighbours elsewhere are reached by messages, those here through memory
        private = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; exec "$@"', "sh"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        line = ["ip", "netns", "exec", name, *private, *torchrun, *bench]
        processes.append(subprocess.Popen(line, env=environment))
    try:
        return max(process.wait() for process in processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def relay(delay: float) -> None:
    """Pass every frame from one port to the other, `delay` seconds after it came."""
    ports = []
    for name in ("port0", "port1"):
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        port.bind((name, 3))
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        port.setblocking(False)
        ports.append(port)
    waiting: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, [], [], pause)[0]:
            other = ports[1 - ports.index(port)]
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, origin = port.recvfrom(1 << 16)
                    if origin[2] != PACKET_OUTGOING:
                        waiting.append((time.monotonic() + delay, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, other, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # full: lost, as on a real link
                other.send(frame)


def send_plain_frames(device: str) -> None:
    """Have the kernel cut and checksum packets itself; the relay passes on what it sees."""
    with socket.socket() as any_socket:
        for switch in SWITCHES_OFF:
            off = ctypes.create_string_buffer(struct.pack("II", switch, 0))
            with contextlib.suppress(OSError):  # not every kernel knows every switch
                fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", device.encode(), ctypes.addressof(off)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
