"""`dgt.Network`: this node's neighbours, its mixing row and its gradient scale, learned by a handshake.

Each rank tells its neighbours (lambda_i, d_i), hears theirs, and computes its own row of W. Nothing larger
than that row exists on any rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import networkx as nx
import numpy as np
import torch

from dgt.config import TRANSPORTS
from dgt.config.checks import check_choice, check_range
from dgt.errors import ConfigError
from dgt.exchange.average import averaged, save_average
from dgt.exchange.partners import Partners, ScheduledTransport
from dgt.exchange.transport import Transport
from dgt.network import changing, mixing, schedules
from dgt.network.mixing import MixingRow, mixing_row
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.processes.agreement import agree
from dgt.processes.node import Node


class Network:
    """What node i knows of the network. All ranks make it, with the same arguments.

    node            from `dgt.join()`
    graph           a networkx graph of the nodes 0, ..., n-1; or a schedule of them (`dgt.schedules`), or their list
    weights         lambda_i for every node; scaled so that their mean is 1
    strategy        I or II
    laziness        epsilon: the least weight W_ii of a node's own parameters
    transport       auto (shared memory between neighbours that have it, else messages) or messages
    crc             also check the content of every message, not only its head

    Its attributes:

    row             its own weight W_ii and W_ij for each neighbour j
    gradient_scale  G_ii: lambda_i in Strategy I, 1 in Strategy II
    weight          lambda_i
    average_weight  pi_i: the share of this node in the strategy's network average, 1/n or lambda_i/n
    eccentricity    exchanges after which a value that this node sends has passed to all others
    schedule        the schedule, or None; with one, `neighbours` are all that this node ever has and `row` is the mean
                    of its rows

    As an argument, `row` replaces the handshake, for the ranks that are left after a loss.
    """

    def __init__(
        self,
        node: Node,
        graph: Topology | Sequence[nx.Graph],
        weights: Sequence[float] | np.ndarray,
        strategy: str = "II",
        laziness: float = 0.3,
        transport: str = "auto",
        crc: bool = False,
        row: MixingRow | None = None,
    ) -> None:
        check_choice("transport", transport, TRANSPORTS)
        check_range("laziness", laziness, 0, 1, open_low=True, open_high=True)
        topology: Topology = schedules.cycle(graph) if isinstance(graph, Sequence) else graph
        self.schedule = topology if isinstance(topology, Schedule) else None
        graph, weights = mixing.checked(union_of(topology), weights, node.size)
        share = mixing.node_share(node.rank, graph, weights, strategy)
        self.facts = network_facts(topology, weights, strategy, laziness)
        agree(node, self.facts | {"crc": str(crc)})
        self.node = node
        self.transport, self.crc = transport, crc
        self.strategy = strategy
        self.neighbours = share.neighbours
        self.weight = share.weight
        self.gradient_scale = share.gradient_scale
        self.average_weight = share.average_weight
        self._transports: list[Transport] = []
        self.bytes_before, self.wait_before = 0, 0.0
        self.before_reading: list[Callable[[], None]] = []  # brings parameters up to date that are still on their way
        self.averaging: frozenset[int] = frozenset()  # ids of the tensors that hold the average just now
        self.laziness = laziness
        self._most_neighbours = most_at_a_time(topology)
        if self.schedule is not None:
            self.eccentricity = changing.steps_to_reach_all(self.schedule, node.rank)
            self._learn_rows(self.schedule, share.mixing_weight)
        else:
            self.eccentricity = max(nx.single_source_shortest_path_length(graph, node.rank).values())
            self.row = row if row is not None else handshake(self.open_transport(), share.mixing_weight, laziness)
        self.wait_before = -self.wait_seconds  # what the handshake waited for ranks that start later is not counted

    def _learn_rows(self, schedule: Schedule, own_weight: float) -> None:
        """The rows of all exchanges: neighbours tell their lambda, and everybody knows who meets whom when."""
        self._partners = Partners(schedule.partners(self.node.rank))
        told = weights_and_degrees(self.open_transport(), own_weight)
        lambdas = {self.node.rank: own_weight} | {peer: weight for peer, (weight, _) in told.items()}
        self.rows = changing.rows(schedule, self.node.rank, lambdas, self.laziness)
        self.row = changing.mean_row(self.rows)
        firsts = (step * schedule.rounds for step in range(schedule.period_in_steps))
        self._own_shares = [
            changing.own_share(self.rows, own_weight, lambdas, first, schedule.rounds) for first in firsts
        ]

    @property
    def spans_hosts(self) -> bool:
        """Whether some neighbours may be on other hosts; the same on all ranks."""
        started_as = self.node.placement  # before any loss
        return started_as.local_size < started_as.size

    def row_at(self, turn: int) -> MixingRow:
        """The mixing row of exchange `turn` of the schedule; on a graph the row."""
        return self.row if self.schedule is None else self.rows[turn % len(self.rows)]

    def own_share(self, exchange: int) -> float:
        """What this node gives itself at a step's exchange, all rounds of it together: W_ii on a graph."""
        return self.row.own if self.schedule is None else self._own_shares[exchange % len(self._own_shares)]

    def exchange(self, transport: Transport, exchange: int, kind: str, step: int, own: torch.Tensor) -> torch.Tensor:
        """W own, for something small that is mixed beside the parameters; in every round of a schedule's step."""
        rounds = 1 if self.schedule is None else self.schedule.rounds
        for turn in range(exchange * rounds, (exchange + 1) * rounds):
            if isinstance(transport, ScheduledTransport):
                theirs = transport.exchange_at(turn, kind, step, own)
            else:
                theirs = transport.exchange(kind, step, own)
            row = self.row_at(turn)
            # messages over gloo are in main memory, wherever the values are
            heard = ((peer, message.to(own.device)) for peer, message in theirs.items())
            own = sum((row.neighbours[peer] * message for peer, message in heard), row.own * own)
        return own

    def among(self, graph: Topology, weights: np.ndarray, row: MixingRow | None) -> Network:
        """The network of the ranks that are left, all three theirs; what was sent and waited for is carried over.

        On a schedule rows are learned anew.
        """
        left = Network(self.node, graph, weights, self.strategy, self.laziness, self.transport, self.crc, row)
        left.bytes_before = self.bytes_sent
        left.wait_before += self.wait_seconds
        return left

    def open_transport(self) -> Transport:
        """A way to exchange buffers with the neighbours, apart from all others."""
        if self.schedule is not None:
            ways: Transport = ScheduledTransport(
                self.node, self.neighbours, self._partners, self.transport, self.crc, self._most_neighbours
            )
        else:
            ways = Transport(self.node, self.neighbours, self.transport, self.crc, self._most_neighbours)
        self._transports.append(ways)
        return ways

    @contextlib.contextmanager
    def average(
        self, model: torch.nn.Module, recalibrate: Callable[[], None] | None = None
    ) -> Iterator[torch.nn.Module]:
        """with network.average(model): the model is the strategy's network average inside. All ranks call it.

        model         this node's own; it has its own values again after the block
        recalibrate   called on the averaged model to compute its BatchNorm statistics again, for example with
                      `torch.optim.swa_utils.update_bn`; the statistics of all nodes are then pooled
        """
        with averaged(self, model, recalibrate):
            yield model

    def save_average(
        self,
        path: str | Path,
        model: torch.nn.Module,
        recalibrate: Callable[[], None] | None = None,
    ) -> None:
        """Write the network average of `model` to `path` as an ordinary state_dict, from rank 0; all ranks call it.

        path, model   where, and this node's own model
        recalibrate   as for `average`
        """
        if not isinstance(model, torch.nn.Module):
            raise ConfigError("save_average: give the model, network.save_average(path, model)")
        save_average(self, model, path, recalibrate)

    @property
    def reach(self) -> int:
        """Deprecated: `eccentricity`."""
        warnings.warn("network.reach is deprecated: use network.eccentricity", DeprecationWarning, stacklevel=2)
        return self.eccentricity

    @property
    def bytes_sent(self) -> int:
        """Payload of all messages so far; in a run that was resumed, those before it too."""
        return self.bytes_before + sum(transport.bytes_sent for transport in self._transports)

    @property
    def wait_seconds(self) -> float:
        """How long this node has stood still for its neighbours' messages since the first step."""
        return self.wait_before + sum(transport.wait_seconds for transport in self._transports)


