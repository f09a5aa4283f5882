"""What a run directory says about the network besides its metrics: who mixes with whom, and where it all ran."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import scipy.sparse
import torch

from dgt.config import Config
from dgt.exchange.network import Network
from dgt.processes.environment import host_number
from dgt.processes.node import Node


def mixing_matrix_of(network: Network) -> scipy.sparse.csr_array | None:
    """W as the ranks really have it, row by row, on rank 0; None elsewhere. All ranks call it.

    On a schedule the mean of its exchanges.
    """
    row = torch.zeros(network.node.size, dtype=torch.float64)
    row[network.node.rank] = network.row.own
    row[list(network.row.neighbours)] = torch.tensor(list(network.row.neighbours.values()), dtype=torch.float64)
    rows = network.node.gather(row, dst=0)
    return None if rows is None else scipy.sparse.csr_array(rows.numpy())


def environment(node: Node, config: Config) -> dict[str, Any] | None:
    """Versions, hosts and devices of this run, on rank 0; None elsewhere. All ranks call it."""
    hosts = node.world.gather(torch.tensor(host_number()), dst=0)
    if hosts is None:
        return None
    device = torch.cuda.get_device_name(node.device) if node.device.type == "cuda" else node.device.type
    return versions() | {
        "ranks": node.world.size,
        "ranks_per_node": node.local.size,
        "hosts": len(set(hosts.tolist())),
        "launcher": "dgt" if node.launcher_notes is not None else node.placement.launcher,
        "backend": node.backend,
        "transport": config.transport,
        "device": device,
    }


def versions() -> dict[str, Any]:
    """Of whatever runs here, and when it was started."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "dgt": version("dgt"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
