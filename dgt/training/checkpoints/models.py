"""A model in a file of its own: model.pt, best.pt, and what `dgt export` writes.

    state = torch.load("model.pt", weights_only=True); model.load_state_dict(state)       # no dgt needed

It is what `torch.save(model.state_dict(), ...)` writes. Where it is from (iteration, nodes, ...) is an attribute of the
dictionary, as torch's own `_metadata` is: no entry is added, and the file can tell by itself.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dgt.config.files import read, replacing
from dgt.errors import ConfigError
from dgt.runs.folders import sync
from dgt.training.checkpoints import untrusted
from dgt.training.checkpoints.files import serialised
from dgt.training.checkpoints.state import copied

ModelState = OrderedDict[str, Any]
About = dict[str, Any]
ABOUT, VERSIONS = "_dgt", "_metadata"  # attributes of the dictionary: ours, and torch's


def state_of(model: torch.nn.Module, about: Mapping[str, Any]) -> ModelState:
    """The model's state_dict, copied to main memory, and where it is from."""
    live = model.state_dict()
    state: ModelState = OrderedDict(copied(live))
    # of what modules say about themselves their versions, which are plain numbers
    said = {name: entry.get("version") for name, entry in vars(live).get(VERSIONS, {}).items()}
    versions = OrderedDict((name, {"version": number}) for name, number in said.items() if isinstance(number, int))
    vars(state).update({VERSIONS: versions, ABOUT: dict(about)})
    return state


def with_about(state: Mapping[str, Any], about: Mapping[str, Any]) -> ModelState:
    """The same tensors, and where they are from."""
    found: ModelState = OrderedDict(state)
    vars(found).update({**vars(state), ABOUT: dict(about)} if isinstance(state, OrderedDict) else {ABOUT: dict(about)})
    return found


def about_of(state: object) -> About:
    """Where a model is from, as far as it says: plain values by name; nothing of a file that dgt did not write."""
    found = vars(state).get(ABOUT) if isinstance(state, OrderedDict) else None
    if not isinstance(found, dict) or not all(isinstance(value, int | float | str) for value in found.values()):
        return {}
    return {str(name): value for name, value in found.items()}


def write_model(path: Path, state: ModelState) -> None:
    """All of it or nothing, and on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = serialised(state)
    with replacing(path) as draft, memoryview(data) as content:
        draft.write(content)
        draft.flush()
        os.fsync(draft.fileno())
    sync(path.parent)


def read_about(path: Path) -> About:
    """Where the model in this file is from; nothing if there is no such file, or none of dgt's. `OSError` elsewhere."""
    try:
        return about_of(untrusted.outline(read(path, untrusted.most_bytes()), str(path)))
    except (FileNotFoundError, ConfigError):
        return {}


def parsed(data: bytes, where: str, key: str | None = None) -> ModelState:
    """The model in a file, or below `key` in that of a rank; `ConfigError` for whatever is no model.

    The file may be somebody else's: nothing is run, and no more is made than is stored.
    """
    outline = untrusted.outline(data, where)
    found = outline.get(key) if key is not None and isinstance(outline, dict) else outline
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{where}: refused, holds no model, names with a tensor each")
    size = 0
    for name, tensor in tensors_in(found):
        if tensor.layout != torch.strided or tensor.is_quantized or not tensor.is_contiguous():
            raise ConfigError(f"{where}: refused, {name[:60]} is no plain tensor")
        size += tensor.nbytes
    if size > len(data):
        raise ConfigError(f"{where}: refused, its tensors have {size} bytes, the file {len(data)}")
    whole = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    state = whole if key is None else whole[key]
    return state if isinstance(state, OrderedDict) else OrderedDict(state)


def tensors_in(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor, also those within what modules keep beside their parameters (`get_extra_state`), with its name."""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        yield from tensors_in(value, f"{name}.{key}" if name else str(key))
