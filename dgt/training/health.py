"""Alarms: what a run must not do silently. Rank 0 looks at the network's metrics at every evaluation.

tracking residual  |sum_i pi_i (y_i - G_i g_i)|, or |sum_i pi_i c_i| with exact diffusion: rounding explains about
                   eps sqrt(t) of the size of the trackers
consensus          nodes further apart than the model is large
loss               an explosion long before it stops being a number
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgt.errors import AlarmError
from dgt.network.schedules import Schedule
from dgt.network.theory import largest_step

if TYPE_CHECKING:
    from dgt.config import Config
    from dgt.network.schedules import Topology
    from dgt.network.weights import Weights
    from dgt.training.evaluation import Evaluation
    from dgt.training.session import Session

ROUNDINGS = 200  # what is tolerated, in multiples of eps sqrt(t) of the size of what is tracked
APART = 100.0  # how many times the model's own size nodes may lie apart
EXPLOSION = 1e4  # how many times its first value the loss may reach


class Health:
    """Raises `AlarmError` with the likely cause."""

    def __init__(
        self, config: Config, graph: Topology, weights: Weights, smoothness: float | None, dtype: torch.dtype
    ) -> None:
        self._config, self._graph, self._weights = config, graph, weights
        self._smoothness, self._eps = smoothness, torch.finfo(dtype).eps
        if config.wire != "full":  # its float64 estimates add up, and trackers add them up once more
            self._eps = max(self._eps, torch.finfo(torch.float32).eps)
        self._largest_scale: np.ndarray | float = 0.0
        self._first_loss: np.ndarray | None = None
        self._first_consensus: np.ndarray | None = None
        self.sound_until = -1
        """The last iteration at which all was well."""

    @classmethod
    def of_session(cls, session: Session) -> Health:
        dtype = session.optimizer.flat.values.dtype
        return cls(session.config, session.graph, session.weights, session.problem.smoothness, dtype)

    def check(self, iteration: int, evaluation: Evaluation) -> None:
        """Rank 0 calls it with everything that was measured."""
        metrics = evaluation.metrics
        self._loss(iteration, metrics.get("loss"))
        self._consensus(iteration, metrics["consensus"], evaluation.average_norm)
        if evaluation.tracking_scale is not None:
            self._residual(iteration, metrics["tracking_residual"], evaluation.tracking_scale)
        self.sound_until = iteration

    def _loss(self, iteration: int, loss: np.ndarray | None) -> None:
        if loss is None:
            return
        if self._first_loss is None:
            self._first_loss = np.abs(loss)
        if not np.isfinite(loss).all():
            raise AlarmError(f"the loss is not finite at iteration {iteration}: {self._too_large()}")
        if (loss > EXPLOSION * np.maximum(self._first_loss, 1.0)).any():
            raise AlarmError(
                f"the loss is {loss.max():.3g} at iteration {iteration}, it was {self._first_loss.max():.3g}: "
                f"{self._too_large()}"
            )

    def _too_large(self) -> str:
        config, smoothness = self._config, self._smoothness
        words = f"lr={config.lr:g} is too large for this problem"
        if smoothness is None:
            return f"{words}; theory asks for at most 1/beta, beta the largest curvature of the loss"
        below = f"{words}; theory: below 1/beta = {1 / smoothness:.3g} to descend at all (beta = {smoothness:.4g})"
        if isinstance(self._graph, Schedule):
            return f"{below}; on a schedule about a third of what is stable on one graph"
        most = largest_step(self._graph, self._weights, config.strategy.name, config.laziness, smoothness)
        return f"{below}, at most {most:.2g} for the guarantee on this network"

    def _consensus(self, iteration: int, consensus: np.ndarray, norm: np.ndarray) -> None:
        if self._first_consensus is None:
            self._first_consensus = consensus
        if (consensus > APART * (norm + self._first_consensus + 1.0)).any():
            raise AlarmError(
                f"the nodes are drifting apart at iteration {iteration}: consensus {consensus.max():.3g}, the model's "
                f"own size {norm.max():.3g}; {self._too_large()}"
            )

    def _residual(self, iteration: int, residual: np.ndarray, scale: np.ndarray) -> None:
        self._largest_scale = np.maximum(self._largest_scale, scale)
        rounding = self._eps * math.sqrt(iteration + 1) * self._largest_scale
        if (residual > ROUNDINGS * rounding).any():
            raise AlarmError(
                f"{self._config.algorithm.kind.invariant} at iteration {iteration}: residual {residual.max():.3g}, "
                f"rounding explains {float(np.max(rounding)):.1g}. A node lost its last gradient or went "
                "back to an older state alone; "
                "start all nodes from one checkpoint, resume=auto"
            )
