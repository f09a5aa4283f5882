"""Checkpoints for a training loop of one's own.

checkpoints = dgt.Checkpoints("checkpoints", network, every=50, model=model, optimizer=optimizer, scheduler=scheduler)
for step in range(checkpoints.resume(), 300):
    ...
    optimizer.step()
    scheduler.step()
    if checkpoints.step(step + 1):        # saved because somebody asked to stop: `node.stop_on_signals()`
        break
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.config import CheckpointConfig
from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.processes.agreement import broadcast_text
from dgt.runs.folders import MARKER
from dgt.runs.holding import hold
from dgt.training.checkpoints.files import RANKS_PER_NODE
from dgt.training.checkpoints.finding import find, once_committed
from dgt.training.checkpoints.saving import Saver, compare, load
from dgt.training.checkpoints.state import Tree, random_state, restore_random_state

log = logging.getLogger(__name__)


class Checkpoints:
    """Saves and resumes the parts that it is given, and the random number generators. All ranks make and call it.

    directory    where checkpoints are written; on a file system that all ranks see, and not in use by another run
    network      the `dgt.Network` of the optimizer
    every        steps between checkpoints; 0: by time only
    minutes      minutes between checkpoints; 0: by steps only
    keep_last    how many of the newest checkpoints are kept
    keep_every   also keep those whose step is a multiple of this; 0: none
    parts        by name: model, optimizer (one of dgt's), scheduler, or anything else with a `state_dict`
    """

    def __init__(
        self,
        directory: str | Path,
        network: Network,
        *,
        every: int = 0,
        minutes: float = 10.0,
        keep_last: int = 2,
        keep_every: int = 0,
        **parts: Any,
    ) -> None:
        parts = {name: _unwrapped(part) for name, part in parts.items()}
        self.node, self.network, self._parts = network.node, network, parts
        stateless = [name for name, part in parts.items() if not hasattr(part, "state_dict")]
        if stateless:
            hint = "; a DataLoader that has one is torchdata's StatefulDataLoader" if "oader" in stateless[0] else ""
            raise ConfigError(f"Checkpoints: {stateless[0]} has no state_dict to save{hint}")
        optimizers = [part for part in parts.values() if isinstance(part, DecentralizedOptimizer)]
        if len(optimizers) != 1:
            raise ConfigError(f"Checkpoints: give one optimizer of dgt among the parts, found {len(optimizers)}")
        self._optimizer, self._directory = optimizers[0], Path(directory)
        token = broadcast_text(self.node, secrets.token_hex(8), 16)
        self._lock = hold(self.node, self._directory, f"Checkpoints({directory})", token, self._say, needed=False)
        settings = CheckpointConfig(every=every, minutes=minutes, keep_last=keep_last, keep_every=keep_every)
        self._saver = Saver(self, self._directory, settings, self._say, marker=self._directory / MARKER)
        self.node.before_leaving.append(self._saver.writer.finish)  # the last one may still be written
        self.node.before_leaving.append(self._lock.release)

    def resume(self) -> int:
        """Load the last complete checkpoint on all ranks; returns its step, 0 if there is none."""

        def use(commit: Any) -> str:
            other = commit.world != self.node.world.size
            hint = f"; a run goes on with as many ranks as it was saved by: {commit.world}" if other else ""
            compare(self, commit, "auto", self._say, hint=hint)
            return load(self, commit, self._say)

        source = self._directory if self.node.is_main else None
        commit = find(self.node, source, "auto", self._say, use, lambda: once_committed(self._directory, keeps=False))
        return commit.step if commit is not None else 0

    def step(self, done: int) -> bool:
        """After every step, with the number of steps done: save if it is time to; True if all are to stop now."""
        self._lock.check()
        if self._optimizer.stop_now:
            self._saver.save_now(done)
            return True
        if self._saver.is_due(done):
            self._saver.save(done)
        self._saver.ask_if_late()
        return False

    def save(self, done: int) -> bool:
        """Save now and wait until it is complete; all ranks call it."""
        return self._saver.save_now(done)

    def facts(self) -> dict[str, str]:
        """What must be the same in a run that continues this one."""
        world = {
            "world": f"{self.node.size} nodes",
            RANKS_PER_NODE: str(self.node.local.size),
            "parts": ", ".join(self._parts),
        }
        return world | self.network.facts | {"model": self._optimizer.flat.layout()}

    def state(self) -> Tree:
        self._optimizer.refuse_inside_average("Checkpoints")
        self._optimizer.drain()
        parts = {
            name: part.live_state() if isinstance(part, DecentralizedOptimizer) else part.state_dict()
            for name, part in self._parts.items()
        }
        return {"parts": parts, "random": random_state(self.node.device)}

    def load(self, state: Tree) -> None:
        # the optimizer last: it takes the parameters over from the model
        for name, part in sorted(self._parts.items(), key=lambda item: item[1] is self._optimizer):
            part.load_state_dict(state["parts"][name])
        restore_random_state(state["random"], self.node.device)

    def _say(self, words: str) -> None:
        if self.node.is_main:
            log.warning("%s", words)


def _unwrapped(part: Any) -> Any:
    """The optimizer inside one that Accelerate or Lightning has prepared."""
    inner = getattr(part, "optimizer", None)
    wraps = isinstance(part, torch.optim.Optimizer) and isinstance(inner, DecentralizedOptimizer)
    return inner if wraps else part
