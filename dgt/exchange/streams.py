"""A stream: one vector per node, mixed with the neighbours' step after step.

    m = stream.buffer                    # write this step's vector here
    stream.post(step)                    # on its way; returns at once
    stream.mix(out)                      # out = W_ii m_i + sum_j W_ij m_j, as the neighbours' vectors arrive

`CompressedStream` sends fewer bits (`codecs.py`). It sends the rounded change q = Q(m - e) of an estimate e of m that
all neighbours keep up with (e' = e + q), and mixes

    out_i = m_i + sum_j W_ij e'_j - e'_i

What rounding left out of q is part of the next change (error feedback), so nothing is lost for good, and the
error goes to zero with the changes. Whatever Q does, sum_i pi_i out_i = sum_i pi_i m_i holds exactly: pi W = pi.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dgt.exchange.codecs import PIECE, Codec
from dgt.exchange.network import Network
from dgt.exchange.transport import Pending, Transport


class Stream:
    """Vectors like `like`, sent as they are."""

    def __init__(self, network: Network, transport: Transport, kind: str, like: torch.Tensor, inboxes: int = 2) -> None:
        self.row = network.row
        self.outbox = transport.outbox(kind, like, inboxes)
        self._message = self.outbox.buffer
        self._pending: Pending | None = None

    @property
    def buffer(self) -> torch.Tensor:
        """Where the next vector is written."""
        return self.outbox.buffer

    @property
    def under_way(self) -> bool:
        """Whether a vector was posted and its mixture not yet taken."""
        return self._pending is not None

    def post(self, step: int) -> None:
        """Send what is in `buffer`."""
        self._message = self.outbox.buffer
        self._pending = self.outbox.post(step)

    def mix(self, out: torch.Tensor) -> None:
        """out = W_ii m_i + sum_j W_ij m_j, as a running mean: a row sums to 1, so every step is one lerp."""
        assert self._pending is not None
        mean, total = self._message, self.row.own
        for run in self._pending.in_order():
            shares = []
            for peer, _ in run:
                total += self.row.neighbours[peer]
                shares.append(self.row.neighbours[peer] / total)
            for result, part, *heard in _in_pieces(out, mean, *(theirs.to(out.device) for _, theirs in run)):
                for theirs, share in zip(heard, shares, strict=True):
                    part = torch.lerp(part, theirs, share, out=result)
            mean = out
        if mean is not out:
            out.copy_(mean)  # a network of one node
        self._finish()

    def add_neighbours(self, out: torch.Tensor, scale: float) -> None:
        """out += scale sum_j W_ij m_j: the mixture without this node's own part."""
        assert self._pending is not None
        for run in self._pending.in_order():
            for result, *heard in _in_pieces(out, *(theirs.to(out.device) for _, theirs in run)):
                for theirs, (peer, _) in zip(heard, run, strict=True):
                    result.add_(theirs, alpha=scale * self.row.neighbours[peer])
        self._finish()

    def state(self) -> dict[str, torch.Tensor]:
        """What the next step needs besides the vector itself."""
        return {}

    def _finish(self) -> None:
        assert self._pending is not None
        self._pending.finish()
        self._pending = None


class CompressedStream(Stream):
    """Changes in few bits on the way; sums are kept in the vector's own dtype."""

    def __init__(
        self, network: Network, transport: Transport, kind: str, like: torch.Tensor, inboxes: int, codec: Codec,
        every: int = 1,
    ) -> None:  # fmt: skip
        """every: steps from one exchange to the next, by which exchanges are counted."""
        super().__init__(network, transport, kind, codec.empty, inboxes)
        self._codec, self._every = codec, every
        # as long as whole blocks; what is behind the vector's end stays zero
        filled = [torch.zeros(codec.numbers, dtype=like.dtype, device=like.device) for _ in range(3)]
        self._vector, self._estimate, self._mixed_estimate = (each[: like.numel()] for each in filled)
        """m, e_i and sum_j W_ij e_j, this node included."""
        self._pieces = list(zip(*(each.split(codec.piece) for each in filled), strict=True))
        self._scratch = like.new_empty(min(codec.piece, codec.numbers))
        self._parts: dict[int, list[Any]] = {}

    @property
    def buffer(self) -> torch.Tensor:
        return self._vector

    def post(self, step: int) -> None:
        """q = Q(m - e),  e += q,  sum_j W_ij e_j += W_ii q, while a piece is in the cache."""
        codec, number, first = self._codec, step // self._every, 0
        for (vector, estimate, mixed), part in zip(self._pieces, self._cut(self.outbox.buffer), strict=True):
            difference = torch.sub(vector, estimate, out=self._scratch[: vector.numel()])
            change = codec.encode(difference, part, number, first)
            codec.add(estimate, change, 1.0)
            codec.add(mixed, change, self.row.own)
            first += codec.piece
        super().post(step)

    def mix(self, out: torch.Tensor) -> None:
        self._take_changes()
        for result, mixed, estimate, vector in _in_pieces(out, self._mixed_estimate, self._estimate, self._vector):
            torch.sub(mixed, estimate, out=result).add_(vector)

    def add_neighbours(self, out: torch.Tensor, scale: float) -> None:
        self._take_changes()
        for result, mixed, estimate, vector in _in_pieces(out, self._mixed_estimate, self._estimate, self._vector):
            result.add_(vector, alpha=scale * (1 - self.row.own))
            result.add_(mixed, alpha=scale).sub_(estimate, alpha=scale)

    def _take_changes(self) -> None:
        """sum_j W_ij e_j += sum_j W_ij q_j."""
        assert self._pending is not None
        codec = self._codec
        for run in self._pending.in_order():
            shares = [self.row.neighbours[peer] for peer, _ in run]
            messages = [self._cut(theirs.to(self._vector.device)) for _, theirs in run]
            for (_, _, mixed), *parts in zip(self._pieces, *messages, strict=True):
                for part, share in zip(parts, shares, strict=True):
                    codec.add(mixed, codec.decode(part), share)
        self._finish()

    def _cut(self, message: torch.Tensor) -> list[Any]:
        """The parts of a message. In main memory messages come in the same few buffers, and cutting takes its time."""
        if message.device.type != "cpu":
            return self._codec.cut(message)
        place = message.data_ptr()
        if place not in self._parts:
            self._parts[place] = self._codec.cut(message)
        return self._parts[place]

    def state(self) -> dict[str, torch.Tensor]:
        return {"estimate": self._estimate, "mixed_estimate": self._mixed_estimate}


def _in_pieces(*vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Piece by piece on a CPU, so that a result stays in the cache while all neighbours are added to it."""
    length = PIECE if vectors[0].device.type == "cpu" else max(vectors[0].numel(), 1)
    return zip(*(vector.split(length) for vector in vectors), strict=True)
