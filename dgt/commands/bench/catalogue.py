"""The variants of `dgt bench`, one entry each: what it is, how it is made, and what is not on equal terms with DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import networkx as nx
import torch

from dgt.algorithms import ExactDiffusion
from dgt.commands.bench import peers
from dgt.commands.bench.presets import Workload
from dgt.commands.bench.variants import Compute, MirrorNetwork, Tracking, Unchecked, Variant
from dgt.exchange import shared
from dgt.exchange.network import Network
from dgt.network import graphs, schedules
from dgt.network.schedules import Topology
from dgt.processes.join import divide_in_order
from dgt.processes.node import Node

BUCKET_MB = 1.0


class Settings(Protocol):
    """Of `job.BenchConfig`, what variants are made with."""

    transport: str
    local_steps: int

    @property
    def best_ddp_bucket_mb(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What a variant is made of: the same for all, on this rank."""

    config: Settings
    work: Workload
    node: Node
    graph: nx.Graph
    weights: list[float]

    def network(self, graph: Topology | None = None, **options: Any) -> Network:
        """The network of this benchmark, or another graph with its weights."""
        return Network(self.node, self.graph if graph is None else graph, self.weights, **options)

    def tracking(self, transport: str = "", graph: Topology | None = None, **options: Any) -> Variant:
        """Gradient tracking with these options of the optimizer."""
        return Tracking(self.work, self.network(graph, transport=transport or self.config.transport), **options)

    def pairs(self) -> Variant:
        """Gradient tracking on a ring of nodes of two ranks each."""
        node = self.node.scopes[0] if self.node.scopes else divide_in_order(self.node, 2)
        return Tracking(self.work, Network(node, graphs.ring(node.size), [1.0] * node.size))

    def exact_diffusion(self, form: str = "diffusion", wire: str = "full") -> Variant:
        """Exact diffusion in this form."""
        network = self.network(transport=self.config.transport, laziness=ExactDiffusion.usual_laziness)
        return Tracking(self.work, network, ExactDiffusion, form=form, wire=wire)

    def ddp(self, make: peers.MakeOptimizer | None = None, bfloat16: bool = False) -> Variant:
        """torch's DDP with this optimizer."""
        return peers.DDP(self.work, self.node, self.config.best_ddp_bucket_mb, make, bfloat16)


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant.

    meaning     what it is, for --help
    make        builds it; all ranks build the same ones in the same order
    terms       what is not on equal terms with DDP, printed below the table; `{every}` is `local_steps`
    on_demand   measured only if it is named
    missing     why it cannot be measured on this node; empty if it can
    """

    meaning: str
    make: Callable[[Bench], Variant]
    terms: str = ""
    on_demand: bool = False
    missing: Callable[[Node], str] = lambda _: ""


def _without_shared_memory(node: Node) -> str:
    possible = node.device.type == "cpu" and shared.available()
    return "" if possible else "it needs parameters in memory that ranks can share (Linux on x86-64, CPU)"


def _without_pairs(node: Node) -> str:
    return "it needs an even number of ranks" if node.size % 2 else ""


def _without_naive(node: Node) -> str:
    return "gloo sends CPU tensors only" if node.device.type != "cpu" and node.backend != "nccl" else ""


def _without_decent_dp(_: Node) -> str:
    return "" if peers.has_decent_dp() else "not installed; pip install 'dgt[bench]'"


NEIGHBOURS = "a step mixes with neighbours only: dgt plan says what that costs in steps"
ROUNDED = NEIGHBOURS + "; rounds changes, the rest follows later"
EVERY = "exchanges after every {every} steps only"

VARIANTS = {
    "compute": Entry("forward and backward only: what no optimizer can go below", lambda b: Compute(b.work)),
    "limit": Entry("all the arithmetic of gradient tracking, nobody to wait for",
                   lambda b: Tracking(b.work, MirrorNetwork(b.node, b.graph, b.weights)),
                   missing=_without_shared_memory),
    "ddp": Entry("torch's DistributedDataParallel", lambda b: b.ddp()),
    "ddp_bfloat16": Entry("the same with torch's hook that sends gradients in 16 bits", lambda b: b.ddp(bfloat16=True),
                          "rounds gradients, and what rounding leaves out is lost"),
    "ddp_local": Entry("local SGD: steps of a rank's own, parameters averaged after every `local_steps`",
                       lambda b: peers.LocalSGD(b.work, b.node, b.config.local_steps),
                       EVERY + "; ends elsewhere where data differ between ranks"),
    "decent_dp": Entry("Decent-DP, if installed", lambda b: peers.DecentDP(b.work, b.node),
                       "one neighbour per step, no tracker, no node weights: ends elsewhere where data differ",
                       missing=_without_decent_dp),
    "naive": Entry("gradient tracking with a message per tensor and neighbour",
                   lambda b: peers.Naive(b.work, b.network()), NEIGHBOURS, missing=_without_naive),
    "messages": Entry("dgt over the process group", lambda b: b.tracking("messages"), NEIGHBOURS),
    "shared": Entry("dgt over shared memory, its default on one host", lambda b: b.tracking("auto"), NEIGHBOURS,
                    missing=_without_shared_memory),
    "no_overlap": Entry("dgt, every exchange awaited at once", lambda b: b.tracking(overlap=False), NEIGHBOURS),
    "buckets": Entry("dgt, the exchange started during backward", lambda b: b.tracking(bucket_mb=BUCKET_MB),
                     NEIGHBOURS),
    "bfloat16": Entry("dgt over the process group, 16 bits per number on the wire",
                      lambda b: b.tracking("messages", wire="bfloat16"),
                      ROUNDED),
    "int8": Entry("dgt over the process group, 8 bits per number on the wire",
                  lambda b: b.tracking("messages", wire="int8"), ROUNDED, True),
    "int4": Entry("dgt over the process group, 4 bits per number on the wire",
                  lambda b: b.tracking("messages", wire="int4"), ROUNDED, True),
    "local_steps": Entry("dgt, an exchange after every `local_steps`",
                         lambda b: b.tracking(local_steps=b.config.local_steps), NEIGHBOURS + "; " + EVERY),
    "exponential": Entry("dgt on an exponential graph, whatever the topology",
                         lambda b: b.tracking(graph=graphs.exponential(b.node.size)), NEIGHBOURS, on_demand=True),
    "pairs": Entry("dgt, nodes of two ranks each on a ring (ranks_per_node=2)", lambda b: b.pairs(),
                   NEIGHBOURS, True, _without_pairs),
    "exact_diffusion": Entry("exact diffusion: one vector per exchange",
                             lambda b: b.exact_diffusion(), NEIGHBOURS, True),
    "extra": Entry("its EXTRA form, whose message travels during forward and backward",
                   lambda b: b.exact_diffusion("extra"), NEIGHBOURS, True),
    "exact_diffusion_int8": Entry("exact diffusion, 8 bits per number on the wire",
                                  lambda b: b.exact_diffusion(wire="int8"), ROUNDED, True),
    "exact_diffusion_int4": Entry("exact diffusion, 4 bits per number on the wire",
                                  lambda b: b.exact_diffusion(wire="int4"), ROUNDED, True),
    "one_peer": Entry("dgt with one partner per step", lambda b: b.tracking(graph=schedules.one_peer(b.weights)),
                      "a step mixes with one partner only: dgt simulate says what that costs in steps", True),
    "unchecked": Entry("shared, without looking at what is sent and received",
                       lambda b: Unchecked(b.work, b.network()), NEIGHBOURS, True, _without_shared_memory),
    "crc": Entry("shared, with a checksum of every message",
                 lambda b: Tracking(b.work, b.network(crc=True)), NEIGHBOURS, True, _without_shared_memory),
    "momentum": Entry("shared, with Nesterov momentum inside the tracker",
                      lambda b: b.tracking(momentum=0.9, nesterov=True), NEIGHBOURS, True),
    "adamw": Entry("shared, AdamW on the mixed tracker",
                   lambda b: b.tracking(base=torch.optim.AdamW), NEIGHBOURS, True),
    "ddp_momentum": Entry("torch's DistributedDataParallel, SGD with Nesterov momentum",
                          lambda b: b.ddp(peers.fused_momentum), on_demand=True),
    "ddp_adamw": Entry("torch's DistributedDataParallel, AdamW", lambda b: b.ddp(peers.fused_adamw), on_demand=True),
}  # fmt: skip


def terms(names: list[str], config: Settings) -> dict[str, str]:
    """What is not on equal terms with DDP, of each of these variants that differs in something."""
    return {name: VARIANTS[name].terms.format(every=config.local_steps) for name in names if VARIANTS[name].terms}
