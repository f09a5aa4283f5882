"""A stream: one vector per node, mixed with the neighbours' step after step.

    m = stream.buffer                    # write this step's vector here
    stream.post(step)                    # on its way; returns at once
    stream.mix(out)                      # out = W_ii m_i + sum_j W_ij m_j, as the neighbours' vectors arrive
    stream.mix_and_keep(out, s, scale)   # the same, and s += scale (m - W m)

`CompressedStream` sends fewer bits (`codecs.py`). It sends the rounded change q = Q(m - e) of an estimate e of m that
all neighbours keep up with (e' = e + q), and mixes

    out_i = m_i + sum_j W_ij e'_j - e'_i

What rounding left out of q is part of the next change (error feedback), so nothing is lost for good, and the
error goes to zero with the changes. Whatever Q does, sum_i pi_i out_i = sum_i pi_i m_i holds exactly: pi W = pi.

Estimates are sums of all changes since the start. An error of such a sum stays, and trackers add it up once more at
every step, so these sums are float64, whatever the model is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dgt.exchange.codecs import PIECE, Codec
from dgt.exchange.network import Network
from dgt.exchange.pending import Pending
from dgt.exchange.transport import Outbox, Transport

LONG_PIECE = 1 << 19  # numbers worked on at a time, so that a result is still in the cache when it is read
Move = tuple[slice, torch.Tensor, float]  # a piece, d, and the share by which d is sum_j W_ij (m_j - m_i) there


class Stream:
    """Vectors like `like`, sent as they are."""

    def __init__(
        self, network: Network, transport: Transport, kind: str, like: torch.Tensor, inboxes: int = 2,
        after: Outbox | None = None,
    ) -> None:  # fmt: skip
        """after: as of `Transport.outbox`."""
        self.row = network.row
        self.outbox = transport.outbox(kind, like, inboxes, after)
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

    def ask(self) -> None:
        """Wait until the neighbours' vectors are there; with nccl all that were posted before are there too."""
        if self._pending is not None:
            self._pending.ask()

    def claim(self, step: int) -> None:
        """Before `buffer` is written: wait for whoever still reads it, as may be on a schedule."""

    def post(self, step: int) -> None:
        """Send what is in `buffer`."""
        self._message = self.outbox.buffer
        self._pending = self.outbox.post(step)

    def mix(self, out: torch.Tensor) -> None:
        """out = W_ii m_i + sum_j W_ij m_j, as a running mean: a row sums to 1, so every step is one lerp."""
        for piece, mixed in self._mix_pieces(out, keep=True):
            if mixed.data_ptr() != out[piece].data_ptr():  # a network of one node, or no partner now
                out[piece].copy_(mixed)

    def mixed_pieces(self, out: torch.Tensor, keep: bool = True) -> Iterator[tuple[slice, torch.Tensor]]:
        """Stretches of the same, each while it is in the cache; where `keep` is not asked for, it holds until the next.

        out  room for all of it
        """
        return self._mix_pieces(out, keep)

    def _mix_pieces(self, out: torch.Tensor, keep: bool) -> Iterator[tuple[slice, torch.Tensor]]:
        assert self._pending is not None
        mean, total, missing = self._message, self.row.own, len(self.row.neighbours)
        if not missing:
            yield slice(0, mean.numel()), mean
        for run in self._pending.in_order():
            shares, missing, is_only = [], missing - len(run), mean is self._message and missing == len(run)
            for peer, _ in run:
                total += self.row.neighbours[peer]
                shares.append(self.row.neighbours[peer] / total)
            stop = 0
            for result, part, *heard in _in_pieces(out, mean, *(theirs.to(out.device) for _, theirs in run)):
                start, stop = stop, stop + result.numel()
                if is_only and not keep:
                    result = out[: result.numel()]
                for theirs, share in zip(heard, shares, strict=True):
                    part = torch.lerp(part, theirs, share, out=result)
                if not missing:
                    yield slice(start, stop), part
            mean = out
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
            for part, change, share in moves:
                torch.add(self._own[part] if first else out[part], change, alpha=share, out=out[part])
                kept[part].add_(change, alpha=-scale * share)
            first = False
        if first:
            out.copy_(self._own)  # a network of one node

    def difference(self, out: torch.Tensor) -> None:
        """out = m - W m, added up from differences."""
        first = True
        for moves in self._moves():
            for part, change, share in moves:
                if first:
                    torch.mul(change, -share, out=out[part])
                else:
                    out[part].add_(change, alpha=-share)
            first = False
        if first:
            out.zero_()

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
        own, whole = self._own, heard[0][1]
        if own.is_cuda:  # in the inboxes' own memory
            for theirs, share in heard:
                yield slice(0, own.numel()), theirs.sub_(own), share
            return
        rooms = self._rooms(2)
        for part in _parts(own):
            change, one = (room[: part.stop - part.start] for room in rooms)
            for place, (theirs, share) in enumerate(heard):
                if place:
                    change.add_(torch.sub(theirs[part], own[part], out=one), alpha=share / whole)
                else:
                    torch.sub(theirs[part], own[part], out=change)
            yield part, change, whole

    def _rooms(self, count: int) -> list[torch.Tensor]:
        """Vectors of the length of a piece, made when they are first asked for."""
        own = self._own
        while len(self._room) < count:
            self._room.append(torch.empty_like(own[:PIECE]))
        return self._room

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
        every: int = 1, after: Outbox | None = None, room: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """every: steps from one exchange to the next, by which exchanges are counted; room: as of `codecs.codec`."""
        super().__init__(network, transport, kind, codec.empty(), inboxes, after)
        self._codec, self._every, length = codec, every, like.numel()
        # as long as whole blocks; what is behind the vector's end stays zero
        dtypes = like.dtype, torch.float64, torch.float64
        filled = [torch.zeros(codec.numbers, dtype=dtype, device=like.device) for dtype in dtypes]
        own = [each[:length] for each in filled]
        self._vector, self._estimate, self._heard = own
        """m, e_i and sum_j W_ij e_j of the neighbours."""
        self._filled = list(zip(*map(codec.split, filled), strict=True))
        self._pieces = list(zip(*(each.split(codec.piece) for each in own), strict=True))
        self._scratch = like.new_empty(min(codec.piece, codec.numbers)) if room is None else room
        self._parts: dict[int, Sequence[Any]] = {}

    @property
    def buffer(self) -> torch.Tensor:
        return self._vector

    def post(self, step: int) -> None:
        """q = Q(m - e),  e += q."""
        exchange, parts = step // self._every, self._cut(self.outbox.buffer)
        for number, ((vector, estimate, _), part) in enumerate(zip(self._filled, parts, strict=True)):
            self._codec.send(vector, estimate, part, number, exchange)
        super().post(step)

    def mix(self, out: torch.Tensor) -> None:
        for result, vector, estimate, heard in self._complete(out):
            torch.add(heard, estimate, alpha=self.row.own - 1, out=result).add_(vector)

    def mixed_pieces(self, out: torch.Tensor, keep: bool = True) -> Iterator[tuple[slice, torch.Tensor]]:
        self.mix(out)
        return pieces_of(out)

    def add_neighbours(self, out: torch.Tensor, scale: float) -> None:
        for result, vector, estimate, heard in self._complete(out):
            rest = torch.sub(vector, estimate, out=self._scratch[: result.numel()])
            result.add_(heard, alpha=scale).add_(rest, alpha=scale * (1 - self.row.own))

    @property
    def _own(self) -> torch.Tensor:
        return self._vector

    def _moves(self) -> Iterator[Iterator[Move]]:
        """W e - e, piece by piece, once all changes are there."""
        yield self._moves_of_estimates()

    def _moves_of_estimates(self) -> Iterator[Move]:
        stop = 0
        for _, vector, estimate, heard in self._complete(self._vector):
            start, stop = stop, stop + vector.numel()
            change = self._scratch[: vector.numel()]
            yield slice(start, stop), torch.add(heard, estimate, alpha=self.row.own - 1, out=change), 1.0

    def _complete(self, out: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """sum_j W_ij e_j += sum_j W_ij q_j; each piece of out, m, e_i and that sum, once the sum is complete."""
        assert self._pending is not None
        codec, waiting = self._codec, len(self.row.neighbours)
        results = list(zip(out.split(codec.piece), self._pieces, strict=True))
        for run in self._pending.in_order():
            waiting -= len(run)
            shares = [self.row.neighbours[peer] for peer, _ in run]
            messages = [self._cut(theirs.to(self._vector.device)) for _, theirs in run]
            for (result, pieces), (_, _, heard), *parts in zip(results, self._filled, *messages, strict=True):
                for part, share in zip(parts, shares, strict=True):
                    codec.add(heard, part, share)
                if not waiting:
                    yield (result, *pieces)
        if not self.row.neighbours:
            yield from ((result, *pieces) for result, pieces in results)
        self._finish()

    def _cut(self, message: torch.Tensor) -> Sequence[Any]:
        """The parts of a message. In main memory messages come in the same few buffers, and cutting takes its time."""
        if message.device.type != "cpu":
            return self._codec.cut(message)
        place = message.data_ptr()
        if place not in self._parts:
            self._parts[place] = self._codec.cut(message)
        return self._parts[place]

    def state(self) -> dict[str, torch.Tensor]:
        return {"estimate": self._estimate, "neighbours_estimate": self._heard}


def pieces_of(vector: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Its pieces, and where they are."""
    stop = 0
    for (piece,) in _in_pieces(vector):
        start, stop = stop, stop + piece.numel()
        yield slice(start, stop), piece


def _parts(like: torch.Tensor) -> Iterator[slice]:
    """The stretches that `_in_pieces` cuts a vector into."""
    length = PIECE if like.device.type == "cpu" else max(like.numel(), 1)
    for start in range(0, like.numel(), length):
        yield slice(start, min(start + length, like.numel()))


def _in_pieces(*vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Piece by piece on a CPU, so that a result stays in the cache while all neighbours are added to it."""
    length = LONG_PIECE if vectors[0].device.type == "cpu" else max(vectors[0].numel(), 1)
    return zip(*(vector.split(length) for vector in vectors), strict=True)
