"""An optimizer that exchanges vectors with its neighbours: overlap, wire, local_steps and bucket_mb of any algorithm.

An algorithm is a subclass that names its messages and state vectors and writes its update for one stretch of the
parameters: from gradient, state and theta to the messages (`compute_messages`), and what becomes of a received message
(`receive`). `dsgd.py` is the shortest one.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from dgt.algorithms.machinery.backward import ExchangeDuringBackward
from dgt.algorithms.machinery.bucket import Bucket, Message, StreamBucket, Views
from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer
from dgt.algorithms.machinery.small_bucket import SmallBucket
from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.exchange.streams import LONG_PIECE, Stream

# Below this size a message costs the same whatever it holds, so all vectors share one.
ONE_MESSAGE_BYTES = 64 * 1024
# A message costs some time whatever it holds, and a part some memory of its own.
MOST_PARTS = 8


class NeighbourOptimizer(DecentralizedOptimizer):
    """theta and the algorithm's vectors, exchanged with the neighbours under the mixing row of `network`.

    overlap      let messages that are not needed at once travel while the next gradient is computed; the numbers are
                 the same without
    wire         full; bfloat16 or float16 halve the traffic of a float32 model, int8 and int4 send a quarter and an
                 eighth, and a scale for every 64 numbers (`exchange/streams.py` says what holds)
    local_steps  exchange after every so many steps only; between them W = I
    bucket_mb    start the exchange during backward, bucket by bucket, and end it in the next forward of `model`;
                 gradients cannot be changed after backward then (clipping), and `drain` comes before reading or
                 changing parameters

    Parameter-sized buffers on a CPU: theta, gradient and the state vectors; each message twice where neighbours share
    memory, else once, with an inbox per neighbour. All inboxes of an optimizer take at most 1 GiB
    (`inboxes.MOST_BYTES`); beyond it a message that is needed at once has two and another one, whatever the degree. A
    narrow wire keeps the vector and two float64 estimates per message.
    """

    messages: tuple[Message, ...]
    """What is sent at every exchange, in this order; those needed at once come first."""
    state_vectors: Mapping[str, str] = {}
    """Vectors like theta, zero at first, that are kept between steps: name in the equations -> name in checkpoints."""
    work_vectors: tuple[str, ...] = ()
    """Vectors like theta that nothing is kept in between steps."""
    gradient_room: str = ""
    """The message or work vector whose memory holds the gradient, on a GPU, when `compute_messages` and `local_step`
    are called: one that they write only when they no longer read the gradient. Without it there is one buffer more."""
    has_array_update: bool = False
    """Whether `compute_message_arrays`, `receive_arrays` and `local_step_arrays` are written, for small models."""
    receives_moves: ClassVar[bool] = False
    """Whether `receive_arrays` is given W m - m, added up from differences, in place of W m."""
    supports = frozenset({"wire", "local_steps", "bucket_mb"})

    # class attributes, so that `close` works if the constructor raised, as when ranks disagree on settings
    buckets: list[Bucket] = []  # noqa: RUF012
    _backward: ExchangeDuringBackward | None = None
    _in_parts = False  # buckets that leave one after another, at the end of backward

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float | None = None,
        overlap: bool = True,
        wire: str = "full",
        local_steps: int = 1,
        bucket_mb: float = 0,
        model: torch.nn.Module | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            parameters, lr, network, weight_decay, overlap, wire, local_steps, bucket_mb, model, **settings
        )
        # of several rounds the later ones would wait for ranks that are elsewhere by then
        self.overlap = overlap and (network.schedule is None or network.schedule.rounds == 1)
        self.local_steps = local_steps
        self.choose_vectors()
        if self.has_momentum:
            self.state_vectors = {**self.state_vectors, "u": "momentum"}
        self.vectors = {name: self.flat.like() for name in self.state_vectors}
        self.work = {name: self.flat.like() for name in self.work_vectors}
        # in the order gradients become ready: from the model's last parameters to its first
        self.buckets = self._make_buckets(wire, bucket_mb)
        if self.base is not None:
            self.base.attach(
                self.flat.values, self.param_groups, [bucket.part for bucket in self.buckets], self.flat.slices
            )
        # neighbours that take turns would wait for ranks that are elsewhere, or at another bucket
        self._takes_turns = any(outbox.takes_turns for bucket in self.buckets for outbox in bucket.outboxes())
        self.started = 0  # buckets whose exchange of this step has begun
        self._accumulating = False
        if bucket_mb and overlap and not self._takes_turns:
            if model is None:
                name = type(self).__name__
                raise ConfigError(f"bucket_mb={bucket_mb:g}: give the model too, {name}(..., model=model)")
            self._backward = ExchangeDuringBackward(self, model)
            network.before_reading.append(self.drain)
            network.node.before_leaving.append(self.drain)

    def choose_vectors(self) -> None:
        """Set `messages`, `state_vectors` and `work_vectors`, where they depend on the settings."""

    @abc.abstractmethod
    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Write every message of this stretch, and change the state vectors; elementwise, theta stays as it is.

        at        the stretch of theta, messages and state vectors, by name: read `at.theta`, write `at.z`
        gradient  g, weight decay included, or what momentum made of it; read only
        group     the parameter group: `lr`, `weight_decay`, and the algorithm's `Settings`

        The first message must hold a number that is not finite wherever theta, gradient or state do: that is looked for
        before anything is sent.
        """

    @property
    def completes_first_message(self) -> bool:
        """Whether the first message is not all there before `complete_messages`."""
        return self.base is not None

    def complete_messages(self, at: Views) -> None:
        """What is done for a whole bucket at once, after `compute_messages` of all its stretches: a base's step."""

    def complete_local_step(self, at: Views) -> None:
        """The same after `local_step` of all stretches."""

    def base_step(
        self,
        at: Views,
        values: torch.Tensor,
        direction: torch.Tensor,
        missing: torch.Tensor | None = None,
        piece: slice | None = None,
    ) -> None:
        """values <- a step of the base from `values`; `at` is a bucket, `missing` as of `Base.step`.

        piece  which numbers of the bucket these are, as `Stream.mixed_pieces` cuts them; all of them if not given
        """
        assert self.base is not None
        if self.stays_out:  # theta is mixed only; what this node did not descend by stays in the tracker
            return
        start = at.part.start
        part = at.part if piece is None else slice(start + piece.start, start + piece.stop)
        self.base.step(part, values, direction, at.groups or self.param_groups, missing)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        """Use a message of all neighbours, by `stream.mix` or `stream.add_neighbours`: theta = W z, if nothing else.

        message  which, by its name
        stream   what has come in
        at       the whole bucket: theta, state vectors and this node's own messages, of which those that follow may be
                 written now; `groups_in(at)` are its parameter groups
        """
        stream.mix(at.theta)

    def groups_in(self, at: Views) -> Iterator[tuple[dict[str, Any], slice]]:
        """The parameter groups of a bucket, as its messages were made with, and where in the bucket they are."""
        for group, whole in zip(at.groups or self.param_groups, self.flat.slices, strict=True):
            start, stop = max(at.part.start, whole.start), min(at.part.stop, whole.stop)
            if start < stop:
                yield group, slice(start - at.part.start, stop - at.part.start)

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """The step with W = I, `at.theta` changed in place; returns a tensor that is not finite where g is not."""
        raise NotImplementedError(f"{type(self).__name__} supports local_steps, but has no local_step")

    def idle_gradient(self, at: Views) -> Any:
        """The gradient with which this node does not descend: of a step whose own has overflowed."""
        return 0 * at.theta

    def compute_message_arrays(self, at: Views, gradient: np.ndarray) -> None:
        """`compute_messages` for the whole model and all groups, in numpy."""
        raise NotImplementedError

    def receive_arrays(self, mixed: Views, at: Views, gradient: np.ndarray) -> None:
        """`receive` for all messages, `mixed.z` = W z and so on, which may be changed; in numpy."""
        raise NotImplementedError

    def local_step_arrays(self, at: Views, gradient: np.ndarray) -> np.ndarray:
        """`local_step` for the whole model and all groups, in numpy."""
        raise NotImplementedError

    def descend_arrays(self, theta: np.ndarray, direction: np.ndarray, out: np.ndarray) -> None:
        """out = theta - alpha direction, with each group's own alpha."""
        groups = self.param_groups
        if len(groups) == 1:
            np.multiply(direction, -float(groups[0]["lr"]), out=out)
        else:
            for group, part in zip(groups, self.flat.slices, strict=True):
                np.multiply(direction[part], -float(group["lr"]), out=out[part])
        out += theta

    @classmethod
    def bytes_per_exchange(cls, nodes: int, edges: int, numbers: int, width: int, wire_width: float) -> int:
        return 2 * edges * len(cls.messages) * round(numbers * wire_width)

    def _make_buckets(self, wire: str, bucket_mb: float) -> list[Bucket]:
        theta = self.flat.values
        small = len(self.messages) * theta.nbytes <= ONE_MESSAGE_BYTES
        plain = theta.device.type == "cpu" and theta.dtype in (torch.float32, torch.float64)
        fits = small and plain and not self.flat.has_masters and wire == "full" and not bucket_mb
        fits = fits and self.network.schedule is None
        if fits and self.has_array_update and self.base is None:
            return [SmallBucket(self)]
        parts = self.flat.buckets(int(bucket_mb * 2**20)) if bucket_mb else self._parts()
        self._in_parts = len(parts) > 1 and not bucket_mb
        return [StreamBucket(self, part, wire) for part in parts]

    def _parts(self) -> list[slice]:
        """Between hosts a long vector leaves in parts: one is computed, or mixed, while another one travels.

        All ranks cut alike, also those whose neighbours are all on their host. On a single host the processor is what
        limits, and each part costs it some time.
        """
        theta, network = self.flat.values, self.network
        several_rounds = network.schedule is not None and network.schedule.rounds > 1
        if several_rounds or theta.device.type != "cpu" or not network.spans_hosts:
            return [slice(0, theta.numel())]
        return self.flat.cut(MOST_PARTS, LONG_PIECE)

    def update(self) -> None:
        if self._backward is not None and self.found_inf is not None:
            raise ConfigError(
                "bucket_mb: a GradScaler unscales gradients after backward, when buckets have left; leave bucket_mb at "
                "0, or the scaler out (autocast to bfloat16 needs none)"
            )
        if not self.exchanges:
            for bucket in self.buckets:
                bucket.local_step()
            return
        if self._takes_turns:
            self._exchange_one_by_one()
            return
        self.start_buckets(len(self.buckets))
        self.started = 0
        self.advance()
        if self.returns_before_received:
            for bucket in self.buckets:
                bucket.post_rest()
            return
        self.buckets[-1].ask()
        for bucket in self.buckets:
            bucket.receive_parameters()
        if not self.overlap:
            self.drain()

    def _exchange_one_by_one(self) -> None:
        """Every message of every bucket is received before the next one leaves."""
        self.note_settings()
        for bucket in self.buckets:
            bucket.start(self.iteration)
            bucket.advance()
            bucket.receive_all()

    @property
    def own_share(self) -> float:
        """W_ii of the exchange whose messages are made: what this node gives itself."""
        return self.network.own_share(self.iteration // self.local_steps)

    @property
    def exchanges(self) -> bool:
        """Whether this step talks to the neighbours."""
        return (self.iteration + 1) % self.local_steps == 0

    @property
    def returns_before_received(self) -> bool:
        """Whether `step` ends before the new parameters are there, so that a user could change them meanwhile.

        Not with nccl: there the host goes on, and the GPU alone waits for what the next forward needs anyway.
        """
        return self._backward is not None and self.transport.evidence is None

    @property
    def notice_steps(self) -> int:
        # during backward messages leave before the step that announces, and are received one step later; the heads of
        # a GPU's are read one step later too
        late = 2 * (self._backward is not None) + (self.transport.evidence is not None)
        return super().notice_steps * self.local_steps + late

    def start_buckets(self, number: int) -> None:
        """Begin the exchange of the first so many buckets; in order, as messages are matched in the order sent."""
        if self.started < number:
            if not self.started:
                self.buckets[-1].ask()
            self.note_settings()
            self.advance()
        while self.started < number:
            self.buckets[self.started].start(self.iteration)
            self.started += 1

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    @property
    def uses_gradients_now(self) -> bool:
        """Whether a gradient that has just arrived may be used."""
        return self.exchanges and not self._accumulating and not self.network.averaging

    def advance(self) -> None:
        """Before any bucket's last message is awaited, all have left: ranks may then ask for buckets in any order."""
        for bucket in self.buckets:
            bucket.advance()

    def drain(self) -> None:
        """Receive every message that is under way: theta and the state vectors are complete after it."""
        self.advance()
        for bucket in self.buckets:
            bucket.receive_all()

    def begin_step(self) -> None:
        if self.started and self._backward is not None:  # the step has begun during backward
            self._backward.refuse_changes()
        else:
            super().begin_step()

    def close(self) -> None:
        super().close()
        if self._backward is not None:
            self._backward.close()
            self._backward = None
            for finishing in (self.network.before_reading, self.network.node.before_leaving):
                finishing.remove(self.drain)

    def _checked_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        saved = state_dict.get("dgt") if isinstance(state_dict, dict) else None
        if isinstance(saved, dict):
            saved = saved | self._estimates_of_neighbours(saved)
            state_dict = {**state_dict, "dgt": saved | self._estimates_in_parts(saved)}
        return super()._checked_state(state_dict)

    def _estimates_in_parts(self, saved: dict[str, Any]) -> dict[str, torch.Tensor]:
        """A narrow wire's estimates, cut as they are here: a run has one part of them on one host, else several."""
        cut: dict[str, torch.Tensor] = {}
        lengths = [bucket.part.stop - bucket.part.start for bucket in self.buckets]
        for name in self.buckets[0].state():
            there = [saved[key] for part in range(MOST_PARTS) if (key := f"{name}_part{part}") in saved]
            there = there or [saved[key] for key in [f"{name}_0"] if key in saved]
            if sum(map(len, there)) == sum(lengths):
                found = torch.cat(there).split(lengths)
                cut |= {f"{name}_{self._label(number)}": part for number, part in enumerate(found)}
        return cut

    def _label(self, number: int) -> str:
        """Of a bucket, in names of its state."""
        return f"part{number}" if self._in_parts else str(number)

    def _estimates_of_neighbours(self, saved: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Of a state of version 0.1.0, which kept them together with the node's own: sum_j W_ij e_j - W_ii e_i."""
        mixed = {key: value for key, value in saved.items() if "_mixed_estimate_" in key}
        return {
            key.replace("_mixed_", "_neighbours_"): value - self.network.row.own * saved[key.replace("_mixed_", "_")]
            for key, value in mixed.items()
        }

    def buffers(self) -> dict[str, torch.Tensor]:
        state = {self.state_vectors[name]: vector for name, vector in self.vectors.items()}
        for number, bucket in enumerate(self.buckets):
            state |= {f"{name}_{self._label(number)}": tensor for name, tensor in bucket.state().items()}
        return {**super().buffers(), **state}
