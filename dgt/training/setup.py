"""The steps of `trainer.train` before its loop: from a config to the network it names, to this node's connections, its
problem and its place among the ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import networkx as nx
import torch

from dgt import problems
from dgt.algorithms.machinery.traffic import check_schedule
from dgt.config import Config
from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.network import graphs, hosts, mixing, schedules, topologies, weights
from dgt.network.members import among, row_among
from dgt.network.mixing import MixingRow, edge_array
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.network.weights import Weights
from dgt.problems import Problem
from dgt.processes.agreement import together
from dgt.processes.environment import cache_dir, host_number
from dgt.processes.join import change_number
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training import replacing
from dgt.training.checkpoints.state import seed_generators

DEFAULT_NODES = 16
STREAMS = 10**8  # of random numbers, more than there may be nodes
log = logging.getLogger(__name__)


def network_of(config: Config, placement: Placement, *, as_drawn: bool = False) -> tuple[Weights, Topology]:
    """Weights and graph (or schedule) of a run; raises when the launcher started another number of ranks.

    Fewer may be right where a run that has lost nodes is resumed, which `returning.settle_members` finds out.

    `as_drawn` leaves out `topology.optimize`, which takes its time, for those who only check or want the weights.
    """
    config.check_targets()
    launched = _nodes_of(placement, config.ranks_per_node) if placement.launcher != "alone" else None
    by_data = config.weights.name == "data_size"
    shards = len(config.problem.values.get("sizes") or []) if by_data and config.problem.target is None else 0
    nodes = config.nodes or weights.own_length(config.weights) or shards or launched or DEFAULT_NODES
    node_weights = weights.from_config(config.weights, nodes, problems.data_sizes(config, nodes) if by_data else None)
    may_be_left = config.resume != "none" and not config.warm_start and launched is not None and launched < nodes
    if launched is not None and launched != nodes and not may_be_left:
        words = world_in_words(launched, config.ranks_per_node)
        raise ConfigError(f"{words}: this network has {nodes} nodes; start {in_ranks(nodes, config.ranks_per_node)}")
    topology = topologies.as_drawn(config.topology) if as_drawn else config.topology
    graph = schedules.from_config(topology, node_weights)
    if isinstance(graph, Schedule):
        check_schedule(config.algorithm.kind, graph.rounds, {"wire": config.wire, "bucket_mb": config.bucket_mb})
    return node_weights, graph


def world_in_words(nodes: int, ranks: int) -> str:
    """How many ranks there are, for errors."""
    return f"world size {nodes}" if ranks == 1 else f"world size {nodes * ranks}, {nodes} nodes of {ranks} ranks"


def in_ranks(nodes: int, ranks: int) -> str:
    """How many ranks to start."""
    return f"{nodes} ranks, one per node" if ranks == 1 else f"{nodes * ranks} ranks, {ranks} per node"


def _nodes_of(placement: Placement, ranks: int) -> int:
    """How many nodes of so many ranks a launcher has started."""
    if placement.size % ranks:
        raise ConfigError(f"ranks_per_node={ranks}: {placement.size} ranks are no multiple of it")
    return placement.size // ranks


def final_graph(config: Config, node: Node, weights: Weights, drawn: Topology) -> Topology:
    """The graph of a run, on every rank; `topology.optimize` is done by rank 0 alone, which sends the edges.

    64 ranks on two cores would spend a minute on what takes one of them a second; and they need not trust their
    processors to round alike. All ranks call it.
    """
    if isinstance(drawn, Schedule) or not topologies.is_slow(config.topology):
        return drawn
    if node.is_new:
        return replacing.told_graph(node, weights)
    edges = torch.zeros(drawn.number_of_edges(), 2, dtype=torch.int64)
    if node.is_main:
        edges += torch.from_numpy(edge_array(graphs.from_config(config.topology, weights)))
    graph = nx.empty_graph(weights.size)
    graph.add_edges_from(node.world.all_reduce(edges).tolist())
    replacing.tell_graph(config, node, graph)
    return graph


def place_ranks(config: Config, node: Node, weights: Weights, graph: Topology) -> None:
    """placement=graph: renumber the ranks so that few edges run between hosts; rank 0 stays what it is.

    All ranks call it.
    """
    if config.placement != "graph" or node.is_new:
        return
    here, _ = among(union_of(graph), weights, node.members)
    host_of_rank = node.all_gather(torch.tensor(host_number())).tolist()
    node_of_rank = torch.zeros(node.size, dtype=torch.int64)
    if node.is_main:
        placed = hosts.place(here, host_of_rank)
        before, after = (hosts.edges_between(here, order, host_of_rank) for order in (range(node.size), placed))
        between = f"{len(set(host_of_rank))} hosts, {before} without it"
        log.info("placement=graph: %d of %d edges run between %s", after, here.number_of_edges(), between)
        node_of_rank += torch.tensor(placed)
    places = node.world.all_reduce(node_of_rank).tolist()
    if places != list(range(node.size)):
        change_number(node, places[node.rank])


def connect(config: Config, node: Node, weights: Weights, graph: Topology) -> Network:
    """This node's connections and mixing row, from what its neighbours tell; among those who are there, if not all are.

    All ranks call it.
    """
    settings = (config.strategy.name, config.laziness, config.transport, config.crc)
    if node.size == weights.size:
        return Network(node, graph, weights, *settings)
    if node.is_new:
        nobody, own = alone()
        return Network(node, nobody, own, *settings)
    left, weights_left = among(graph, weights, node.members)
    return Network(node, left, weights_left, *settings, row_of_members(config, node, weights, graph))


def alone() -> tuple[nx.Graph, Weights]:
    """The network of a node that has not met the others yet."""
    return nx.empty_graph(1), weights.uniform(1)


def row_of_members(config: Config, node: Node, weights: Weights, graph: Topology) -> MixingRow | None:
    """This node's mixing row where some nodes of the network are lost; None on a schedule, which is another then."""
    if isinstance(graph, Schedule):
        return None
    whole = mixing.checked(graph, weights, weights.size)
    return row_among(*whole, config.strategy.name, config.laziness, node.members, node.name)


def make_problem(config: Config, node: Node, weights: Weights, seeds: Sequence[int]) -> Problem:
    """This node's data, model and loss; the models of all nodes start alike. All ranks call it."""

    def make() -> Problem:
        part = node.local.rank, node.local.size
        problem = problems.from_config(config, weights, node.name, seeds, node.device, cache_dir(), part)
        if config.precision == "bf16" and node.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError("precision=bf16: this GPU does not compute in bfloat16; leave it out")
        if config.bucket_mb and not problem.uses_autograd:
            raise ConfigError(
                f"bucket_mb={config.bucket_mb:g}: problem={config.problem.name} has no backward to start it in"
            )
        return problem

    seed_generators(seeds[0])
    problem = together(node, make)
    if node.size != weights.size and not node.is_new:
        problem.go_on_with(node.members, among(nx.empty_graph(weights.size), weights, node.members)[1])
    # dropout and the like differ between nodes, and between the ranks of a node
    seed_generators(seeds[0], node.name + 1 + node.local.rank * STREAMS)
    return problem
