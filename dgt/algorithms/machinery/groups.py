"""What all nodes must make a step with: the settings of parameter groups; and gradients that a GradScaler scaled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import torch

COMPARED = ("lr", "weight_decay")  # at every step; all numbers in the groups when the optimizer is made


def group_values(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """lr and weight decay of every group; as floats, since a tensor may have been changed in place."""
    return [float(group[key]) for group in groups for key in COMPARED]


def group_facts(groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every number in the parameter groups, to seven digits, for the comparison of all ranks at the start."""
    keys = sorted({key for group in groups for key, value in group.items() if _numbers(value)}, key=_rank)
    text = {key: ", ".join(_numbers(group.get(key)) or "none" for group in groups) for key in keys}
    few = dict(list(text.items())[:12])  # the table of facts has a fixed size
    rest = {key: value for key, value in text.items() if key not in few}
    return few | ({"other settings": str(rest)} if rest else {})


def _rank(key: str) -> tuple[bool, str]:
    return key not in COMPARED, key


def _numbers(value: Any) -> str:
    """A number, or several as in betas, in words; nothing for anything else."""
    if isinstance(value, torch.Tensor):
        return f"{value.item():.7g}" if value.numel() == 1 else ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Number):
        return f"{value:.7g}"
    if isinstance(value, (tuple, list)) and value and all(isinstance(part, Number) for part in value):
        return f"({', '.join(map(_numbers, value))})"
    return ""


def unscaled(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Divide the gradients by a GradScaler's scale, unless the user has; False if they are not finite.

    GradScaler leaves a step out where gradients overflow. A node that did so alone would be a step behind its
    neighbours for ever. Here it makes the step without descending, y = 0 and z = theta, and that is a step like any
    other with the gradient B = g - W y / G in place of the one that overflowed: what the trackers add up to is what
    the gradients add up to, as before, no infinite number travels, neighbours need not know, and there is nothing to
    be saved in checkpoints. What the node did not descend by is in B and counts from the next step on. If all nodes
    overflow at once, as they do while the scale is found, all leave the step out. Scales may differ between nodes:
    gradients are compared and sent unscaled.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if bool(optimizer.found_inf):  # type: ignore[attr-defined]
        return False
    if scale is not None:
        inverse = scale.double().reciprocal().float()
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(inverse)
    return True
