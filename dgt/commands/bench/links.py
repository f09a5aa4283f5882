"""`dgt bench preset=links`: the same benchmark on emulated hosts, whose links have a rate and a delay of your choice.

Ranks are forked as always, and each moves to its host before anything is measured: neighbours on one host share its
memory, those on others are reached over its link, and so is every all-reduce.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dgt.commands.bench.hosts import emulated_hosts, enter
from dgt.commands.bench.job import BenchConfig, BenchJob
from dgt.commands.bench.results import Results
from dgt.launching.launch import JoinOptions, start_ranks
from dgt.processes import environment
from dgt.processes.node import Node


@dataclass(frozen=True, slots=True)
class LinksJob:
    """A benchmark whose ranks first move to their hosts, so many on each, one after another."""

    bench: BenchJob
    hosts: Sequence[int]
    """A process on each of them."""

    def run(self, node: Node) -> Sequence[Results]:
        ranks = node.size // len(self.hosts)
        here = dataclasses.replace(node.placement, local_rank=node.rank % ranks, local_size=ranks)
        environment.use_interface("eth0", replaces=True)
        node.move(here, "hosts", lambda: enter(self.hosts[node.rank // ranks]))
        return self.bench.run(node)


def measure(config: BenchConfig) -> Results:
    """Make the hosts, measure, remove them."""
    hosts, _ = config.hosts_and_ranks
    with emulated_hosts(hosts, config.rate, config.delay) as emulated:
        job = LinksJob(BenchJob([config]), emulated.pids)
        results: Sequence[Results] = start_ranks(job, config.nodes, JoinOptions(device="cpu"))[0]
        return results[0]
