"""What a rank does once it has joined: one training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dgt.config import Config
from dgt.exchange.agreement import told_by_main
from dgt.failures import FOLDER, noted
from dgt.node import Node
from dgt.training.logger import RunLogger
from dgt.training.setup import shared_network, take_places
from dgt.training.trainer import Stopped, train_safely


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`dgt train`: one run, written to its run directory."""

    config: Config
    show: str = "text"

    def run(self, node: Node) -> Stopped | None:
        # rank 0 claimed the directory, and names this start of the run
        run_dir, start = told_by_main(node, f"{self.config.run_dir}\n{datetime.now():%Y%m%d-%H%M%S}").split("\n")
        with noted(Path(run_dir) / FOLDER / start, node.rank):
            return self._train(node, dataclasses.replace(self.config, run_dir=run_dir))

    def _train(self, node: Node, config: Config) -> Stopped | None:
        weights, graph = shared_network(config, node)
        if config.placement == "graph":
            take_places(node, graph)
        logger = RunLogger(config, node.size, speaks=node.is_main)
        stopped = train_safely(config, node, weights, graph, logger)
        if stopped is not None:
            logger.close()
            return stopped
        logger.finish(self.show)
        return None
