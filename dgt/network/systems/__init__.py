"""Algorithms on quadratics as linear systems, one module per algorithm: what `dgt plan` predicts from.

With gradients g_i = h_i theta - b_i + sigma xi_{i,t} a run is a linear system driven by white noise, the same for every
coordinate, and periodic on a schedule or with local steps:

    x_{t+1} = M_t x_t + N_t xi_t,    M_{t+P} = M_t,    x = (theta - theta*, what else the algorithm keeps)

`SYSTEM` of the module `x.py` here is that of `algorithm=x`. The moments of x are in `network/moments.py`, the largest
stable step and the rate are in `network/stability.py`: both go backwards, r' = M^T r, and know no algorithm.
"""

from __future__ import annotations

import importlib
import pkgutil

from dgt.network.systems.base import Quadratic, System, Vectors

__all__ = ["Quadratic", "System", "Vectors", "named", "names"]


def names() -> list[str]:
    """The algorithms that have one."""
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in modules if hasattr(importlib.import_module(f"{__name__}.{name}"), "SYSTEM")]


def named(algorithm: str) -> type[System] | None:
    """The system of `algorithm=x`, if it has one."""
    if algorithm not in names():
        return None
    found: type[System] = importlib.import_module(f"{__name__}.{algorithm}").SYSTEM
    return found