def most_at_a_time(topology: Topology) -> int:
    """Neighbours that the node with most of them has in one exchange."""
    if isinstance(topology, Schedule):
        counts = [np.bincount(np.ravel(pairs)).max(initial=0) for pairs in topology.pairs]
        return int(max(counts, default=0))
    return max(dict(topology.degree).values())


def handshake(transport: Transport, own_weight: float, laziness: float) -> MixingRow:
    """Tell every neighbour (lambda_i, d_i), hear theirs, compute the own mixing row."""
    told = weights_and_degrees(transport, own_weight)
    return mixing_row(own_weight, len(transport.peers), told, laziness)


def weights_and_degrees(transport: Transport, own_weight: float) -> dict[int, tuple[float, int]]:
    """(lambda_j, d_j) of every neighbour j, from itself."""
    own = torch.tensor([own_weight, len(transport.peers)], dtype=torch.float64, device=transport.node.device)
    told = {}
    for peer, theirs in transport.exchange("handshake", 0, own).items():
        weight, degree = theirs.tolist()
        told[peer] = (weight, int(degree))
    return told


def network_facts(graph: Topology, weights: np.ndarray, strategy: str, laziness: float) -> dict[str, str]:
    """What all ranks must agree on before they mix."""
    return {
        "strategy": strategy,
        "laziness": repr(laziness),
        "graph": _graph_fact(graph),
        "weights": f"{weights.size} nodes, {_digest(weights)}",
    }


def _graph_fact(graph: Topology) -> str:
    if isinstance(graph, Schedule):
        ends = np.cumsum([len(pairs) for pairs in graph.pairs])
        rounds = f"{graph.rounds} per step, " * (graph.rounds > 1)
        return f"{graph.period} exchanges, {rounds}{_digest(np.concatenate([ends, *map(np.ravel, graph.pairs)]))}"
    edges = sorted(tuple(sorted(edge)) for edge in graph.edges)
    return f"{len(edges)} edges, {_digest(np.asarray(edges, dtype=np.int64))}"


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
