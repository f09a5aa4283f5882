"""Parameters for nodes that join a network under way: the average of their neighbours, by the mixing row.

    theta_i = sum_j W_ij theta_j / sum_j W_ij        over the neighbours j that have parameters

Nodes whose neighbours are all new get the strategy's average of everybody else, sum_j pi_j theta_j / sum_j pi_j. Model
after model comes in over one buffer, whatever the degree; nobody else sends or waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import networkx as nx
import numpy as np
import torch

from dgt.exchange.inboxes import message_tag
from dgt.exchange.network import Network
from dgt.network.mixing import strategy
from dgt.processes import collectives


def hand_over(
    network: Network, graph: nx.Graph, weights: np.ndarray, new: Collection[int], model: torch.nn.Module
) -> int:
    """Bring the models of the `new` ranks up to date; all ranks call it. Returns of how many models this one's is made.

    graph, weights   of those who are there
    """
    node = network.node
    tag = message_tag(0, node.open_channel())
    received = 0
    with collectives.peer_errors(node, "handing over parameters"), torch.no_grad():
        for rank in sorted(new):
            shares = _shares(network, graph, weights, new, rank)
            if rank == node.rank:
                _receive(node.control, shares, model, tag)
                received = len(shares)
            elif node.rank in shares:
                _send(node.control, rank, model, tag)
    return received


def _shares(
    network: Network, graph: nx.Graph, weights: np.ndarray, new: Collection[int], rank: int
) -> Mapping[int, float]:
    """Whose parameters a new rank gets, and with which weights; the weights matter to that rank only."""
    near = [j for j in sorted(graph[rank]) if j not in new]
    if near:
        row = network.row.neighbours if rank == network.node.rank else dict.fromkeys(near, 1.0)
        shares = {j: row[j] for j in near}
    else:
        average = strategy(network.strategy, weights).average_weights
        shares = {j: float(average[j]) for j in range(len(average)) if j not in new}
    total = sum(shares.values())
    return {j: share / total for j, share in shares.items()}


def _send(group: torch.distributed.ProcessGroup, rank: int, model: torch.nn.Module, tag: int) -> None:
    for value in model.state_dict().values():
        group.send([value.detach().cpu().contiguous()], rank, tag).wait()


def _receive(
    group: torch.distributed.ProcessGroup, shares: Mapping[int, float], model: torch.nn.Module, tag: int
) -> None:
    """Added up in the dtype of the model; integers, such as BatchNorm's count of batches, are the first one's."""
    for number, (peer, share) in enumerate(shares.items()):
        for value in model.state_dict().values():
            theirs = torch.empty(value.shape, dtype=value.dtype)
            group.recv([theirs], peer, tag).wait()
            if number == 0:
                value.copy_(theirs * share if value.is_floating_point() else theirs)
            elif value.is_floating_point():
                value.add_(theirs.to(value.device), alpha=share)
