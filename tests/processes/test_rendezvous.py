"""Where ranks find each other: fresh after every restart, on loopback only."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from dgt.errors import ConfigError
from dgt.processes import rendezvous as meeting
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

PATIENCE = timedelta(seconds=20)


def test_on_one_host_the_store_listens_on_loopback_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = meeting.tcp_store("127.0.0.1", port, 0, 1, PATIENCE)
    store.set("a", "b")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    listening = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == ["0100007F"], "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_named(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on {host} is taken.*set MASTER_PORT to another"):
            meeting.tcp_store(host, port, 0, 2, PATIENCE)


def test_a_host_that_is_not_there_is_named_at_once_and_one_that_is_silent_in_the_end() -> None:
    with pytest.raises(ConfigError, match=r"MASTER_ADDR=no-such-host\.invalid: no such host"):
        meeting.tcp_store("no-such-host.invalid", 29500, 1, 2, PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(RuntimeError) as caught:
        meeting.tcp_store("127.0.0.1", port, 1, 2, timedelta(seconds=1))
    words = str(meeting.rendezvous_error(1, f" at 127.0.0.1:{port}", caught.value))
    assert words.startswith(f"rank 1: could not meet the other ranks at 127.0.0.1:{port} (")
    assert "is that host reachable" in words


def rooms(store: dist.Store, late: int | None = None) -> dict[int, dist.Store]:
    """Where every rank of one start is led; one of them may come late."""
    found: dict[int, dist.Store] = {}

    def enter(rank: int) -> None:
        if rank == late:
            time.sleep(0.3)
        found[rank] = meeting.new_prefix(store, rank, 4, PATIENCE)
        found[rank].set(f"seen/{rank}", "yes")

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_every_start_has_a_room_of_its_own_even_after_half_a_start() -> None:
    store = dist.HashStore()
    first = rooms(store)
    first[0].set("address", "of a rank that will be dead")
    # a start in which rank 2 never came: its ranks would wait for ever, and are killed
    store.set("dgt/word/1", "left by a dead rank")
    store.set("dgt/word/3", "left by another")
    second = rooms(store, late=3)
    assert len(second) == 4
    for room in second.values():
        assert room.check([f"seen/{rank}" for rank in range(4)]), "all in one room"
        assert not room.check(["address"]), "and in none that was used before"


@dataclass
class Unlike:
    """Rank 1 has tried to connect before, in vain, when it meets rank 0, which has not."""

    path: str

    def run(self, node: Node) -> bool:
        node.close_connections()
        patience = timedelta(seconds=20)
        if node.rank == 1:
            with pytest.raises(RuntimeError):
                meeting.init_groups(dist.HashStore(), 1, 2, timedelta(seconds=0.2))
        node.groups = meeting.init_groups(dist.FileStore(self.path, 2), node.rank, 2, patience)
        node.barrier()
        return True


def test_ranks_of_unlike_histories_connect(tmp_path: Path) -> None:
    """torch counts groups in the names of their keys, also those that failed: the two waited for each other."""
    assert run_ranks(Unlike(str(tmp_path / "store")), 2) == {0: True, 1: True}
