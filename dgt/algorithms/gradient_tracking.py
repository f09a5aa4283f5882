"""Weighted decentralized gradient tracking, both strategies as one update.

    theta' = W (theta - alpha y)          y' = W y + G (g' - g)          y_0 = G g_0

Neighbours are sent z = theta - alpha y and y instead of theta and y: the same algorithm, but z is needed at
once and y only after the next gradient, so y travels while that gradient is computed. With buckets, z travels as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dgt.algorithms.machinery.backward import ExchangeDuringBackward
from dgt.algorithms.machinery.bucket import Bucket, LargeBucket, SmallBucket
from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer
from dgt.config import WIRES
from dgt.config.checks import check_choice, check_range
from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.processes.agreement import agree

# Below this size a message costs the same whatever it holds, so z and y share one.
ONE_MESSAGE_BYTES = 64 * 1024


class GradientTracking(DecentralizedOptimizer):
    """The paper's algorithm. Strategy I or II is in `network`: its mixing row and gradient scale.

    overlap      let y travel while the next gradient is computed; the numbers are the same without
    wire         full; bfloat16 or float16 halve the traffic of a float32 model (`exchange/streams.py` says what holds)
    local_steps  exchange after every so many steps only; between them W = I
    bucket_mb    start the exchange during backward, bucket by bucket, and end it in the next forward of `model`;
                 gradients cannot be changed after backward then (clipping), and `drain` comes before reading or
                 changing parameters

    Parameter-sized buffers on a CPU: theta, gradient, B, and z and y, twice each where neighbours share memory, else
    with three inboxes: eight, whatever the degree. A narrow wire needs up to four more.
    """

    # so that one whose making failed, as settings differ between ranks, can let go of the parameters
    buckets: list[Bucket] = []  # noqa: RUF012
    _backward: ExchangeDuringBackward | None = None

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        network: Network,
        weight_decay: float = 0.0,
        overlap: bool = True,
        wire: str = "full",
        local_steps: int = 1,
        bucket_mb: float = 0,
        model: torch.nn.Module | None = None,
    ) -> None:
        check_choice("wire", wire, WIRES)
        check_range("local_steps", local_steps, 1)
        check_range("bucket_mb", bucket_mb, 0)
        super().__init__(parameters, lr, network, weight_decay)
        agree(network.node, {"wire": wire, "local_steps": str(local_steps), "bucket_mb": str(bucket_mb)})
        self.overlap, self.local_steps = overlap, local_steps
        self._rest = self.flat.like()  # B
        # in the order gradients become ready: from the model's last parameters to its first
        self.buckets = self._make_buckets(wire, bucket_mb)
        self.started = 0  # buckets whose exchange of this step has begun
        self._accumulating = False
        if bucket_mb and overlap:
            if model is None:
                raise ConfigError(f"bucket_mb={bucket_mb:g}: give the model too, GradientTracking(..., model=model)")
            self._backward = ExchangeDuringBackward(self, model)
            network.before_reading.append(self.drain)
            network.node.before_leaving.append(self.drain)

    def _make_buckets(self, wire: str, bucket_mb: float) -> list[Bucket]:
        theta = self.flat.values
        whole = slice(0, theta.numel())
        small = 2 * theta.numel() * theta.element_size() <= ONE_MESSAGE_BYTES
        plain = theta.device.type == "cpu" and theta.dtype in (torch.float32, torch.float64)
        if small and plain and not self.flat.has_masters and wire == "full" and not bucket_mb:
            return [SmallBucket(self, self._rest)]
        parts = self.flat.buckets(int(bucket_mb * 2**20)) if bucket_mb else [whole]
        narrow = None if wire == "full" else getattr(torch, wire)
        return [LargeBucket(self, self._rest, part, narrow) for part in parts]

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
        self.start_buckets(len(self.buckets))
        self.started = 0
        if self._backward is not None:
            return
        for bucket in self.buckets:
            bucket.take_parameters()
        if not self.overlap:
            self.drain()

    @property
    def exchanges(self) -> bool:
        """Whether this step talks to the neighbours."""
        return (self.iteration + 1) % self.local_steps == 0

    @property
    def hearing_steps(self) -> int:
        # during backward messages leave before the step that announces, and are taken in one step later
        return super().hearing_steps * self.local_steps + 2 * (self._backward is not None)

    def start_buckets(self, number: int) -> None:
        """Begin the exchange of the first so many buckets, in order: everybody sends in the same one."""
        if self.started < number:
            self.note_settings()
        while self.started < number:
            self.buckets[self.started].start(self.iteration)
            self.started += 1

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """With buckets: around every backward of a step but the last, so that gradients add up before they are used."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    @property
    def uses_gradients_now(self) -> bool:
        """Whether a gradient that has just arrived may be taken."""
        return self.exchanges and not self._accumulating and not self.network.averaging

    def drain(self) -> None:
        """Take in what is still travelling: theta = W z and B = g - W y / G are complete after it."""
        for bucket in self.buckets:
            bucket.take_parameters()
            bucket.take_tracker()

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

    def buffers(self) -> dict[str, torch.Tensor]:
        state = {"rest": self._rest}
        for number, bucket in enumerate(self.buckets):
            state |= {f"{name}_{number}": tensor for name, tensor in bucket.state().items()}
        return {**super().buffers(), **state}

    def tracking_error(self) -> torch.Tensor:
        """-pi_i G_i B_i, which sums to sum_i pi_i (y_i - G_i g_i): W leaves sums under pi as they are."""
        self.drain()
        return self._rest * (-self.network.average_weight * self.network.gradient_scale)
