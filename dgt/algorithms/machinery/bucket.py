"""One stretch of the parameters, the whole model or a bucket of it, and the exchange of its vectors in streams.

A step of a bucket, for an algorithm whose messages are z (needed at once) and y (needed after the next gradient):

    start                z and y computed from the gradient, piece by piece; z is sent
    receive_parameters   the neighbours' z received, new parameters; y is sent
    receive_all          the neighbours' y received

What is computed and what is done with a received vector is the algorithm's (`neighbours.NeighbourOptimizer`). Pieces
are short enough to stay in the cache, so that what is read twice comes from memory once.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from dgt.algorithms.machinery.descent import with_momentum
from dgt.exchange.codecs import PIECE, codec
from dgt.exchange.flat import Piece
from dgt.exchange.scheduled_stream import ScheduledStream
from dgt.exchange.streams import CompressedStream, Stream
from dgt.exchange.transport import Outbox

if TYPE_CHECKING:
    from dgt.algorithms.machinery.neighbours import NeighbourOptimizer


@dataclass(frozen=True, slots=True)
class Message:
    """One vector that is sent to all neighbours at every exchange.

    name            its name in the equations, under which the update finds its memory
    kind            what errors call it; lr and weight decay are compared with the neighbours' on "parameters"
    needed_at_once  received before the step ends (with buckets: before the next forward), else after the next gradient
    sent_with_previous   leaves together with the message before it, not made of what neighbours say in that one
    """

    name: str
    kind: str
    needed_at_once: bool = True
    sent_with_previous: bool = False


class Views(types.SimpleNamespace):
    """The same stretch of several vectors: `theta`, each message and each state vector by its name.

    A piece has `scratch` of its length too; a bucket has `part`, its place among all parameters, and `groups`, the
    parameter groups that its messages were made with, where they may have changed since.
    """


class Bucket(Protocol):
    """The steps of an exchange, in the order they are called."""

    part: slice
    """Which of the parameters."""
    checks_finite: bool
    """Whether numbers that are not finite are refused before anything is sent; off only to measure what it costs."""

    @property
    def under_way(self) -> bool:
        """Whether new parameters are still to be received."""

    def start(self, iteration: int) -> None:
        """Compute the messages from the gradient and send the first."""

    def advance(self) -> None:
        """Send all messages that are needed at once, receiving those that they are made of."""

    def ask(self) -> None:
        """With nccl, wait until the message that it sent last is there, and so all that were sent before."""

    def receive_parameters(self) -> None:
        """Receive the messages that are needed at once, if they are under way: the parameters are new after it."""

    def post_rest(self) -> None:
        """Send what is made of this node's gradient alone, at the end of a step whose parameters come later."""

    def receive_all(self) -> None:
        """Receive every message that is under way."""

    def local_step(self) -> None:
        """A step without exchange."""

    def state(self) -> dict[str, torch.Tensor]:
        """What the streams keep between steps."""

    def outboxes(self) -> list[Outbox]:
        """Where its messages leave."""


