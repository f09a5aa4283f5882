"""What a rank does once it has joined: one training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dgt.config import Config
from dgt.exchange.agreement import told_by_main
from dgt.training.logger import RunLogger
from dgt.training.setup import network_of, take_places
from dgt.training.trainer import Stopped, train_safely
from dgt.world import Node


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`dgt train`: one run, written to its run directory."""

    config: Config
    show: str = "text"

    def run(self, node: Node) -> Stopped | None:
        # rank 0 claimed the directory
        config = dataclasses.replace(self.config, run_dir=told_by_main(node, self.config.run_dir or ""))
        weights, graph = network_of(config, node.placement)
        if config.placement == "graph":
            take_places(node, graph)
        logger = RunLogger(config, node.size, speaks=node.is_main)
        stopped = train_safely(config, node, weights, graph, logger)
        if stopped is not None:
            logger.close()
            return stopped
        logger.finish(self.show)
        return None
