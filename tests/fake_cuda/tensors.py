"""A tensor on a GPU that is not there: its numbers are in `inner`, a tensor in main memory.

To C++ it is a tensor on the CPU, whose autograd engine would ask a driver about any other; to Python it is on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.fake_cuda.ledger import block_of


class FakeTensor(torch.Tensor):
    inner: torch.Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, inner: torch.Tensor, place: torch.device, requires_grad: bool = False) -> FakeTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device="cpu", requires_grad=requires_grad,
        )  # fmt: skip
        made.inner, made.place, made.block = inner, place, block_of(inner)
        return made

    device = property(lambda self: self.place)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["inner"], self.place

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], place: torch.device, size: Any, stride: Any) -> FakeTensor:
        return FakeTensor(inner["inner"], place)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from tests.fake_cuda.dispatch import run

        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({self.inner!r}, device={self.place})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.detach(self)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, FakeTensor) or (new.shape, new.dtype, new.place) != (self.shape, self.dtype, self.place):
            raise RuntimeError("fake GPU: .data was given a tensor of another device, shape or dtype")
        if new.stride() != self.stride():
            raise RuntimeError("fake GPU: .data of other strides is not emulated")
        self.inner, self.block = new.inner, new.block

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        device, dtype, _non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        place = self.place if device is None else on_gpu(device)
        dtype = dtype or self.dtype
        if place.type == "cpu":
            down = _Down.apply(self)  # a copy to the host, which waits for the GPU
            return down if down.dtype == dtype else down.to(dtype)
        if place != self.place:
            raise RuntimeError(f"fake GPU: a copy from {self.place} to {place} is not emulated")
        if dtype == self.dtype and not copy and memory_format is None:
            return self
        more = {} if memory_format is None else {"memory_format": memory_format}
        return torch.ops.aten._to_copy.default(self, dtype=dtype, **more)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> torch.Tensor:
        return self

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.place} device type tensor to numpy. Use Tensor.cpu() to copy it first")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def is_pinned(self, *_: Any) -> bool:
        return False

    def is_shared(self) -> bool:
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copied = FakeTensor(self.inner.detach().clone(), self.place).requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True
            memo[id(self)] = copied
        return memo[id(self)]


class _Down(torch.autograd.Function):
    """A blocking copy to the host."""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor) -> torch.Tensor:
        from tests.fake_cuda.dispatch import copied_down

        ctx.place = x.place
        return copied_down(x)

    @staticmethod
    def backward(ctx: Any, up: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return FakeTensor(up, ctx.place)


_current = torch.device("cuda", 0)


def on_gpu(device: Any) -> torch.device:
    """With its index, if it is a GPU."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _current if device.type == "cuda" and device.index is None else device


def current() -> torch.device:
    return _current


def set_current(device: Any) -> None:
    global _current
    _current = on_gpu(device)
