"""The twins of torch's optimizers that a base may be: what they make of a parameter and its gradient, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dgt.reference.stacked import Array


class Step(Protocol):
    """(theta, direction, alpha) -> the next theta; second moments are taken of `second`, if not of the direction."""

    def __call__(self, theta: Array, g: Array, lr: float | Array, second: Array | None = None) -> Array: ...


def base(kind: str, options: Mapping[str, Any] | None = None) -> Step:
    """A step of the optimizer of this name; its state is kept from call to call."""
    if kind not in KINDS:
        raise ValueError(f"base={kind}: the twin knows {', '.join(KINDS)}")
    return KINDS[kind](**(options or {}))


def _adam(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    decoupled: bool = False,
) -> Step:
    """m' = b1 m + (1 - b1) g,  v' = b2 v + (1 - b2) g^2,  theta' = theta - a m^ / (sqrt(v^) + eps).

    m^ = m' / (1 - b1^t),  v^ = v' / (1 - b2^t) or, with amsgrad, the largest v' so far divided by it.
    """
    state: dict[str, Any] = {"m": 0.0, "v": 0.0, "largest": 0.0, "t": 0}

    def step(theta: Array, g: Array, lr: float | Array, second: Array | None = None) -> Array:
        second = g if second is None else second
        if decoupled:
            theta = theta * (1 - lr * weight_decay)
        else:
            g, second = g + weight_decay * theta, second + weight_decay * theta
        b1, b2 = betas
        state["t"] += 1
        first = state["m"] = b1 * state["m"] + (1 - b1) * g
        if state["t"] == 1:
            first = (1 - b1) * second  # nothing is known yet: a step by the sign
        state["v"] = b2 * state["v"] + (1 - b2) * second**2
        state["largest"] = np.maximum(state["largest"], state["v"])
        divisor = state["largest"] if amsgrad else state["v"]
        m, v = first / (1 - b1 ** state["t"]), divisor / (1 - b2 ** state["t"])
        return theta - lr * m / (np.sqrt(v) + eps)

    return step


def _adamw(weight_decay: float = 0.01, **options: Any) -> Step:
    return _adam(weight_decay=weight_decay, decoupled=True, **options)


def _sgd(momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Step:
    """u' = b u + g,  theta' = theta - a u'  (nesterov: - a (g + b u'))."""
    state: dict[str, Any] = {"u": 0.0}

    def step(theta: Array, g: Array, lr: float | Array, second: Array | None = None) -> Array:
        g = g + weight_decay * theta
        state["u"] = momentum * state["u"] + g
        direction: Array = g + momentum * state["u"] if nesterov else state["u"]
        return theta - lr * direction

    return step


def _rmsprop(alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0) -> Step:
    """v' = c v + (1 - c) g^2,  theta' = theta - a g / (sqrt(v') + eps)."""
    state: dict[str, Any] = {"v": 0.0}

    def step(theta: Array, g: Array, lr: float | Array, second: Array | None = None) -> Array:
        g = g + weight_decay * theta
        state["v"] = alpha * state["v"] + (1 - alpha) * g**2
        return theta - lr * g / (np.sqrt(state["v"]) + eps)

    return step


KINDS: dict[str, Callable[..., Step]] = {"adam": _adam, "adamw": _adamw, "sgd": _sgd, "rmsprop": _rmsprop}


class Momentum:
    """g -> u' = b u + g, or g + b u' with nesterov; without momentum g."""

    def __init__(self, b: float, nesterov: bool) -> None:
        self._b, self._nesterov = b, nesterov
        self._u: Any = 0.0

    def __call__(self, g: Array) -> Array:
        u: Array = self._b * self._u + g
        self._u = u
        return g + self._b * u if self._nesterov else u
