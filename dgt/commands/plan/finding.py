"""`dgt plan ... lr=find`: trials of the recommended run on real ranks."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from dgt import problems
from dgt.commands.plan.ranking import Plan
from dgt.config import Config
from dgt.launching.launch import JoinOptions, start_ranks
from dgt.launching.run import checked
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.processes import environment
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training import step_size
from dgt.training.setup import network_of
from dgt.training.step_size import Found

WORD = "lr=find"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FindJob:
    """The trials of one config; every rank returns the same."""

    config: Config
    weights: Weights
    drawn: Topology

    def run(self, node: Node) -> Found:
        return step_size.find(self.config, node, self.weights, self.drawn)


def found_for(config: Config) -> Found:
    """Start the ranks of this run and find its lr."""
    weights, drawn = network_of(config, Placement("alone"), as_drawn=True)
    problems.fetch(config, environment.cache_dir(), log.info)
    config = checked(config, weights)
    results = start_ranks(FindJob(config, weights, drawn), int(weights.size), JoinOptions.from_config(config))
    found = results[0]
    assert isinstance(found, Found)
    return found


def with_lr(plan: Plan) -> Plan:
    """The plan whose first row has the lr that trials of its run suggest, in two digits."""
    found = found_for(plan.best.config)
    config = dataclasses.replace(plan.best.config, lr=float(f"{found.lr:.2g}"))
    rows = [dataclasses.replace(plan.best, config=config), *plan.rows[1:]]
    return dataclasses.replace(plan, rows=rows, found=found)
