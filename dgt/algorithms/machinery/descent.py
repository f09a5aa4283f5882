"""Settings of the package's algorithms: momentum, or an optimizer of torch, for the direction they descend in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgt.algorithms.machinery.base import Base
from dgt.config.settings import setting
from dgt.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class Descent:
    """u' = b u + g, used in place of g (n' = g + b u' with nesterov); or the step of an optimizer of torch."""

    momentum: float = setting(
        0.0, "b in u' = b u + g; it moves lr/(1-b), so take lr/10 at 0.9", low=0, high=1, open_high=True
    )
    nesterov: bool = setting(False, "take g + b u' in place of u'")
    base: Any = setting(None, "optimizer of torch for the direction: adamw, rmsprop, ..., or my_module.MyOptimizer")
    base_options: Any = setting(None, "its options but lr, such as {betas: [0.9, 0.99]}")

    def check(self) -> None:
        """What concerns several of them at once, and whether there is such an optimizer."""
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov=True: needs a momentum above 0")
        if self.momentum and self.base is not None:
            raise ConfigError(f"momentum={self.momentum:g}: not with a base, which has its own: base_options")
        if self.base_options is not None and self.base is None:
            raise ConfigError(f"base_options={self.base_options}: of which base? base=adamw, for example")
        if self.base_options is not None and not isinstance(self.base_options, Mapping):
            raise ConfigError(f"base_options={self.base_options}: must be a table, such as {{betas: [0.9, 0.99]}}")
        if self.base is not None:
            self.made_base()

    def made_base(self) -> Base | None:
        """The optimizer that is asked for."""
        return None if self.base is None else Base(self.base, self.base_options)

    def of_groups(self) -> dict[str, Any]:
        """Those that a parameter group may have of its own."""
        return {} if self.base is not None else {"momentum": self.momentum, "nesterov": self.nesterov}


def with_momentum(gradient: torch.Tensor, u: torch.Tensor, group: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
    """u <- b u + g; returns it, or g + b u in `out` with nesterov; `out` may be the gradient's own memory."""
    b = float(group["momentum"])
    torch.add(gradient, u, alpha=b, out=u)
    return torch.add(gradient, u, alpha=b, out=out) if group["nesterov"] else u


def with_momentum_arrays(gradient: np.ndarray, u: np.ndarray, group: Mapping[str, Any]) -> np.ndarray:
    """The same for arrays; the gradient is overwritten with nesterov."""
    b = float(group["momentum"])
    u *= b
    u += gradient
    if group["nesterov"]:
        gradient += b * u
        return gradient
    return u
