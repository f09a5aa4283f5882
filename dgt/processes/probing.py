"""Check that hosts can connect to each other's ephemeral ports, before gloo tries it for five minutes.

gloo and nccl listen on ports that the system chooses and connect every rank to every other. A firewall that passes only
the rendezvous port drops those packets. So the first rank of every host listens on such a port, writes its address into
the store and connects to those of the next hosts; a failure is raised on all ranks, with host, port and reason.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dgt.errors import PeerError
from dgt.processes.placement import Placement

if TYPE_CHECKING:
    import torch.distributed as dist

CONNECT_SECONDS = 5.0
TRIES = 2
MOST_HOSTS = 4  # to which each host connects
ADDRESS_OF = 0xC0206921 if sys.platform == "darwin" else 0x8915  # SIOCGIFADDR
NOT_LISTENING = "-"
LOOPBACK = ("lo", "lo0")  # Linux, macOS
DOWN = "the loopback interface is down, over which ranks on one host meet: ip link set lo up"


def addresses() -> Iterator[tuple[str, str]]:
    """(interface, IPv4 address) of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                raw = fcntl.ioctl(probe, ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
                yield name, socket.inet_ntoa(raw[20:24])


def loopback() -> str:
    """Name of the loopback interface."""
    return next((name for _, name in socket.if_nameindex() if name in LOOPBACK), LOOPBACK[0])


def loopback_is_up() -> bool:
    """Whether 127.0.0.1 has a route; connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))
        except OSError as error:
            return error.errno not in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)
    return True


def own_address(interface: str | None) -> str | None:
    """The address on which gloo listens: of the interface, or of the host name; None if that cannot be known."""
    if interface:
        return dict(addresses()).get(interface.split(",")[0])
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if found.startswith("127.") else found


def raise_if_ports_closed(store: dist.Store, where: Placement, interface: str | None) -> None:
    """All ranks call it; if a host cannot connect to another, all of them raise the same `PeerError`."""
    if where.local_rank:
        store.set(f"probe/{where.rank}", NOT_LISTENING)
        verdict = store.get("probe/verdict").decode()
    else:
        verdict = _probe_as_first_of_host(store, where, own_address(interface))
    if verdict:
        raise PeerError(verdict)


def _probe_as_first_of_host(store: dist.Store, where: Placement, address: str | None) -> str:
    """Listen, publish the address, connect to the next hosts; rank 0 publishes the first error of all, or nothing."""
    listener = _listener(address)
    try:
        own = NOT_LISTENING if listener is None else "{}:{}:{}".format(*listener.getsockname(), socket.gethostname())
        store.set(f"probe/{where.rank}", own)
        published = [value.decode() for value in store.multi_get([f"probe/{rank}" for rank in range(where.size)])]
        hosts = [rank for rank, value in enumerate(published) if value != NOT_LISTENING]
        after = [*(rank for rank in hosts if rank > where.rank), *(rank for rank in hosts if rank < where.rank)]
        troubles = (
            (_connection_error(where.rank, published[rank]) for rank in after[:MOST_HOSTS])
            if listener is not None
            else ()
        )
        store.set(f"probed/{where.rank}", next((words for words in troubles if words), ""))
        if where.rank == 0:
            found = store.multi_get([f"probed/{rank}" for rank in hosts]) if hosts else []
            store.set("probe/verdict", next((words for words in found if words), b"").decode())
        return store.get("probe/verdict").decode()  # blocks: the listener must stay open until all hosts have connected
    finally:
        if listener is not None:
            listener.close()


def _listener(address: str | None) -> socket.socket | None:
    if address is None:
        return None
    try:
        return socket.create_server((address, 0), backlog=1024)
    except OSError:
        return None


def _connection_error(rank: int, place: str) -> str:
    """Connect to 'address:port:host'; the error message, or empty if it works."""
    address, port, host = place.split(":")
    for _ in range(TRIES):
        try:
            socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS).close()
            return ""
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
    return closed(rank, f"{host} ({address})", port, why)


def closed(rank: int, host: str, port: str, why: str) -> str:
    """The error message for a port that cannot be reached."""
    return (
        f"rank {rank} on {socket.gethostname()} does not reach port {port} of {host}: {why}; is there a firewall "
        f"between the hosts? ranks listen on ports {_range()} (sysctl net.ipv4.ip_local_port_range), which must be "
        "open between them: docs/clusters.md, Ports"
    )


def _range() -> str:
    try:
        return "-".join(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except OSError:
        return "that the system chooses"
