"""Models to train, by the names used in `conf/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dgt.models.cnn import SmallCNN, StridedCNN
from dgt.models.resnet import resnet18, resnet20

__all__ = ["SmallCNN", "StridedCNN", "decay_groups", "image_model", "resnet18", "resnet20"]

IMAGE_MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18, "resnet20": resnet20, "cnn": SmallCNN, "strided_cnn": StridedCNN,
}  # fmt: skip


def image_model(name: str, classes: int, norm: str, seed: int) -> nn.Module:
    """The same start on every node, from the seed; the caller's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return IMAGE_MODELS[name](classes=classes, norm=norm)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with weight decay on the weights of convolutions and linear layers only."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, kinds)}
    heavy = [parameter for parameter in model.parameters() if id(parameter) in decayed]
    light = [parameter for parameter in model.parameters() if id(parameter) not in decayed]
    groups = [{"params": heavy, "weight_decay": weight_decay}, {"params": light, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
