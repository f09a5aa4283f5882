"""A switch with a delay: passes every frame on some milliseconds after it came, in user space, without kernel modules.

    python relay.py DELAY_MS SWITCH_PID HOST_PID...

The pids are those of processes in the namespaces of the switch, which has the devices port0, port1, ..., and of the
hosts, whose eth0 is the other end. `hosts.py` starts it; it needs nothing but Python's own library.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
# checksums and segmentation are switched off: frames arrive here complete, as they would on a cable
SWITCHES_OFF = (0x15, 0x17, 0x1F, 0x24, 0x2C)
PACKET_OUTGOING, ALL_PROTOCOLS = 4, 3
MOST_FRAMES = 256  # that are read from one port before the others
CLONE_NEWNET = 0x40000000


def enter_network(pid: int) -> None:
    """This thread, and what it opens, belongs to that process's network namespace from here on."""
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def send_plain_frames(device: str) -> None:
    """Have the kernel cut and checksum packets itself."""
    with socket.socket() as any_socket:
        for switch in SWITCHES_OFF:
            off = ctypes.create_string_buffer(struct.pack("II", switch, 0))
            with contextlib.suppress(OSError):  # not every kernel knows every switch
                fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", device.encode(), ctypes.addressof(off)))


def open_port(number: int) -> socket.socket:
    """A raw socket on port `number`, that receives all frames."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.bind((f"port{number}", ALL_PROTOCOLS))
    for size in (socket.SO_RCVBUF, 33):  # 33: SO_RCVBUFFORCE, beyond the system's limit
        port.setsockopt(socket.SOL_SOCKET, size, 1 << 25)
    port.setblocking(False)
    return port


def relay(ports: list[socket.socket], delay: float) -> None:
    """For ever: a frame leaves on the port where its receiver was heard, on all others if it never was."""
    waiting: collections.deque[tuple[float, list[socket.socket], bytes]] = collections.deque()
    port_of: dict[bytes, socket.socket] = {}
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, [], [], pause)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(MOST_FRAMES):
                    frame, origin = port.recvfrom(1 << 16)
                    if origin[2] != PACKET_OUTGOING:
                        port_of[frame[6:12]] = port
                        known = port_of.get(frame[:6])
                        to = [known] if known is not None else [other for other in ports if other is not port]
                        waiting.append((time.monotonic() + delay, to, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, to, frame = waiting.popleft()
            for other in to:
                with contextlib.suppress(OSError):  # full: lost, as on a real switch
                    other.send(frame)


def main(delay_ms: str, switch: str, *hosts: str) -> None:
    for host in hosts:
        enter_network(int(host))
        send_plain_frames("eth0")
    enter_network(int(switch))
    ports = [open_port(number) for number in range(len(hosts))]
    print("ready", flush=True)
    relay(ports, float(delay_ms) / 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
