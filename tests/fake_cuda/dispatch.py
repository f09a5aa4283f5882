"""Every op of torch on a tensor that says it is on a GPU: checked, counted, and computed in main memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from tests.fake_cuda import host, nccl
from tests.fake_cuda.ledger import ledger, where
from tests.fake_cuda.tensors import FakeTensor, on_gpu

aten = torch.ops.aten
ALLOCATIONS = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.detach.default, aten._unsafe_view.default, aten.lift_fresh.default,
}  # fmt: skip
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
ASKS_THE_HOST = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.unique_consecutive.default,
}  # fmt: skip


class Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to be skipped, torch's compiler would be imported: seconds on every rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    ours = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
    target = on_gpu(kwargs["device"]) if kwargs.get("device") is not None else None
    if not ours and (target is None or target.type != "cuda"):
        return _in_main_memory(func, args, kwargs)
    if func.namespace == "c10d":
        raise RuntimeError(f"fake GPU: {func} of a group without GPUs got a CUDA tensor ({where()})")
    if ours and target is not None and target.type == "cpu" and func not in COPIES:
        target = None  # C++ passes on the device that it takes the tensor to have
    place = target or ours[0].place
    plain = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)]
    if func in COPIES:
        return _copy(func, args, kwargs, place)
    _one_device(func, ours, [each for each in plain if each.dim() and func not in INDEXING])
    is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
    if func not in ALLOCATIONS and not is_view:
        nccl.before_kernel()
        _look_for_flights(func, args, kwargs)
        ledger.launches[where()] += 1
    if func in ASKS_THE_HOST:
        _sync(func.__name__.partition(".")[0])
    return _wrapped(func, args, kwargs, _compute(func, args, kwargs), place, bool(ours))


def _in_main_memory(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    pin = kwargs.get("pin_memory")
    made = func(*args, **({**kwargs, "pin_memory": False} if pin else kwargs))
    if pin:
        host.note_pinned(made)
    return made


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, spec = tree_flatten((args, kwargs))
    inner_args, inner = tree_unflatten([leaf.inner if isinstance(leaf, FakeTensor) else leaf for leaf in flat], spec)
    if inner.get("device") is not None:
        inner["device"] = torch.device("cpu")
    inner.pop("pin_memory", None)
    return func(*inner_args, **inner)


def _wrapped(func: Any, args: Any, kwargs: dict[str, Any], out: Any, place: torch.device, aliases: bool) -> Any:
    schema = func._schema
    if any(each.alias_info is not None and each.alias_info.is_write for each in schema.returns):
        return _what_was_given(schema, args, kwargs, out, place)
    wrapped = tree_map(lambda each: _wrap(each, place), out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if aliases else wrapped


def _wrap(value: Any, place: torch.device) -> Any:
    return FakeTensor(value, place) if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) else value


def _what_was_given(schema: Any, args: Any, kwargs: dict[str, Any], out: Any, place: torch.device) -> Any:
    """In place, or with out=: the result is the tensor that was given."""
    outs, results = out if isinstance(out, tuple) else (out,), []
    for returned, value in zip(schema.returns, outs, strict=True):
        found = None
        for number, argument in enumerate(schema.arguments):
            both = argument.alias_info, returned.alias_info
            if None not in both and both[0].before_set == both[1].before_set:
                found = args[number] if number < len(args) else kwargs.get(argument.name)
        results.append(_wrap(value, place) if found is None else found)
    return tuple(results) if isinstance(out, tuple) else results[0]


# ------------------------------------------------------------------------------------------------------------ the rules


def _one_device(func: Any, ours: list[FakeTensor], others: list[torch.Tensor]) -> None:
    places = {str(each.place) for each in ours} | {str(each.device) for each in others}
    if ours and len(places) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {sorted(places)}!"
            f" ({func} at {where()})"
        )


def _look_for_flights(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """A buffer that nccl sends may be read, one that it receives into may not be touched."""
    if not nccl.flying():
        return
    for writes, tensor in _tensors(func, args, kwargs):
        if (what := nccl.in_flight(tensor.inner, writes)) is not None:
            ledger.fault(f"{func} {'writes to' if writes else 'reads'} memory that nccl is {what}")


def _tensors(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[bool, FakeTensor]]:
    """(whether it is written to, tensor) of all arguments."""
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(value):
            if isinstance(leaf, FakeTensor):
                yield writes, leaf


def _sync(what: str) -> None:
    ledger.syncs[f"{where()} {what}"] += 1
    nccl.before_kernel()
    host.seen()


# --------------------------------------------------------------------------------------------------------------- copies


def _copy(func: Any, args: Any, kwargs: dict[str, Any], place: torch.device) -> Any:
    if func is aten.copy_.default:
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        _copy_into(args[0], args[1], non_blocking)
        return args[0]
    source, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    if isinstance(source, FakeTensor):
        nccl.before_kernel()
        _look_for_flights(func, args, kwargs)
        ledger.launches[where()] += 1
        inner = {key: value for key, value in kwargs.items() if key in ("dtype", "memory_format")}
        return FakeTensor(aten._to_copy.default(source.inner, **inner), source.place)
    made = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="cpu")
    up = FakeTensor(made, place)
    _copy_into(up, source, kwargs.get("non_blocking", False))
    return up if dtype == source.dtype else aten._to_copy.default(up, dtype=dtype)


def _copy_into(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    nccl.before_kernel()
    for tensor, writes in ((target, True), (source, False)):
        what = nccl.in_flight(tensor.inner, writes) if isinstance(tensor, FakeTensor) else None
        if what is not None:
            ledger.fault(f"a copy {'writes to' if writes else 'reads'} memory that nccl is {what}")
    up, down = (isinstance(each, FakeTensor) for each in (target, source))
    ledger.launches[where()] += 1
    if up and down:
        target.inner.copy_(source.inner)
    elif up:
        _copy_up(target, source, non_blocking)
    elif non_blocking and host.is_pinned(target):
        host.copy_down(target, source.inner)
    else:
        _sync("copy to the host")
        target.copy_(source.inner)


def _copy_up(target: Any, source: torch.Tensor, non_blocking: bool) -> None:
    """A scalar travels with the kernel; pageable memory is read before the call returns, but the host waits for it."""
    if non_blocking and host.is_pinned(source):
        host.copy_up(target.inner, source)
        return
    if source.dim() and not non_blocking:
        _sync("copy to the GPU")
    target.inner.copy_(source)


def copied_down(tensor: FakeTensor) -> torch.Tensor:
    """`.cpu()`: the host waits."""
    nccl.before_kernel()
    if (what := nccl.in_flight(tensor.inner, False)) is not None:
        ledger.fault(f"a copy to the host reads memory that nccl is {what}")
    ledger.launches[where()] += 1
    _sync("copy to the host")
    return tensor.inner.detach().clone()
