"""A stream: one vector per node, mixed with the neighbours' step after step.

    m = stream.buffer                    # write this step's vector here
    stream.post(step)                    # on its way; returns at once
    stream.mix(out)                      # out = W_ii m_i + sum_j W_ij m_j, as the neighbours' vectors arrive
    stream.mix_and_keep(out, s, scale)   # the same, and s += scale (m - W m)

`CompressedStream` sends fewer bits. It sends the rounded change q = Q(m - e) of an estimate e of m that all neighbours
keep up with (e' = e + q), and mixes

    out_i = m_i + sum_j W_ij e'_j - e'_i

What rounding left out of q is part of the next change (error feedback), so nothing is lost for good, and the
error goes to zero with the changes. Whatever Q does, sum_i pi_i out_i = sum_i pi_i m_i holds exactly: pi W = pi.

Estimates are sums of all changes since the start. An error of such a sum stays, and trackers add it up once more at
every step, so these sums are float64, whatever the model is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dgt.exchange.network import Network
from dgt.exchange.transport import Pending, Transport

PIECE = 1 << 17  # numbers worked on at a time, so that they stay in the cache
Move = tuple[slice, torch.Tensor]  # a piece, and sum_j W_ij (m_j - m_i) there


class Stream:
    """Vectors like `like`, sent as they are."""

    def __init__(self, network: Network, transport: Transport, kind: str, like: torch.Tensor, inboxes: int = 2) -> None:
        self.row = network.row
        self.outbox = transport.outbox(kind, like, inboxes)
        self._message = self.outbox.buffer
        self._pending: Pending | None = None
        self._room: list[torch.Tensor] = []  # for the pieces of `_moves`

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

    def mix_and_keep(self, out: torch.Tensor, kept: torch.Tensor, scale: float) -> None:
        """out = W m, and kept += scale (m - W m).

        W m - m is added up from differences m_j - m_i: what is kept for good has their rounding errors, not m's.
        """
        first = True
        for moves in self._moves():
            for part, change in moves:
                torch.add(self._own[part] if first else out[part], change, out=out[part])
                kept[part].add_(change, alpha=-scale)
            first = False
        if first:
            out.copy_(self._own)  # a network of one node

    def difference(self, out: torch.Tensor) -> None:
        """out = m - W m, added up from differences."""
        out.zero_()
        for moves in self._moves():
            for part, change in moves:
                out[part].sub_(change)

    @property
    def _own(self) -> torch.Tensor:
        """m, as it is here."""
        return self._message

    def _moves(self) -> Iterator[Iterator[Move]]:
        """sum_j W_ij (m_j - m_i) over those neighbours whose vectors have come in together, piece by piece."""
        assert self._pending is not None
        for run in self._pending.in_order():
            yield self._moves_of([(theirs.to(self._own.device), self.row.neighbours[peer]) for peer, theirs in run])
        self._finish()

    def _moves_of(self, heard: Sequence[tuple[torch.Tensor, float]]) -> Iterator[Move]:
        own, rooms = self._own, self._rooms(2)
        for part in _parts(own):
            change, one = (room[: part.stop - part.start] for room in rooms)
            for place, (theirs, share) in enumerate(heard):
                if place:
                    change.add_(torch.sub(theirs[part], own[part], out=one), alpha=share)
                else:
                    torch.sub(theirs[part], own[part], out=change).mul_(share)
            yield part, change

    def _rooms(self, count: int) -> list[torch.Tensor]:
        """Vectors of the length of a piece, made when they are first asked for."""
        own = self._own
        while len(self._room) < count:
            self._room.append(torch.empty_like(own[:PIECE] if own.device.type == "cpu" else own))
        return self._room

    def state(self) -> dict[str, torch.Tensor]:
        """What the next step needs besides the vector itself."""
        return {}

    def _finish(self) -> None:
        assert self._pending is not None
        self._pending.finish()
        self._pending = None


class CompressedStream(Stream):
    """Vectors rounded to a narrower dtype on the way; sums are kept in the vector's own."""

    def __init__(
        self,
        network: Network,
        transport: Transport,
        kind: str,
        like: torch.Tensor,
        inboxes: int,
        wire: torch.dtype,
    ) -> None:
        super().__init__(network, transport, kind, torch.empty_like(like, dtype=wire), inboxes)
        self._vector = torch.zeros_like(like)  # m
        self._estimate = torch.zeros_like(like, dtype=torch.float64)  # e_i
        self._mixed_estimate = torch.zeros_like(self._estimate)  # sum_j W_ij e_j, this node included
        self._largest = torch.finfo(wire).max
        self._scratch = torch.empty_like(like[:PIECE] if like.device.type == "cpu" else like)

    @property
    def buffer(self) -> torch.Tensor:
        return self._vector

    def post(self, step: int) -> None:
        for vector, estimate, change in _in_pieces(self._vector, self._estimate, self.outbox.buffer):
            # what does not fit follows with the next change
            difference = torch.sub(vector, estimate, out=self._scratch[: vector.numel()])
            change.copy_(difference.clamp_(-self._largest, self._largest))
            estimate.add_(self._wide(change))
        super().post(step)

    def mix(self, out: torch.Tensor) -> None:
        self._take_changes()
        for result, mixed, estimate, vector in _in_pieces(out, self._mixed_estimate, self._estimate, self._vector):
            torch.sub(mixed, estimate, out=result).add_(vector)

    def add_neighbours(self, out: torch.Tensor, scale: float) -> None:
        self._take_changes()
        for result, mixed, estimate, vector in _in_pieces(out, self._mixed_estimate, self._estimate, self._vector):
            result.add_(vector, alpha=scale * (1 - self.row.own))
            result.add_(torch.sub(mixed, estimate, out=self._scratch[: result.numel()]), alpha=scale)

    @property
    def _own(self) -> torch.Tensor:
        return self._vector

    def _moves(self) -> Iterator[Iterator[Move]]:
        """W e - e, piece by piece, once all changes are there."""
        self._take_changes()
        yield (
            (
                part,
                torch.sub(
                    self._mixed_estimate[part], self._estimate[part], out=self._scratch[: part.stop - part.start]
                ),
            )
            for part in _parts(self._vector)
        )

    def _take_changes(self) -> None:
        """sum_j W_ij e_j += sum_j W_ij q_j, this node included."""
        assert self._pending is not None
        heard = [(self.row.own, self._message)]
        for run in self._pending.in_order():
            heard += [(self.row.neighbours[peer], theirs.to(self._vector.device)) for peer, theirs in run]
            self._add(heard)
            heard = []
        self._add(heard)
        self._finish()

    def _add(self, heard: list[tuple[float, torch.Tensor]]) -> None:
        for mixed, *changes in _in_pieces(self._mixed_estimate, *(change for _, change in heard)):
            for change, (share, _) in zip(changes, heard, strict=True):
                mixed.add_(self._wide(change), alpha=share)

    def _wide(self, change: torch.Tensor) -> torch.Tensor:
        """In the vector's own dtype; torch would make a new tensor of it at every sum of two dtypes."""
        return self._scratch[: change.numel()].copy_(change)

    def state(self) -> dict[str, torch.Tensor]:
        return {"estimate": self._estimate, "mixed_estimate": self._mixed_estimate}


def _parts(like: torch.Tensor) -> Iterator[slice]:
    """The stretches that `_in_pieces` cuts a vector into."""
    length = PIECE if like.device.type == "cpu" else max(like.numel(), 1)
    for start in range(0, like.numel(), length):
        yield slice(start, min(start + length, like.numel()))


def _in_pieces(*vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Piece by piece on a CPU, so that a result stays in the cache while all neighbours are added to it."""
    length = PIECE if vectors[0].device.type == "cpu" else max(vectors[0].numel(), 1)
    return zip(*(vector.split(length) for vector in vectors), strict=True)
