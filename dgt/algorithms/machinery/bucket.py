"""Gradient tracking for one stretch of the parameters: the whole model, or a bucket of it.

Between two steps a node keeps theta and B = g - W y / G_ii; then y' = G_ii (g' - B). Neighbours aside, the next B is
(1 - W_ii) g' + W_ii B, a mean of the two. A step passes over parameter-sized memory 2 degree + 10 times: B, g and
theta are read, y, z and B written; z and the neighbours' z read, theta written; B read and written, the neighbours' y
read. Work goes piece by piece, so that what is read twice is still in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer
from dgt.exchange.flat import Piece
from dgt.exchange.streams import PIECE, CompressedStream, Stream
from dgt.exchange.transport import Outbox


class Bucket(Protocol):
    """The steps of the algorithm, in the order they are called."""

    part: slice
    looks: bool
    """Whether to look for numbers that are not finite before anything is sent; off only to measure what it costs."""

    @property
    def under_way(self) -> bool:
        """Whether new parameters are still to be taken."""

    def start(self, iteration: int) -> None:
        """Steps 1 and 2: y = G (g - B) and z = theta - alpha y, which is sent to the neighbours."""

    def take_parameters(self) -> None:
        """Step 3, if z is under way: theta = W z; and y is sent."""

    def take_tracker(self) -> None:
        """Step 4, if y is under way: B = g - W y / G."""

    def local_step(self) -> None:
        """A step without exchange: theta = theta - alpha G (g - B). With W = I, B stays as it is."""

    def state(self) -> dict[str, torch.Tensor]:
        """What the streams keep between steps."""

    def outboxes(self) -> list[Outbox]:
        """Where its messages leave."""


class LargeBucket:
    """z and y in a stream each, so that y travels while the next gradient is computed."""

    def __init__(
        self, optimizer: DecentralizedOptimizer, rest: torch.Tensor, part: slice, wire: torch.dtype | None
    ) -> None:
        self.part, self._optimizer, self.looks = part, optimizer, True
        self._theta, self._rest = optimizer.flat.values, rest
        network, transport, like = optimizer.network, optimizer.transport, self._theta[part]
        if wire is None:
            self._z = Stream(network, transport, "parameters", like)
            self._y = Stream(network, transport, "tracker", like, inboxes=1)
        else:
            self._z = CompressedStream(network, transport, "parameters", like, 2, wire)
            self._y = CompressedStream(network, transport, "tracker", like, 1, wire)
        self._on_cpu = like.device.type == "cpu"
        cut = PIECE if self._on_cpu else like.numel()
        self._pieces = optimizer.flat.pieces(cut, part)
        self._versions: list[int] = []
        self._views: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self._scratch = torch.empty(min(cut, like.numel()), dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def start(self, iteration: int) -> None:
        """y = G (g - B),  z = theta - alpha y,  B = W_ii B + (1 - W_ii) g."""
        self.take_parameters()
        self.take_tracker()
        network, total = self._optimizer.network, 0.0
        for piece, gradient, (y, z, rest, theta) in self._with_gradients(self._z.buffer, self._y.buffer):
            torch.sub(gradient, rest, out=y)
            if network.gradient_scale != 1:
                y.mul_(network.gradient_scale)
            torch.lerp(rest, gradient.to(rest.dtype), 1 - network.row.own, out=rest)
            torch.add(theta, y, alpha=-self._lr(piece), out=z)
            if self._on_cpu and self.looks:
                total += float(z.sum())  # while it is in the cache; z is finite only if theta, g and B are
        if self.looks:
            self._optimizer.refuse_non_finite(total if self._on_cpu else float(self._z.buffer.sum()))
        self._z.post(iteration)
        self._iteration, self._versions = iteration, self._optimizer.flat.versions(self.part)

    @property
    def under_way(self) -> bool:
        return self._z.under_way

    @torch.no_grad()
    def take_parameters(self) -> None:
        if self._z.under_way:
            self._optimizer.flat.refuse_changed(self.part, self._versions)
            self._z.mix(self._theta[self.part])
            self._optimizer.flat.write_parameters(self.part)
            # y follows when z is there: on a slow way it would only hold z up
            self._y.post(self._iteration)

    @torch.no_grad()
    def take_tracker(self) -> None:
        """B -= sum_j W_ij y_j / G_ii."""
        if self._y.under_way:
            self._y.add_neighbours(self._rest[self.part], -1 / self._optimizer.network.gradient_scale)

    @torch.no_grad()
    def local_step(self) -> None:
        self.take_parameters()
        self.take_tracker()
        scale, total = self._optimizer.network.gradient_scale, torch.zeros((), device=self._theta.device)
        for piece, gradient, (_, _, rest, theta) in self._with_gradients(self._z.buffer, self._y.buffer):
            descent = torch.sub(gradient, rest, out=self._scratch[: rest.numel()])
            total += descent.sum()
            theta.add_(descent, alpha=-scale * self._lr(piece))
        self._optimizer.refuse_non_finite(float(total))

    def _with_gradients(
        self, z: torch.Tensor, y: torch.Tensor
    ) -> Iterator[tuple[Piece, torch.Tensor, tuple[torch.Tensor, ...]]]:
        """Every piece, its gradient with weight decay, and its views of y, z, B and theta."""
        for piece, views in zip(self._pieces, self._cut(z, y), strict=True):
            if self._optimizer.stays_out:
                yield piece, views[2], views  # B, so that y = 0
                continue
            gradient = piece.gradient(self._scratch)
            decay = self._optimizer.param_groups[piece.group]["weight_decay"]
            if decay:
                theta = views[-1]
                gradient = torch.add(gradient, theta, alpha=decay, out=self._scratch[: theta.numel()])
            yield piece, gradient, views

    def _cut(self, z: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """y, z, B and theta of every piece; made once per buffer, because cutting takes as long as adding."""
        views = self._views.get(z.data_ptr())
        if views is None:
            lengths = [piece.place.stop - piece.place.start for piece in self._pieces]
            vectors = (y, z, self._rest[self.part], self._theta[self.part])
            views = list(zip(*(vector.split(lengths) for vector in vectors), strict=True))
            self._views[z.data_ptr()] = views
        return views

    def _lr(self, piece: Piece) -> float:
        return float(self._optimizer.param_groups[piece.group]["lr"])

    def outboxes(self) -> list[Outbox]:
        return [self._z.outbox, self._y.outbox]

    def state(self) -> dict[str, torch.Tensor]:
        streams = {"z": self._z, "y": self._y}
        return {f"{name}_{key}": value for name, stream in streams.items() for key, value in stream.state().items()}


class SmallBucket:
    """z and y in one message, and all neighbours in one product: for small models in main memory.

    Here a call costs more than its arithmetic, and numpy's calls cost less than torch's: arrays are views of the
    same memory.
    """

    def __init__(self, optimizer: DecentralizedOptimizer, rest: torch.Tensor) -> None:
        self._optimizer, self._scale = optimizer, optimizer.network.gradient_scale
        size, row = rest.numel(), optimizer.network.row
        self.part, self.under_way, self.looks = slice(0, size), False, True
        self._both = optimizer.transport.outbox("both", torch.cat([rest, rest]), inboxes=len(row.neighbours))
        self._theta, self._rest = optimizer.flat.values.numpy(), rest.numpy()
        self._gradient, self._mixed = np.empty_like(self._rest), np.concatenate([self._rest, self._rest])
        self._row = np.array([row.own, *(row.neighbours[peer] for peer in optimizer.transport.peers)], self._rest.dtype)
        self._heard = np.empty((len(self._row), 2 * size), self._rest.dtype)
        self._heard_in_a_row = self._heard.reshape(-1)
        self._mixed_z, self._mixed_y = self._mixed[:size], self._mixed[size:]
        self._messages = [
            [own.numpy(), *(theirs.numpy() for theirs in self._both.theirs(turn))]
            for turn, own in enumerate(self._both.buffers)
        ]

    def start(self, iteration: int) -> None:
        """One message there, all messages back; theta = W z and B = g - W y / G."""
        messages, size, gradient = self._messages[self._both.turn], self.part.stop, self._read_gradient()
        z, y = messages[0][:size], messages[0][size:]
        np.subtract(gradient, self._rest, out=y)
        if self._scale != 1:
            y *= self._scale
        self._descend(y, out=z)
        if self.looks:
            self._optimizer.refuse_non_finite(float(np.add.reduce(z)))
        pending = self._both.post(iteration)
        pending.shared()
        pending.complete()
        np.concatenate(messages, out=self._heard_in_a_row)
        np.dot(self._row, self._heard, out=self._mixed)
        self._theta[:] = self._mixed_z
        if self._scale != 1:
            self._mixed_y /= self._scale
        np.subtract(gradient, self._mixed_y, out=self._rest)

    def _read_gradient(self) -> np.ndarray:
        """The gradients of all parameters, weight decay included."""
        flat, groups = self._optimizer.flat, self._optimizer.param_groups
        if self._optimizer.stays_out:
            self._gradient[:] = self._rest  # B, so that y = 0
            return self._gradient
        try:
            parts = [parameter.grad.numpy().reshape(-1) for parameter in flat.parameters]  # type: ignore[union-attr]
            np.concatenate(parts, out=self._gradient)
        except (AttributeError, TypeError):  # one has no gradient, or a sparse one
            flat.gather_gradients(torch.from_numpy(self._gradient))
        for group, part in zip(groups, flat.slices, strict=True):
            if group["weight_decay"]:
                self._gradient[part] += group["weight_decay"] * self._theta[part]
        return self._gradient

    def _descend(self, direction: np.ndarray, out: np.ndarray) -> None:
        """out = theta - alpha direction, with each group's own alpha."""
        groups = self._optimizer.param_groups
        if len(groups) == 1:
            np.multiply(direction, -float(groups[0]["lr"]), out=out)
        else:
            for group, part in zip(groups, self._optimizer.flat.slices, strict=True):
                np.multiply(direction[part], -float(group["lr"]), out=out[part])
        out += self._theta

    def take_parameters(self) -> None:
        """Taken at once."""

    def take_tracker(self) -> None:
        """Taken at once."""

    def local_step(self) -> None:
        direction = self._scale * (self._read_gradient() - self._rest)
        self._optimizer.refuse_non_finite(float(direction.sum()))
        self._descend(direction, out=direction)
        self._theta[:] = direction

    def outboxes(self) -> list[Outbox]:
        return [self._both]

    def state(self) -> dict[str, torch.Tensor]:
        return {}
