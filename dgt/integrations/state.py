"""What the integrations share: the averaged state of a model, and what a checkpoint of rank 0 keeps of an optimizer."""

from __future__ import annotations

from typing import Any

import torch

from dgt.algorithms import DecentralizedOptimizer
from dgt.errors import ConfigError
from dgt.exchange.network import Network


def missing(framework: str, extra: str, error: ImportError) -> ImportError:
    """One sentence for a framework that cannot be imported."""
    return ImportError(f"dgt.integrations.{extra} needs {framework} ({error}): pip install 'dgt[{extra}]'")


def refuse_groups(network: Network, what: str) -> None:
    """Frameworks know one kind of ranks; those of a node with several would log, write and shuffle as nodes."""
    ranks = network.node.local.size
    if ranks > 1:
        raise ConfigError(f"{what}: not with ranks_per_node={ranks}; leave it out, or write the loop yourself")


def averaged_state(network: Network, model: torch.nn.Module) -> dict[str, Any]:
    """A copy of the network average's `state_dict`; all ranks call it, also inside `with network.average(model)`."""
    if not network.averaging.isdisjoint(map(id, model.parameters())):
        return _copy(model)
    with network.average(model):
        return _copy(model)


def _copy(model: torch.nn.Module) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in model.state_dict().items()}


def group_settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """lr and the other settings of the parameter groups: all that a checkpoint of rank 0 can keep for every node.

    Trackers differ between nodes, and their weighted sum is that of the gradients: those of rank 0 would be wrong
    elsewhere.
    """
    return {"param_groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]}


def restore_group_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take these settings over; the optimizer of dgt goes on with trackers made anew from its next gradients."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update(saved)


def is_decentralized(optimizer: Any) -> bool:
    return isinstance(optimizer, DecentralizedOptimizer)
