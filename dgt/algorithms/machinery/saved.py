"""Is this the `state_dict` of an optimizer like this one? A wrong one is an error that says what is different."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dgt.algorithms.machinery.groups import COMPARED
from dgt.errors import ConfigError

if TYPE_CHECKING:
    from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer


def checked(optimizer: DecentralizedOptimizer, state_dict: Any) -> dict[str, Any]:
    """The part of it that is dgt's; `ConfigError` unless it fits."""
    name, parts = type(optimizer).__name__, state_dict if isinstance(state_dict, dict) else {}
    saved, groups = parts.get("dgt"), parts.get("param_groups")
    if not isinstance(saved, dict) or not isinstance(saved.get("iteration"), int) or not _are_groups(groups):
        maker = "an optimizer of torch.optim" if groups is not None and saved is None else "no optimizer of dgt"
        raise ConfigError(f"state_dict: made by {maker}, not by {name}; give what {name}.state_dict() returned")
    if saved.get("algorithm") != name:
        raise ConfigError(f"state_dict: made by {saved.get('algorithm')}, not by {name}")
    sizes, given = (
        [len(group["params"]) for group in them] for them in (optimizer.param_groups, parts["param_groups"])
    )
    if sizes != given:
        raise ConfigError(f"state_dict: its groups have {given} parameters, this {name}'s have {sizes}")
    for key, tensor in optimizer.buffers().items():
        found = tuple(saved[key].shape) if isinstance(saved.get(key), torch.Tensor) else "nothing"
        if found != tuple(tensor.shape):
            raise ConfigError(f"state_dict: {key} should have shape {tuple(tensor.shape)}, found {found}")
    layout = optimizer.flat.layout()
    if saved.get("layout", layout) != layout:  # as many numbers, but others
        layouts = f"{str(saved['layout'])[:90]}, here {layout[:90]}"
        raise ConfigError(f"state_dict: made for parameters of other shapes or in another order: {layouts}")
    return saved


def _are_groups(groups: Any) -> bool:
    """Whether these can be an optimizer's parameter groups in a `state_dict`."""
    needed = {"params", *COMPARED}
    return isinstance(groups, list) and all(isinstance(group, dict) and needed <= group.keys() for group in groups)
