"""A stream on a schedule: every exchange has its own partners and its own row, and a step may have several rounds.

    m = W_r ... W_2 W_1 m        r rounds per step; what one round gave is what the next one sends

With the rows of a step's exchanges the sums are those of `Stream`. Narrower wires would need an estimate of what each
partner has heard, one per partner: only full precision travels here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dgt.exchange.network import Network
from dgt.exchange.partners import ScheduledOutbox
from dgt.exchange.streams import Stream, pieces_of
from dgt.exchange.transport import Outbox, Transport


class ScheduledStream(Stream):
    """`every` is how many steps there are from one exchange to the next (local_steps)."""

    outbox: ScheduledOutbox

    def __init__(
        self, network: Network, transport: Transport, kind: str, like: torch.Tensor, inboxes: int, every: int,
        after: Outbox | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network, transport, kind, like, inboxes, after)
        assert network.schedule is not None
        self._network, self._every, self._rounds = network, every, network.schedule.rounds
        self._mixed = torch.empty_like(like) if self._rounds > 1 else None
        self._step = self._exchange = 0

    def claim(self, step: int) -> None:
        self.outbox.claim(step)

    def post(self, step: int) -> None:
        self._step, self._exchange = step, step // self._every
        self._post_round(0)

    def mix(self, out: torch.Tensor) -> None:
        super().mix(out)
        for number in range(1, self._rounds):
            self.outbox.claim(self._step)
            self.outbox.buffer.copy_(out)
            self._post_round(number)
            super().mix(out)

    def mixed_pieces(self, out: torch.Tensor, keep: bool = True) -> Iterator[tuple[slice, torch.Tensor]]:
        if self._rounds == 1:
            return super().mixed_pieces(out, keep)
        self.mix(out)
        return pieces_of(out)

    def add_neighbours(self, out: torch.Tensor, scale: float) -> None:
        """out += scale (W m - w m), w the own share that messages were made with (`Network.own_share`)."""
        if self._mixed is None:
            super().add_neighbours(out, scale)
            return
        out.add_(self._message, alpha=-scale * self._network.own_share(self._exchange))
        self.mix(self._mixed)
        out.add_(self._mixed, alpha=scale)

    def _post_round(self, number: int) -> None:
        turn = self._exchange * self._rounds + number
        self.row = self._network.row_at(turn)
        self._message = self.outbox.buffer
        self._pending = self.outbox.post(self._step, turn)
