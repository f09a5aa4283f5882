"""Gradients that a `torch.amp.GradScaler` has scaled."""

from __future__ import annotations

from collections.abc import Iterable

import torch


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
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients and not any(gradient.is_sparse for gradient in gradients):
            torch._foreach_mul_(gradients, inverse)
            return True
        for gradient in gradients:
            gradient.mul_(inverse)
    return True
