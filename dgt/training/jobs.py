"""What a rank does once it has joined: one training run."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dgt.config import Config
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.processes.agreement import broadcast_text, together
from dgt.processes.node import Node
from dgt.runs.claiming import goes_on, refuse_results
from dgt.runs.holding import hold
from dgt.runs.lock import RunLock
from dgt.training import replacing, step_size
from dgt.training.ending import Stopped
from dgt.training.guard import RunGuard
from dgt.training.trainer import train

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`dgt train`: one run, written to its run directory.

    weights, drawn  the network that the config names, as `setup.network_of` has found it before any rank started
    show            how the result is printed at the end: text, json or nothing
    command         what the user typed
    """

    config: Config
    weights: Weights
    drawn: Topology
    show: str = "text"
    command: str = ""

    def run(self, node: Node) -> Stopped | None:
        if node.is_new:
            return self._take_part(node)
        # rank 0 claimed the directory, and names this start of the run
        mine = f"{self.config.run_dir}\n{datetime.now():%Y%m%d-%H%M%S}\n{secrets.token_hex(8)}"
        run_dir, start, token = broadcast_text(node, mine).rsplit("\n", 2)
        config = dataclasses.replace(self.config, run_dir=run_dir)
        lock = hold(node, Path(run_dir), f"run_dir={run_dir}", token, log.info)
        try:
            together(node, lambda: None if goes_on(config) or not node.is_main else refuse_results(Path(run_dir)))
            config = step_size.with_lr(config, node, self.weights, self.drawn, log.info)
            facts = {"run_dir": run_dir, "start": start, "token": token, "lr": config.lr, "since": time.time()}
            replacing.tell(config, node, facts)
            with RunGuard(config, start, self.command, self.show, lock) as guard:
                return train(config, node, self.weights, self.drawn, guard)
        finally:
            lock.release()

    def _take_part(self, node: Node) -> Stopped | None:
        """In place of a lost process, of a run that is under way."""
        facts = replacing.told(node)
        config = dataclasses.replace(self.config, run_dir=facts["run_dir"], lr=facts["lr"])
        lock = RunLock(Path(facts["run_dir"]), facts["token"])
        try:
            with RunGuard(config, facts["start"], self.command, self.show, lock, facts["since"]) as guard:
                return train(config, node, self.weights, self.drawn, guard)
        finally:
            lock.release()
