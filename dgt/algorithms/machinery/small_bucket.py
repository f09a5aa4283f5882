"""A small model in main memory: all its vectors in one message, and all neighbours in one matrix product.

Here a call costs more than its arithmetic, and numpy's calls cost less than torch's: arrays are views of the same
memory. Only for algorithms that write their update for arrays too (`NeighbourOptimizer.has_array_update`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgt.algorithms.machinery.bucket import Views
from dgt.algorithms.machinery.descent import with_momentum_arrays
from dgt.exchange.transport import Outbox

if TYPE_CHECKING:
    from dgt.algorithms.machinery.neighbours import NeighbourOptimizer


class SmallBucket:
    """Sends and receives within `start`; nothing is ever under way between two steps."""

    under_way = False

    def __init__(self, optimizer: NeighbourOptimizer) -> None:
        theta, row = optimizer.flat.values, optimizer.network.row
        self._optimizer, self.checks_finite, self.part = optimizer, True, slice(0, theta.numel())
        names, self._theta = [message.name for message in optimizer.messages], theta.numpy()
        message = torch.cat([torch.zeros_like(theta)] * len(names))
        self._outbox = optimizer.transport.outbox("both", message, least_inboxes=len(row.neighbours))
        self._gradient, mixed = np.empty_like(self._theta), np.empty(message.numel(), self._theta.dtype)
        shares = [row.own, *(row.neighbours[peer] for peer in optimizer.transport.peers)]
        self._row = np.array(shares, self._theta.dtype)
        self._received = np.empty((len(self._row), message.numel()), self._theta.dtype)
        self._received_flat, self._mixed = self._received.reshape(-1), mixed
        self._mixed_views = Views(**_cut(names, mixed))
        self._messages = [
            [own.numpy(), *(theirs.numpy() for theirs in self._outbox.theirs(turn))]
            for turn, own in enumerate(self._outbox.buffers)
        ]
        vectors = {"theta": self._theta} | {name: vector.numpy() for name, vector in optimizer.vectors.items()}
        self._views = [Views(**vectors, **_cut(names, own)) for own, *_ in self._messages]
        self._checked = [getattr(at, names[0]) for at in self._views]

    def start(self, iteration: int) -> None:
        """A whole exchange: send one message, receive the neighbours', mix."""
        turn, gradient, optimizer = self._outbox.turn, self._read_gradient(), self._optimizer
        messages, at = self._messages[turn], self._views[turn]
        optimizer.compute_message_arrays(at, gradient)
        if self.checks_finite:
            optimizer.refuse_non_finite(float(np.add.reduce(self._checked[turn])))
        pending = self._outbox.post(iteration)
        pending.shared()
        pending.complete()
        np.concatenate(messages, out=self._received_flat)
        self._outbox.release()
        if optimizer.receives_moves:
            np.subtract(self._received, messages[0], out=self._received)
        np.dot(self._row, self._received, out=self._mixed)
        optimizer.receive_arrays(self._mixed_views, at, gradient)

    def _read_gradient(self) -> np.ndarray:
        """The gradients of all parameters, with weight decay and momentum."""
        optimizer, flat = self._optimizer, self._optimizer.flat
        if optimizer.stays_out:
            self._gradient[:] = optimizer.idle_gradient(self._views[0])
            return self._gradient
        try:
            np.concatenate(flat.gradient_arrays(), out=self._gradient)
        except (AttributeError, TypeError):  # one has no gradient, or a sparse one, or another order in memory
            flat.gather_gradients(torch.from_numpy(self._gradient))
        for group, part in zip(optimizer.param_groups, flat.slices, strict=True):
            if group["weight_decay"]:
                self._gradient[part] += group["weight_decay"] * self._theta[part]
            if optimizer.has_momentum:
                self._gradient[part] = with_momentum_arrays(self._gradient[part], self._views[0].u[part], group)
        return self._gradient

    def advance(self) -> None:
        """Received within `start`."""

    def ask(self) -> None:
        """Received within `start`."""

    def receive_parameters(self) -> None:
        """Received within `start`."""

    def post_rest(self) -> None:
        """Sent within `start`."""

    def receive_all(self) -> None:
        """Received within `start`."""

    def local_step(self) -> None:
        checked = self._optimizer.local_step_arrays(self._views[0], self._read_gradient())
        self._optimizer.refuse_non_finite(float(checked.sum()))

    def outboxes(self) -> list[Outbox]:
        return [self._outbox]

    def state(self) -> dict[str, torch.Tensor]:
        return {}


def _cut(names: Sequence[str], message: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(names, np.split(message, len(names)), strict=True))
