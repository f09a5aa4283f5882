"""Detection of models wrapped in DDP or FSDP, which average gradients over all ranks by themselves.

`watch()` installs a global hook on the registration of submodules, which records every wrapper made from then on;
`refuse` raises if one holds a given parameter. A wrapper needs a process group: a hook from `dgt.join()` on is enough.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dgt.errors import ConfigError

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch

SHARDED = "FSDP"
made = 0  # wrappers recorded so far
_seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
_hooks: list[Any] = []


def watch(include_existing: bool) -> None:
    """Record wrappers from here on; with `include_existing`, if the process group is older than dgt, all others."""
    import torch

    if not _hooks:
        _hooks.append(torch.nn.modules.module.register_module_module_registration_hook(_note))
        if include_existing:
            for wrapper in _instances(_classes()):
                _note(wrapper)


def refuse(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Raise if a wrapper holds one of these parameters; returns how many wrappers were made until now."""
    given = list(parameters)
    name = _holder(given)
    if name:
        gc.collect()  # the wrapper may be garbage that is not collected yet
        name = _holder(given)
    if name:
        raise _refusal(name)
    return made


def are_shards(parameters: Sequence[Any], ranks: Sequence[int]) -> bool:
    """Whether FSDP2 has divided these among these ranks, those of a node; raises if it was among others."""
    kinds: tuple[Any, ...] = _known(("torch.distributed.tensor", "DTensor"))
    meshes = [each.device_mesh.mesh.flatten().tolist() for each in parameters if isinstance(each, kinds)]
    if meshes and (len(meshes) < len(parameters) or any(mesh != list(ranks) for mesh in meshes)):
        raise ConfigError(
            f"the model is divided among the ranks {meshes[0]}, all of it or a part: here divide all of it among those "
            f"of a node, {list(ranks)}: fully_shard(model, mesh=node.local.mesh())"
        )
    return bool(meshes)


def refuse_shards() -> None:
    """Raise if any module is sharded: FSDP replaces parameters, and those of the optimizer get no more gradients."""
    sharded = _known(("torch.distributed.fsdp", "FullyShardedDataParallel"), ("torch.distributed.fsdp", "FSDPModule"))
    if sharded and next(_instances(sharded), None) is not None:
        raise _refusal(SHARDED)


def _refusal(name: str) -> ConfigError:
    return ConfigError(
        f"the model is wrapped in {name}, which averages gradients over all ranks: node weights would count for "
        "nothing; leave it unwrapped (dgt.integrations has an Accelerator, a Trainer and strategies for Lightning that "
        "do, and leave each node its own data)"
    )


def _holder(parameters: list[torch.nn.Parameter]) -> str:
    """The name of a wrapper that holds one of them or has replaced it by a shard; empty if there is none."""
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
    """Those of these classes whose modules are imported already; importing them takes a second."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


def _instances(classes: tuple[type, ...]) -> Iterator[Any]:
    """All instances of these classes, found as referrers of the class; takes tens of milliseconds."""
    kinds = list(classes)
    for kind in kinds:
        kinds += kind.__subclasses__()
    return (referrer for referrer in gc.get_referrers(*kinds) if isinstance(referrer, tuple(kinds)))
