"""What a rank does once it has joined: one training run."""

from __future__ import annotations

import dataclasses
import secrets
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import networkx as nx

from dgt.config import Config
from dgt.network.members import among
from dgt.network.weights import Weights
from dgt.processes.agreement import broadcast_text, together
from dgt.processes.failures import FOLDER, noted
from dgt.processes.node import Node
from dgt.runs.claiming import goes_on, refuse_results
from dgt.runs.holding import hold
from dgt.runs.lock import RunLock
from dgt.runs.logger import RunLogger
from dgt.training.checkpoints.finding import last_commit
from dgt.training.checkpoints.returning import settle_members
from dgt.training.ending import Stopped
from dgt.training.setup import shared_network, take_places
from dgt.training.trainer import train_safely


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`dgt train`: one run, written to its run directory."""

    config: Config
    show: str = "text"
    command: str = ""
    """What the user typed."""

    def run(self, node: Node) -> Stopped | None:
        # rank 0 claimed the directory, and names this start of the run
        mine = f"{self.config.run_dir}\n{datetime.now():%Y%m%d-%H%M%S}\n{secrets.token_hex(8)}"
        run_dir, start, token = broadcast_text(node, mine).rsplit("\n", 2)
        config = dataclasses.replace(self.config, run_dir=run_dir)
        tell = say if node.is_main else discard
        lock = hold(node, Path(run_dir), f"run_dir={run_dir}", token, tell)
        try:
            together(node, lambda: None if goes_on(config) or not node.is_main else refuse_results(Path(run_dir)))
            weights, graph = shared_network(config, node)
            settle_members(node, int(weights.size), lambda: last_commit(config), config.resume, tell)
            with noted(Path(run_dir) / FOLDER / start, node.rank):  # from here on it is a run; before, bad input
                return self._train(node, config, start, lock, weights, graph)
        finally:
            lock.release()

    def _train(
        self, node: Node, config: Config, start: str, lock: RunLock, weights: Weights, graph: nx.Graph
    ) -> Stopped | None:
        if config.placement == "graph":
            take_places(node, among(graph, weights, node.members)[0])
        logger = RunLogger(config, node.size, node.is_main, start, self.command, lock=lock)
        # under torchrun or srun the command begins with theirs, which is not known
        again = self._again(str(config.run_dir)) if node.launcher_notes is not None else ""
        return train_safely(config, node, weights, graph, logger, self.show, again)

    def _again(self, run_dir: str) -> str:
        """What the user types to go on."""
        words = [word for word in shlex.split(self.command) if not word.startswith(("run_dir=", "resume=", "chaos"))]
        return shlex.join([*words, f"run_dir={run_dir}", "resume=auto"]) if words else ""


def say(words: str) -> None:
    print(f"dgt: {words}", file=sys.stderr, flush=True)


def discard(words: str) -> None:
    """Only rank 0 prints."""
