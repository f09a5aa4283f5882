"""Whether ranks of different hosts reach each other's ports: tried once, before gloo tries it for five minutes.

gloo listens on a port that the system chooses, as nccl does, and connects every rank to every other. A firewall that
lets only the port of the rendezvous through drops these packets silently. So the first rank of every host listens on
such a port as well, says where in the store, and tries those of the hosts next to it: one line says what is closed.
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
MOST_HOSTS = 4  # that each host tries
ADDRESS_OF = 0xC0206921 if sys.platform == "darwin" else 0x8915  # SIOCGIFADDR
NOWHERE = "-"
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
    """What this system calls the interface."""
    return next((name for _, name in socket.if_nameindex() if name in LOOPBACK), LOOPBACK[0])


def loopback_is_up() -> bool:
    """Nothing is sent: the system only looks for a way to this address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))
        except OSError as error:
            return error.errno not in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)
    return True


def own_address(interface: str | None) -> str | None:
    """Where gloo listens: at the interface's address, or at what the host's name resolves to; None: not known."""
    if interface:
        return dict(addresses()).get(interface.split(",")[0])
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if found.startswith("127.") else found


def refuse_closed_ports(store: dist.Store, where: Placement, interface: str | None) -> None:
    """All ranks call it; where a host does not reach another, all of them raise the same `PeerError`."""
    if where.local_rank:
        store.set(f"probe/{where.rank}", NOWHERE)
        verdict = store.get("probe/verdict").decode()
    else:
        verdict = _as_first_of_host(store, where, own_address(interface))
    if verdict:
        raise PeerError(verdict)


def _as_first_of_host(store: dist.Store, where: Placement, address: str | None) -> str:
    listener = _listener(address)
    try:
        own = NOWHERE if listener is None else "{}:{}:{}".format(*listener.getsockname(), socket.gethostname())
        store.set(f"probe/{where.rank}", own)
        told = [word.decode() for word in store.multi_get([f"probe/{rank}" for rank in range(where.size)])]
        hosts = [rank for rank, word in enumerate(told) if word != NOWHERE]
        after = [*(rank for rank in hosts if rank > where.rank), *(rank for rank in hosts if rank < where.rank)]
        troubles = (_trouble(where.rank, told[rank]) for rank in after[:MOST_HOSTS]) if listener is not None else ()
        store.set(f"probed/{where.rank}", next((words for words in troubles if words), ""))
        if where.rank == 0:
            found = store.multi_get([f"probed/{rank}" for rank in hosts]) if hosts else []
            store.set("probe/verdict", next((words for words in found if words), b"").decode())
        return store.get("probe/verdict").decode()  # until then the others may be about to connect
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


def _trouble(rank: int, place: str) -> str:
    address, port, host = place.split(":")
    for _ in range(TRIES):
        try:
            socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS).close()
            return ""
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
    return closed(rank, f"{host} ({address})", port, why)


def closed(rank: int, host: str, port: str, why: str) -> str:
    """What to tell whoever may open ports."""
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
