"""What all nodes must make a step with: the settings of parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch

COMPARED = ("lr", "weight_decay")  # at every step; all numbers in the groups when the optimizer is made


def group_values(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """lr and weight decay of every group, momentum or betas; as floats, since a tensor may be changed in place."""
    values = [float(group[key]) for group in groups for key in COMPARED]
    for group in groups:
        if group.get("momentum"):
            values.append(float(group["momentum"]))
        if "betas" in group:
            values += map(float, group["betas"])
    return values


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
