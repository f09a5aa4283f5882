"""Point-to-point messages between neighbours: write a message, post it to all of them, take theirs in later.

    outbox = transport.outbox("parameters", like)        # once, together with the neighbours
    z = outbox.buffer                                    # write the message here
    pending = outbox.post(step)                          # returns at once; the next message has a buffer of its own
    for peer, theirs in pending.collect(): ...           # as the neighbours' messages arrive

Every edge takes the quickest way there is: memory that both ends really share (`shared.py`), else messages of the
process group. gloo takes each message with its own tag; nccl knows no tags and wants one symmetric batch in
sorted order from the main thread. No deadlock on any graph: a rank posts everything it sends before it waits for
anything, so every wait is for a message already on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dgt.errors import PeerError, TrainingError, WireError
from dgt.exchange import shared
from dgt.exchange.evidence import Evidence
from dgt.exchange.frames import HEAD, TAIL, Frame, Seal, Settings, frame_bytes, layout
from dgt.exchange.inboxes import CHANNELS, MOST_BYTES, TURNS, Inboxes, how_many, message_tag, padded
from dgt.exchange.missed import missed
from dgt.exchange.pending import Pending
from dgt.processes.node import Node

MADE_WITH_SETTINGS = ("parameters", "both")  # messages that depend on lr; the tracker travels when it may be another


class Transport:
    """This node's way to its neighbours.

    Each outbox is a channel of its own: two optimizers, or two networks, never take each other's messages.
    """

    def __init__(
        self, node: Node, peers: Sequence[int], way: str = "auto", crc: bool = False, most_neighbours: int = 0
    ) -> None:
        """most_neighbours: that a rank of the network has; nccl wants all of them to proceed in the same way."""
        self.node, self.crc = node, crc
        self.peers = sorted(peers)
        self._channel = node.open_channel()
        self.settings = Settings()
        """What the steps are made with; compared with the neighbours' at every step."""
        self.bytes_sent = 0
        self.wait_seconds = 0.0
        self._share_memory = way == "auto" and shared.available()
        self.most_neighbours = most_neighbours or len(self.peers)
        self._exchanges = 0
        self._inbox_bytes = 0
        checks_later = node.backend == "nccl" and not crc
        self.evidence = Evidence(node.device, node.timeout) if checks_later else None
        """On a GPU, what the host checks a step later."""

    def outbox(self, kind: str, like: torch.Tensor, least_inboxes: int = 2, after: Outbox | None = None) -> Outbox:
        """A place for messages of this kind and shape; all neighbours open theirs in the same order.

        Outside shared memory every neighbour has an inbox of its own, while all of this transport's inboxes take at
        most `inboxes.MOST_BYTES`; beyond it there are `least_inboxes`.

        after   an outbox whose messages have always been read when this one's are posted: a GPU's share memory
        """
        possible = like.device.type == "cpu" and 0 < len(self.peers) <= shared.MOST_NEIGHBOURS
        own = shared.create(like) if self._share_memory and possible else None
        if own is not None:
            self.node.life_signs.add(own)
        boards = self._meet(own, like, layout(kind, like))
        others, size = len(self.peers) - len(boards), frame_bytes(like)
        if self.node.backend == "nccl" and like.is_cuda:
            return self._outbox_on_gpu(kind, like, size, after)
        number = how_many(others, least_inboxes, size, MOST_BYTES - self._inbox_bytes)
        self._inbox_bytes += number * size
        return self.make_outbox(kind, self.node.open_channel(), like, own if boards else None, boards, number)

    def _outbox_on_gpu(self, kind: str, like: torch.Tensor, size: int, after: Outbox | None) -> Outbox:
        """Every neighbour has an inbox on all ranks, or on none."""
        if after is not None and after.inbox_memory.shape[1] == padded(size):
            memory, takes_turns = after.inbox_memory, after.takes_turns
        else:
            number = how_many(self.most_neighbours, TURNS, size, MOST_BYTES - self._inbox_bytes)
            self._inbox_bytes += number * size
            takes_turns = number < self.most_neighbours
            number = min(number, len(self.peers))
            memory = torch.zeros(number, padded(size), dtype=torch.uint8, device=like.device)
        outbox = self.make_outbox(kind, self.node.open_channel(), like, None, {}, len(memory), memory)
        outbox.takes_turns = takes_turns
        return outbox

    def make_outbox(
        self,
        kind: str,
        channel: int,
        like: torch.Tensor,
        board: shared.OwnBoard | None,
        boards: dict[int, shared.Board],
        inboxes: int,
        memory: torch.Tensor | None = None,
    ) -> Outbox:
        """The outbox of a stream, whose neighbours have been met."""
        return Outbox(self, kind, channel, like, board, boards, inboxes, memory=memory)

    def exchange(self, kind: str, step: int, message: torch.Tensor) -> dict[int, torch.Tensor]:
        """Send a small message to every neighbour and get theirs; start-up and rare things only."""
        outbox = Outbox(self, kind, self._channel, message, None, {}, len(self.peers), first=self._exchanges)
        return self.exchanged(outbox, message, lambda: outbox.post(step))

    def exchanged(self, outbox: Outbox, message: torch.Tensor, post: Callable[[], Pending]) -> dict[int, torch.Tensor]:
        """What came for this message, once it has left too."""
        outbox.expects_next = False  # which may be of another size
        self._exchanges += 1
        outbox.buffer.copy_(message)
        pending = post()
        theirs = dict(pending.collect())
        pending.finish()
        if outbox.uses_nccl and self.evidence is not None:
            self.evidence.settle()
        return theirs

    def _meet(self, own: shared.OwnBoard | None, like: torch.Tensor, laid_out: bytes) -> dict[int, shared.Board]:
        """Boards of those neighbours that can read ours and whose we can read; over messages, before the first step."""
        text = laid_out + (own.token + str(own.path).encode() if own is not None else b"")
        card = torch.zeros(256, dtype=torch.uint8)
        card[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        boards = {}
        for peer, theirs in self._greet(card).items():
            text = bytes(theirs.tolist())
            # gloo ends the process when a message is longer than expected, so this comes before the first
            if text[: len(laid_out)] != laid_out:
                who = self.node.members[peer]
                raise WireError(f"{self.node.title}: neighbour {who} lays its messages out in another way")
            text = text[len(laid_out) :].rstrip(b"\0")
            board = shared.look(Path(text[shared.TOKEN :].decode()), text[: shared.TOKEN], like) if text else None
            if own is not None and board is not None:
                boards[peer] = board
        flags = torch.zeros(self.node.size, dtype=torch.uint8)
        flags[list(boards)] = 1
        answers = self._greet(flags)
        boards = {peer: board for peer, board in boards.items() if answers[peer][self.node.rank]}
        places = torch.zeros(self.node.size + 1, dtype=torch.int32)
        places[list(boards)] = torch.arange(len(boards), dtype=torch.int32)
        places[-1] = len(boards)
        for peer, theirs in self._greet(places).items():
            if peer in boards:
                boards[peer].expect(int(theirs[self.node.rank]), int(theirs[-1]))
        if own is not None:
            own.unlink()
            own.neighbours = boards
        return boards

    def _greet(self, message: torch.Tensor) -> dict[int, torch.Tensor]:
        sent = self.bytes_sent
        theirs = self.exchange("handshake", 0, message)
        self.bytes_sent = sent  # finding each other is no part of the algorithm
        return theirs


class Outbox:
    """Messages of one kind: written into `buffer`, then posted."""

    def __init__(
        self,
        transport: Transport,
        kind: str,
        channel: int,
        like: torch.Tensor,
        board: shared.OwnBoard | None,
        boards: dict[int, shared.Board],
        inboxes: int,
        first: int = 0,
        memory: torch.Tensor | None = None,
    ) -> None:
        """memory: [inboxes, bytes] on a GPU, for nccl."""
        self.transport, self.kind, self.node = transport, kind, transport.node
        self.channel = channel % CHANNELS
        self.board, self.boards = board, boards
        self.near = [[(peer, theirs.frames[turn]) for peer, theirs in boards.items()] for turn in (0, 1)]
        self.others = [peer for peer in transport.peers if peer not in boards]
        self.uses_nccl = self.node.backend == "nccl" and like.is_cuda
        settings = transport.settings if kind in MADE_WITH_SETTINGS else None
        self.seal = Seal(self.node, kind, like, transport.crc, settings)
        self.frames = board.frames if board is not None else [_frame(like, like.device)]
        self.buffers = [frame.payload for frame in self.frames]
        # gloo moves host memory only: CUDA buffers go through pinned copies
        staged = like.is_cuda and not self.uses_nccl
        near = torch.device("cpu") if staged else like.device
        self._staged = _frame(like, near, pin=True) if staged and self.others else None
        number = min(inboxes, len(self.others))
        if self.uses_nccl:
            size = frame_bytes(like)
            rows = torch.zeros(number, padded(size), dtype=torch.uint8, device=near) if memory is None else memory
            self.inbox_memory, self._ends = rows, [rows[:, :HEAD], rows[:, size - TAIL : size]]
            frames = [Frame(row[:size], like) for row in rows]
        else:
            frames = [_frame(like, near, pin=staged) for _ in range(number)]
        self.inboxes = Inboxes(self.node, self.others, self.channel, frames)
        self.expects_next = not self.uses_nccl
        """Whether the receive of the next message is posted as soon as an inbox has been read."""
        self.takes_turns = False
        """Whether neighbours share inboxes on a GPU, so that one is sent to and received from after the other."""
        self.holds_messages = False
        """Whether they stay in their inboxes until `release`."""
        self._bytes = len(transport.peers) * like.numel() * like.element_size()
        self._posted = first  # messages are told apart by this number, whatever iteration their sender is at
        self._expected_next(first)

    def _expected_next(self, number: int) -> None:
        """Neighbours may wait for the message of this number from here on, and are told if it will never come."""
        if self.others and not self.uses_nccl:
            self.node.expected_next[self.channel] = (message_tag(number, self.channel), self.others)

    @property
    def turn(self) -> int:
        """Which of the buffers the next message is written to."""
        return self._posted % len(self.buffers)

    @property
    def buffer(self) -> torch.Tensor:
        """Where the next message is written."""
        return self.buffers[self.turn]

    def theirs(self, turn: int) -> list[torch.Tensor]:
        """The neighbours' messages, ascending, where every one outside shared memory has an inbox of its own."""
        self.holds_messages = True
        found = {peer: board.buffers[turn] for peer, board in self.boards.items()}
        found |= dict(zip(self.others, self.inboxes.payloads(), strict=True))
        return [found[peer] for peer in self.transport.peers]

    def keeps_all(self, inboxes: Inboxes) -> bool:
        """Whether the messages of all neighbours can be in main memory at the same time."""
        return not self.uses_nccl and self._staged is None and inboxes.has_room_for_all

    def inboxes_of(self, others: Sequence[int]) -> Inboxes:
        """Where the messages of an exchange with these come in."""
        return self.inboxes

    def release(self) -> None:
        """What `theirs` returned was read: the next messages may come in."""
        if self.expects_next:
            for position in range(len(self.others)):
                self.inboxes.free(position, self._posted - 1)

    def check(self, peers: Sequence[int], first: int, number: int, step: int) -> None:
        """Check the messages of these peers, in the inboxes from position `first` on; on a GPU a step later."""
        evidence = self.transport.evidence
        if evidence is None or not self.uses_nccl:
            frames = [self.inboxes.frame(first + k) for k in range(len(peers))]
            self.seal.check(zip(peers, frames, strict=True), number, step)
            return
        place = first % len(self.inbox_memory)
        rows = evidence.note_rows(len(peers), self.seal.check_later(peers, number, step))
        torch.cat([each[place : place + len(peers)] for each in self._ends], dim=1, out=rows)

    def post(self, step: int) -> Pending:
        """Start sending to all neighbours; the message must not change before `Pending.finish`."""
        number, raw = self._posted, self.sealed(step)
        if self.board is not None:
            self.board.publish(number)
        pending = Pending(self, number, step, self.transport.peers, self.others)
        pending.start(raw)
        if self.others:
            self._expected_next(number + 1)
        self.transport.bytes_sent += self._bytes
        return pending

    def sealed(self, step: int) -> torch.Tensor:
        """The next message as it travels, with its head; the one after it has another buffer, or this one again."""
        number, frame = self._posted, self.frames[self.turn]
        self._posted += 1
        if self._staged is not None:
            self._staged.payload.copy_(frame.payload)
            frame = self._staged
        self.seal.write(frame, number, step)
        return frame.raw if self.node.tamper is None else self.node.tamper(self.kind, frame, step)

    def absent(self, peers: Sequence[int], error: Exception, step: int) -> PeerError | TrainingError:
        """What to raise while waiting for a message of this step from these, one unless it is not known who."""
        board = self.boards.get(peers[0]) if len(peers) == 1 else None
        left = board.steps_at_leaving if board is not None else None
        return missed(self.node, peers, error, self.kind, step, self.seal.last + 1, left)


def _frame(like: torch.Tensor, device: torch.device, pin: bool = False) -> Frame:
    return Frame(torch.zeros(frame_bytes(like), dtype=torch.uint8, device=device, pin_memory=pin), like)
