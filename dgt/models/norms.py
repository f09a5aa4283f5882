"""Normalisation layers: BatchNorm as in the paper, or GroupNorm, which keeps no statistics."""

from __future__ import annotations

from torch import nn

GROUPS = 8


def norm_layer(norm: str, channels: int) -> nn.Module:
    """`batch` or `group` (8 groups)."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(min(GROUPS, channels), channels)