class StreamBucket:
    """A stream per message, so that each travels as long as it may."""

    def __init__(self, optimizer: NeighbourOptimizer, part: slice, wire: str) -> None:
        self.part, self._optimizer, self.checks_finite = part, optimizer, True
        like = optimizer.flat.values[part]
        self._on_gpu = like.device.type != "cpu"
        self._exceeds_cache = not self._on_gpu and like.numel() > PIECE
        self._messages = optimizer.messages
        self._streams = _streams(optimizer, part, wire)
        self._at_once = sum(message.needed_at_once for message in self._messages)
        vectors = optimizer.vectors | optimizer.work
        self._vectors = {"theta": like} | {name: vector[part] for name, vector in vectors.items()}
        if self._on_gpu:
            self._pieces = optimizer.flat.stretches(part)
            rooms = self._vectors | {message.name: stream.buffer for message, stream in self._named_streams()}
            self._scratch = rooms.get(optimizer.gradient_room, like) if optimizer.gradient_room else like.clone()
            self._gradients = optimizer.flat.gradient_rooms(self._scratch, part)
        else:
            self._pieces = optimizer.flat.pieces(PIECE, part)
            self._scratch = torch.empty(min(PIECE, like.numel()), dtype=like.dtype)
        self._views: dict[int, tuple[Views, list[Views]]] = {}
        self._exchanged = Views()
        self._versions: list[int] = []
        self._iteration = 0

    def start(self, iteration: int) -> None:
        self.receive_all()
        self._iteration = iteration
        for stream in self._streams:
            stream.claim(iteration)
        self._compute_messages()
        self._post(0)
        if self._optimizer.returns_before_received:  # a user may change parameters and a scheduler lr meanwhile
            self._versions = self._optimizer.flat.versions(self.part)
            self._exchanged.groups = [{**group, "lr": float(group["lr"])} for group in self._optimizer.param_groups]

    @torch.no_grad()
    def _compute_messages(self) -> None:
        optimizer, checked, total = self._optimizer, self._messages[0].name, 0.0
        groups = optimizer.param_groups
        sums_pieces = self.checks_finite and self._exceeds_cache and not optimizer.completes_first_message
        for piece, gradient, at in self._with_gradients():
            optimizer.compute_messages(at, gradient, groups[piece.group])
            if sums_pieces:
                total += float(getattr(at, checked).sum())
        optimizer.complete_messages(self._exchanged)
        if self.checks_finite and sums_pieces:
            optimizer.refuse_non_finite(total)
        elif self.checks_finite:
            optimizer.check_finite(self._streams[0].buffer)

    @property
    def under_way(self) -> bool:
        return any(stream.under_way for stream in self._streams[: self._at_once])

    def advance(self) -> None:
        if self._at_once > 1 and self._streams[0].under_way:
            for number in range(self._at_once - 1):
                self._receive(number)

    def ask(self) -> None:
        under_way = [stream for stream in self._streams if stream.under_way]
        if under_way:
            under_way[-1].ask()

    def receive_parameters(self) -> None:
        if not self.under_way:
            return
        flat = self._optimizer.flat
        if self._versions:
            flat.refuse_changed(self.part, self._versions)
        self.advance()
        self._receive(self._at_once - 1)
        flat.write_parameters(self.part)

    def receive_all(self) -> None:
        self.receive_parameters()
        for number in range(self._at_once, len(self._streams)):
            if self._streams[number].under_way:
                self._receive(number)

    @torch.no_grad()
    def _receive(self, number: int) -> None:
        """The next message leaves when this one is there: on a slow link both together would only delay it."""
        self._optimizer.receive(self._messages[number].name, self._streams[number], self._exchanged)
        if number + 1 < len(self._streams) and not self._streams[number + 1].under_way:
            self._post(number + 1)

    def _post(self, number: int) -> None:
        """Send this message, and those that leave with it."""
        self._streams[number].post(self._iteration)
        if number + 1 < len(self._streams) and self._messages[number + 1].sent_with_previous:
            self._post(number + 1)

    def post_rest(self) -> None:
        """Send what is not sent yet."""
        for number in range(self._at_once, len(self._streams)):
            if self.under_way and not self._streams[number].under_way:
                self._streams[number].post(self._iteration)

    @torch.no_grad()
    def local_step(self) -> None:
        self.receive_all()
        optimizer, total = self._optimizer, 0.0
        for piece, gradient, at in self._with_gradients():
            checked = optimizer.local_step(at, gradient, optimizer.param_groups[piece.group])
            if self._on_gpu:
                optimizer.check_finite(checked)
            else:
                total += float(checked.sum())
        optimizer.complete_local_step(self._exchanged)
        optimizer.refuse_non_finite(total)

    def _with_gradients(self) -> Iterator[tuple[Piece, torch.Tensor, Views]]:
        """Every piece, its gradient with weight decay and momentum, and its views."""
        optimizer = self._optimizer
        self._exchanged, views = self._present_views()
        self._exchanged.groups = None  # these messages are made with the groups of now
        if self._on_gpu and not optimizer.stays_out:
            optimizer.flat.collect_gradients(self._gradients, self.part)
        for piece, at in zip(self._pieces, views, strict=True):
            if optimizer.stays_out:
                yield piece, optimizer.idle_gradient(at), at
                continue
            gradient = at.scratch if self._on_gpu else piece.gradient(self._scratch)
            group = optimizer.param_groups[piece.group]
            if group["weight_decay"] and optimizer.decays_gradient:
                gradient = torch.add(gradient, at.theta, alpha=group["weight_decay"], out=at.scratch)
            if optimizer.has_momentum:
                gradient = with_momentum(gradient, at.u, group, out=at.scratch)
            yield piece, gradient, at

    def _present_views(self) -> tuple[Views, list[Views]]:
        """The views of the whole bucket and of every piece, with the buffers that the next messages are written to.

        Made once per buffer of the first message, because cutting takes as long as adding: streams are posted once per
        exchange each, so that their buffers alternate together.
        """
        key = self._streams[0].buffer.data_ptr()
        if key not in self._views:
            buffers = {message.name: stream.buffer for message, stream in self._named_streams()}
            vectors = self._vectors | buffers
            self._views[key] = Views(part=self.part, groups=None, **vectors), self._cut(vectors)
        return self._views[key]

    def _cut(self, vectors: dict[str, torch.Tensor]) -> list[Views]:
        lengths = [piece.place.stop - piece.place.start for piece in self._pieces]
        parts = zip(*(vector.split(lengths) for vector in vectors.values()), strict=True)
        same = [self._scratch[:length] for length in lengths]
        scratch = self._scratch.split(lengths) if self._on_gpu else same
        return [
            Views(scratch=room, **dict(zip(vectors, part, strict=True)))
            for room, part in zip(scratch, parts, strict=True)
        ]

    def _named_streams(self) -> Iterator[tuple[Message, Stream]]:
        return zip(self._messages, self._streams, strict=True)

    def outboxes(self) -> list[Outbox]:
        return [stream.outbox for stream in self._streams]

    def state(self) -> dict[str, torch.Tensor]:
        states = ((message.name, stream.state()) for message, stream in self._named_streams())
        return {f"{name}_{key}": tensor for name, state in states for key, tensor in state.items()}


