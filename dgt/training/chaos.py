"""Rehearsed failure: `dgt train chaos=kill chaos.iteration=40`. One fault, once per run directory.

Two go on: chaos=slow, a node that takes its time before every step, and chaos=churn, nodes that are lost at random.

What is not given is drawn from `chaos.seed`, so a rehearsal can be repeated. A marker file keeps a restarted run from
being struck twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from dgt.config import Config
from dgt.exchange.frames import Frame, Seal, number_of
from dgt.processes.node import Node
from dgt.runs.layout import CHAOS_STRUCK
from dgt.training.checkpoints.files import no_space
from dgt.training.checkpoints.state import Tree, copied
from dgt.training.session import Session

MARKER = CHAOS_STRUCK
BACK = 5  # iterations that a rolled-back node goes back
LATER = ("none", "corrupt", "disk_full", "slow", "churn")  # not one blow at one iteration
CHURN_UNTIL = 0.9  # of the iterations: who is lost later would not be back at the end
COMMIT_PHASES = ("commit", "prune")  # rank 0's


class Chaos:
    """The fault of a run, as one rank sees it."""

    def __init__(self, config: Config, node: Node) -> None:
        self._settings, self._node, self._last = config.chaos, node, config.iterations
        draw = random.Random(config.chaos.seed)
        rank, iteration = draw.randrange(node.world.nodes), draw.randrange(1, max(2, config.iterations))
        if config.chaos.phase in COMMIT_PHASES:
            rank = 0
        rank = rank if config.chaos.rank is None else config.chaos.rank
        self._here = config.chaos.name != "none" and rank == node.world.name
        self._at = iteration if config.chaos.iteration is None else config.chaos.iteration
        self._marker, self._draw = Path(str(config.run_dir)) / MARKER, draw
        self._iteration, self._old = -1, Tree()

    def strike(self, iteration: int, session: Session) -> None:
        """Before every step."""
        self._iteration = iteration
        if self._settings.name == "churn":
            self._churn(iteration)
        if self._settings.name == "slow" and self._here and iteration >= self._at:
            session.delay = self._settings.seconds
        if not self._here or self._settings.phase != "step":
            return
        if self._settings.name == "rollback" and iteration == max(0, self._at - BACK):
            self._old = copied(session.state())
        if self._settings.name == "corrupt" and iteration == max(0, self._at - 1) and self._first_time():
            self._node.tamper = Tamper(self._settings.damage, self._at, self._node, self._draw)
        if iteration == self._at and self._settings.name not in LATER and self._first_time():
            getattr(self, f"_{self._settings.name}")(session)

    def _churn(self, iteration: int) -> None:
        """At most one node is lost in an iteration, the same for all ranks; never the half of them at once."""
        node, settings = self._node, self._settings
        draw = random.Random(f"{settings.seed} {iteration}")
        victim, lost = draw.randrange(node.nodes), draw.random() < settings.rate * node.nodes
        rests = iteration <= (settings.iteration or 0) or iteration > CHURN_UNTIL * self._last
        if lost and victim == node.name and not rests and 4 * node.size > 3 * node.nodes:
            os.kill(os.getpid(), signal.SIGKILL)

    def phase(self, name: str) -> None:
        """While a checkpoint is made, in whatever thread."""
        if not self._here or self._iteration < self._at:
            return
        if self._settings.name == "disk_full" and name == "write" and self._first_time():
            raise no_space()
        if self._settings.name == "kill" and name == self._settings.phase and self._first_time():
            os.kill(os.getpid(), signal.SIGKILL)

    def _first_time(self) -> bool:
        try:
            self._marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _kill(self, session: Session) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _term(self, session: Session) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def _pause(self, session: Session) -> None:
        # somebody else has to wake a stopped process
        subprocess.Popen(["sh", "-c", f"sleep {self._settings.seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    def _delay(self, session: Session) -> None:
        time.sleep(self._settings.seconds)

    def _not_a_number(self, session: Session) -> None:
        def spoil(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            gradient = session.optimizer.flat.parameters[0].grad
            if gradient is not None:
                gradient.view(-1)[0] = float("nan")
            hook.remove()

        hook = session.optimizer.register_step_pre_hook(spoil)

    def _forget(self, session: Session) -> None:
        """The node loses its last gradient and with it its tracker, or its correction."""
        session.optimizer.drain()
        for name, tensor in session.optimizer.buffers().items():
            if name in ("rest", "correction"):
                tensor.zero_()

    def _rollback(self, session: Session) -> None:
        """The node goes back to an older state, alone."""
        iteration = session.optimizer.iteration
        session.load(self._old)
        session.optimizer.iteration = iteration


class Tamper:
    """Damages one message of this node as it leaves."""

    def __init__(self, damage: str, iteration: int, node: Node, draw: random.Random) -> None:
        self._damage, self._iteration, self._node, self._draw = damage, iteration, node, draw
        self._before: dict[str, torch.Tensor] = {}

    def __call__(self, kind: str, frame: Frame, iteration: int) -> torch.Tensor:
        before, self._before[kind] = self._before.get(kind), frame.raw.clone()
        if iteration < self._iteration:
            return frame.raw
        self._node.tamper = None
        if self._damage == "stale" and before is not None:
            frame.raw.copy_(before)
        elif self._damage == "swap":
            self._seal_anew(f"not {kind}", frame, frame.payload, iteration)
        elif self._damage == "dtype":
            other = {2: torch.int16, 4: torch.int32, 8: torch.int64}[frame.payload.element_size()]
            self._seal_anew(kind, frame, frame.payload.view(other), iteration)
        elif self._damage == "short":
            half = frame.raw.numel() // 2 // 8 * 8
            frame.raw[half:] = 0  # in shared memory; over a socket the rest is not sent at all
            return frame.raw[:half]
        else:
            bit = self._draw.randrange(8 * frame.raw.numel())
            frame.raw[bit // 8] ^= 1 << bit % 8
        return frame.raw

    def _seal_anew(self, kind: str, frame: Frame, payload: torch.Tensor, iteration: int) -> None:
        Seal(self._node, kind, payload, crc=True).write(frame, number_of(frame), iteration)
