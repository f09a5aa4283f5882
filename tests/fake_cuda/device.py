"""What `torch.cuda` says, and what of torch does not come by the dispatcher."""

from __future__ import annotations

import os
import threading
import types
from typing import Any

import torch

from tests.fake_cuda import dispatch, host, nccl, tensors
from tests.fake_cuda.ledger import ledger
from tests.fake_cuda.tensors import FakeTensor, on_gpu

_installed = False


def install(gpus: int) -> None:
    """From here on this process has so many GPUs, and nccl."""
    global _installed
    if _installed:
        return
    _installed = True
    _install_cuda(gpus)
    _install_tensors()
    nccl.install()
    dispatch.Mode().__enter__()


class Stream:
    """The one that there is."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def wait_stream(self, other: Any) -> None:
        return None

    wait_event = record_event = wait_stream

    def synchronize(self) -> None:
        dispatch._sync("stream")


def _install_cuda(gpus: int) -> None:
    cuda: Any = torch.cuda
    states = {"now": torch.zeros(16, dtype=torch.uint8)}

    def properties(device: Any = None) -> Any:
        number = on_gpu("cuda" if device is None else device).index
        host_of_rank = os.environ.get("GROUP_RANK", "0")
        return types.SimpleNamespace(uuid=f"GPU-{host_of_rank}-{number}", name="no GPU", total_memory=80 << 30)

    said = {
        "device_count": lambda: gpus,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "set_device": tensors.set_current,
        "current_device": lambda: tensors.current().index,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: "no GPU",
        "get_rng_state": lambda device=None: states["now"].clone(),
        "set_rng_state": lambda state, device=None: states.update(now=state),
        "synchronize": lambda device=None: dispatch._sync("synchronize"),
        "reset_peak_memory_stats": lambda device=None: setattr(ledger, "peak", ledger.living),
        "memory_allocated": lambda device=None: ledger.living,
        "max_memory_allocated": lambda device=None: ledger.peak,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "set_sync_debug_mode": lambda mode: None,
        "is_current_stream_capturing": lambda: False,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "Event": host.Event,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: stream,
    }
    for name, stand_in in said.items():
        setattr(cuda, name, stand_in)
    torch.accelerator.current_accelerator = lambda check_available=False: None  # optimizers ask it about graphs


def _install_tensors() -> None:
    real_tensor, real_to, real_backward = torch.tensor, torch.Tensor.to, torch.Tensor.backward

    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        made = real_tensor(data, *args, **kwargs)
        return made if device is None else made.to(device)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        other = args[0] if args else kwargs.pop("other", None)
        if isinstance(other, torch.Tensor):  # C++ would ask it for its device
            args = (other.device, other.dtype, *args[1:])
        return real_to(self, *args, **kwargs)

    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """On a GPU autograd works in a thread of its own, hooks included."""
        if not isinstance(self, FakeTensor):
            return real_backward(self, *args, **kwargs)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with dispatch.Mode():
                    real_backward(self, *args, **kwargs)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return None

    def cuda(self: torch.Tensor, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return self.to(on_gpu("cuda" if device is None else device))

    def pin_memory(self: torch.Tensor, *_: Any) -> torch.Tensor:
        pinned = self.clone()
        host.note_pinned(pinned)
        return pinned

    def is_pinned(self: torch.Tensor, *_: Any) -> bool:
        return host.is_pinned(self)

    torch.tensor = tensor
    for replaced in (to, backward, cuda, pin_memory, is_pinned):
        setattr(torch.Tensor, replaced.__name__, replaced)