def _streams(optimizer: NeighbourOptimizer, part: slice, wire: str) -> list[Stream]:
    """A stream per message; a message that leaves when the one before it was read may come in where that did."""
    like, streams = optimizer.flat.values[part], list[Stream]()
    # 16 bits are rounded all at once on a GPU: one vector to compute in does for all messages
    room = torch.empty_like(like) if like.is_cuda and wire in ("bfloat16", "float16") else None
    for message in optimizer.messages:
        after = streams[-1].outbox if streams and not message.sent_with_previous else None
        streams.append(_stream(optimizer, message, part, wire, after, room))
    return streams


def _stream(
    optimizer: NeighbourOptimizer, message: Message, part: slice, wire: str, after: Outbox | None,
    room: torch.Tensor | None,
) -> Stream:  # fmt: skip
    # where there is no room for an inbox per neighbour, one is enough for a message that nobody waits for
    waited_for = message.needed_at_once or len(optimizer.messages) == 1
    network, transport, inboxes = optimizer.network, optimizer.transport, 2 if waited_for else 1
    like = optimizer.flat.values[part]
    if network.schedule is not None:
        return ScheduledStream(network, transport, message.kind, like, inboxes, optimizer.local_steps, after)
    if wire == "full":
        return Stream(network, transport, message.kind, like, inboxes, after)
    on_gpus, every = network.node.backend == "nccl" and like.is_cuda, optimizer.local_steps
    first = optimizer.flat.start + part.start
    narrow = codec(wire, like, message.kind, network.node.rank, first, room, on_gpus)
    return CompressedStream(network, transport, message.kind, like, inboxes, narrow, every, after, room)
