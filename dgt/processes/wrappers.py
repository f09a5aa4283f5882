"""Models in torch's data parallel wrappers: DDP and FSDP average gradients over all ranks by themselves.

Every wrapper that is made after `watch()` is seen by a hook on the registration of submodules; `refuse` says which of
them holds a parameter. No wrapper is older than the process group, so looking from `dgt.join()` on is enough.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dgt.errors import ConfigError

if TYPE_CHECKING:  # the `dgt` command asks where it is while torch is still on its way
    import torch

SHARDED = "FSDP"
made = 0  # wrappers seen so far
_seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
_hooks: list[Any] = []


def watch(look_back: bool) -> None:
    """Notice wrappers from here on, and where a process group was there before dgt, those that exist already."""
    import torch

    if not _hooks:
        _hooks.append(torch.nn.modules.module.register_module_module_registration_hook(_note))
        if look_back:
            for wrapper in _instances(_classes()):
                _note(wrapper)


def refuse(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Raise if a wrapper holds one of these parameters; returns how many wrappers were made until now."""
    given = list(parameters)
    name = _holder(given)
    if name:
        gc.collect()  # nobody may refer to the wrapper any more
        name = _holder(given)
    if name:
        raise _refusal(name)
    return made


def refuse_shards() -> None:
    """Raise if anything is sharded. FSDP replaces parameters, so that a model's old ones get no gradients any more."""
    sharded = _known(("torch.distributed.fsdp", "FullyShardedDataParallel"), ("torch.distributed.fsdp", "FSDPModule"))
    if sharded and next(_instances(sharded), None) is not None:
        raise _refusal(SHARDED)


def _refusal(name: str) -> ConfigError:
    return ConfigError(
        f"the model is wrapped in {name}, which averages gradients over all ranks: node weights would count for "
        "nothing; leave it unwrapped (Accelerate: prepare(optimizer) at most, prepare(loader) splits this node's own "
        "data over all ranks; Lightning: devices=1; Trainer: your own loop)"
    )


def _holder(parameters: list[torch.nn.Parameter]) -> str:
    """The name of a wrapper that holds one of them, or has put a shard in its place; empty if there is none."""
    own = {id(parameter) for parameter in parameters}
    shards = _known(("torch.distributed.tensor", "DTensor"), ("torch.distributed.fsdp._flat_param", "FlatParameter"))
    if any(isinstance(parameter, shards) for parameter in parameters):
        return SHARDED
    for wrapper in list(_seen):
        if not own.isdisjoint(map(id, wrapper.parameters())):
            return type(wrapper).__name__
    return ""


def _note(wrapper: torch.nn.Module, *_: Any) -> None:
    global made
    if isinstance(wrapper, _classes()) and wrapper not in _seen:
        made += 1
        _seen.add(wrapper)


def _classes() -> tuple[type, ...]:
    return _known(
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    )


def _known(*names: tuple[str, str]) -> tuple[type, ...]:
    """Those of these classes whose modules somebody has imported: that takes a second."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


def _instances(classes: tuple[type, ...]) -> Iterator[Any]:
    """Every object refers to its class, where that is written in Python; takes tens of milliseconds."""
    kinds = list(classes)
    for kind in kinds:
        kinds += kind.__subclasses__()
    return (referrer for referrer in gc.get_referrers(*kinds) if isinstance(referrer, tuple(kinds)))
