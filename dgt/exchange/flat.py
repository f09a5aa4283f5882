"""All parameters of a model as one flat buffer, so that one message carries them.

The parameters become views of the buffer; the model's owner sees no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgt.config import ConfigError


class FlatParameters:
    """`values` [parameters] holds every parameter, group after group; `slices[k]` is the range of group k."""

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]]) -> None:
        self.parameters = [parameter for group in groups for parameter in group]
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "no parameter at all"
            raise ConfigError(f"parameters: all must share one dtype and device, found {found}")
        sizes = [parameter.numel() for parameter in self.parameters]
        self.values = torch.empty(sum(sizes), dtype=self.parameters[0].dtype, device=self.parameters[0].device)
        self._views = [
            view.view_as(parameter) for view, parameter in zip(self.values.split(sizes), self.parameters, strict=True)
        ]
        with torch.no_grad():
            for view, parameter in zip(self._views, self.parameters, strict=True):
                view.copy_(parameter)
                parameter.data = view
        self.slices: list[slice] = []
        start = 0
        for group in groups:
            length = sum(parameter.numel() for parameter in group)
            self.slices.append(slice(start, start + length))
            start += length

    def like(self) -> torch.Tensor:
        """A zeroed buffer of the same layout."""
        return torch.zeros_like(self.values)

    def gather_gradients(self, out: torch.Tensor) -> None:
        """Copy every parameter's gradient into `out` [parameters]; no gradient counts as zero."""
        start = 0
        for parameter in self.parameters:
            piece = out[start : start + parameter.numel()]
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.view_as(parameter).copy_(parameter.grad)
            start += parameter.numel()

    def layout(self) -> str:
        """Shapes and dtype in order: equal on all ranks, or messages would be misread."""
        shapes = " ".join("x".join(map(str, parameter.shape)) or "scalar" for parameter in self.parameters)
        return f"{self.values.numel()} of {self.values.dtype}: {shapes}"
