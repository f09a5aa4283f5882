"""What a run directory says about the network besides its metrics: who mixes with whom, and where it all ran."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy.sparse
import torch

from dgt.config import Config
from dgt.exchange.network import Network
from dgt.network.weights import Weights
from dgt.node import Node
from dgt.world import host_number

MOST_NODES = 2000  # of larger networks a sample is recorded, of all weights alike, and no edges


def mixing_matrix_of(network: Network) -> scipy.sparse.csr_array | None:
    """W as the ranks really have it, row by row, on rank 0; None elsewhere. All ranks call it."""
    row = torch.zeros(network.node.size, dtype=torch.float64)
    row[network.node.rank] = network.row.own
    row[list(network.row.neighbours)] = torch.tensor(list(network.row.neighbours.values()), dtype=torch.float64)
    rows = network.node.collect(row)
    return None if rows is None else scipy.sparse.csr_array(rows.numpy())


def network_record(
    iteration: int, weights: Weights, W: scipy.sparse.csr_array, members: list[int] | None = None
) -> dict[str, Any]:
    """The network from this iteration on, as plain values; nodes are counted 0, 1, 2, ... unless `members` names them.

    Node i's neighbours are those with W_ij > 0, and `mixing[i]` is its row {j: W_ij}.
    """
    n, W = int(weights.size), scipy.sparse.csr_array(W)
    off_diagonal = scipy.sparse.csr_array(W - scipy.sparse.diags_array(W.diagonal()))
    off_diagonal.eliminate_zeros()
    shown = recorded_nodes(weights)
    record: dict[str, Any] = {
        "iteration": iteration,
        "size": n,
        "nodes": [int(i) if members is None else members[i] for i in shown],
        "weights": weights[shown].tolist(),
        "degrees": np.diff(off_diagonal.indptr)[shown].tolist(),
    }
    if n <= MOST_NODES:
        upper = scipy.sparse.triu(off_diagonal, k=1).tocoo()
        record["edges"] = sorted([int(i), int(j)] for i, j in zip(upper.row, upper.col, strict=True))
        record["mixing"] = [
            dict(sorted({int(j): float(w) for j, w in zip(W.indices[a:b], W.data[a:b], strict=True)}.items()))
            for a, b in zip(W.indptr, W.indptr[1:], strict=False)
        ]
    return record


def recorded_nodes(weights: Weights) -> np.ndarray:
    """All nodes; of a large network a sample from the lightest to the heaviest, in the order of their numbers."""
    if weights.size <= MOST_NODES:
        return np.arange(weights.size)
    places = np.linspace(0, weights.size - 1, MOST_NODES).round().astype(np.int64)
    return np.sort(np.argsort(weights, kind="stable")[places])


def environment(node: Node, config: Config) -> dict[str, Any] | None:
    """Versions, hosts and devices of this run, on rank 0; None elsewhere. All ranks call it."""
    hosts = node.collect(torch.tensor(host_number()))
    if hosts is None:
        return None
    device = torch.cuda.get_device_name(node.device) if node.device.type == "cuda" else node.device.type
    return versions() | {
        "ranks": node.size,
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
