"""Residual networks for 32 x 32 images: ResNet-18 (11,173,962 parameters for ten classes) and ResNet-20 (272,474).

torchvision's are for 224 x 224: another stem, always four stages, and an import that costs every rank two seconds.
Names and shapes agree with torchvision's, so that a ResNet-18 saved here loads there once its stem is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dgt.models.norms import norm_layer


class Block(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + x); x is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = norm_layer(norm, after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm_layer(norm, after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)).add_(shortcut))


class ResNet(nn.Module):
    """A 3 x 3 stem, stages of residual blocks (each after the first halves the image), average pooling, linear."""

    def __init__(self, widths: Sequence[int], blocks: int, classes: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = norm_layer(norm, widths[0])
        self.relu = nn.ReLU(inplace=True)
        before = widths[0]
        self.stages = len(widths)
        for number, width in enumerate(widths, start=1):
            stage = []
            for k in range(blocks):
                stage.append(Block(before, width, 2 if k == 0 and number > 1 else 1, norm))
                before = width
            self.add_module(f"layer{number}", nn.Sequential(*stage))
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


def resnet18(classes: int = 10, norm: str = "batch") -> nn.Module:
    """The paper's model: widths 64, 128, 256, 512, two blocks each."""
    return ResNet((64, 128, 256, 512), 2, classes, norm)


def resnet20(classes: int = 10, norm: str = "batch") -> nn.Module:
    """The small one for CIFAR: widths 16, 32, 64, three blocks each."""
    return ResNet((16, 32, 64), 3, classes, norm)
