"""What a rank does once it has joined: one training run."""

from __future__ import annotations

from dataclasses import dataclass

from dgt.config import Config
from dgt.training.logger import RunLogger
from dgt.training.setup import network_of
from dgt.training.trainer import train
from dgt.world import Node


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`dgt train`: one run, written to its run directory."""

    config: Config
    show: str = "text"

    def run(self, node: Node) -> None:
        weights, graph = network_of(self.config, node.placement)
        logger = RunLogger(self.config, node.size, speaks=node.is_main)
        train(self.config, node, weights, graph, logger.record)
        logger.finish(self.show)
