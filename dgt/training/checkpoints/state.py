"""What a rank needs to continue exactly where it was, as a tree of tensors and plain values.

Batches depend on (seed, node, iteration) alone, so the iteration is the data's order and cursor. The optimizer's B
holds tracker and last gradient in one vector (`algorithms/gradient_tracking.py`); nothing is in flight when it is made.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

Tree = dict[str, Any]
GPU = "cuda"  # its random numbers, in the state of a run on one


def copied(tree: Any, into: Any = None, again: bool = False) -> Any:
    """A copy in main memory; tensors of the copy before are used again where they fit.

    again   the copy will be made again: a GPU's tensors go to pinned memory, all of them before the host waits once
    """
    copy = _copied(tree, into, again)
    if again and torch.cuda.is_initialized():
        done = torch.cuda.Event()
        done.record()
        done.synchronize()
    return copy


def _copied(tree: Any, into: Any, pin: bool) -> Any:
    if isinstance(tree, dict):
        before = into if isinstance(into, dict) else {}
        return {key: _copied(value, before.get(key), pin) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        before_list = into if isinstance(into, list) and len(into) == len(tree) else [None] * len(tree)
        return [_copied(value, old, pin) for value, old in zip(tree, before_list, strict=True)]
    if not isinstance(tree, torch.Tensor):
        return tree
    on_gpu, own = tree.is_cuda and pin, tree.detach()
    if isinstance(into, torch.Tensor) and into.shape == tree.shape and into.dtype == tree.dtype:
        return into.copy_(own, non_blocking=on_gpu)
    if on_gpu:
        return torch.empty(tree.shape, dtype=tree.dtype, pin_memory=True).copy_(own, non_blocking=True)
    return own.to("cpu", copy=True).contiguous()


def on_this_device(template: Tree, found: Tree) -> Tree:
    """`found` with the random numbers of a GPU only where this process draws some; those of the template count, where
    the state was made without a GPU."""
    here, there = template.get("random"), found.get("random")
    if not isinstance(here, dict) or not isinstance(there, dict):
        return found
    drawn = {key: value for key, value in there.items() if key != GPU or key in here}
    return {**found, "random": drawn | ({GPU: here[GPU]} if GPU in here and GPU not in there else {})}


def mismatch(template: Any, found: Any, path: str = "") -> str:
    """What differs in the layout of two trees, in words; empty if nothing does. Lists of plain values may differ."""
    name = path or "the state"
    if isinstance(template, dict):
        if not isinstance(found, dict):
            return f"{name} should be a group, found {type(found).__name__}"
        if template.keys() != found.keys():
            odd = sorted(map(str, template.keys() ^ found.keys()))
            return f"{name} has other entries: {', '.join(odd[:4])}"
        wrong = (mismatch(template[key], found[key], f"{path}.{key}" if path else str(key)) for key in template)
        return next((words for words in wrong if words), "")
    if isinstance(template, torch.Tensor):
        if not isinstance(found, torch.Tensor):
            return f"{name} should be a tensor, found {type(found).__name__}"
        if template.shape != found.shape or template.dtype != found.dtype:
            return f"{name} is {_described(found)}, here {_described(template)}"
        return "" if found.is_contiguous() else f"{name} is not laid out in order"
    if isinstance(template, list | tuple):
        if not isinstance(found, list):
            return f"{name} should be a list, found {type(found).__name__}"
        if any(isinstance(value, dict | list | torch.Tensor) for value in [*template, *found]):
            if len(template) != len(found):
                return f"{name} has {len(found)} entries, here {len(template)}"
            wrong = (mismatch(a, b, f"{name}.{k}") for k, (a, b) in enumerate(zip(template, found, strict=True)))
            return next((words for words in wrong if words), "")
        return ""
    if isinstance(found, dict | list | torch.Tensor):
        return f"{name} should be a plain value, found {type(found).__name__}"
    return ""


def _described(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'a scalar'} of {str(tensor.dtype).removeprefix('torch.')}"


def seed_generators(seed: int, stream: int = 0) -> None:
    """Start all global random number generators, so that a run can be repeated."""
    words = np.random.SeedSequence([seed, stream]).generate_state(2)
    random.seed(int(words[0]))
    np.random.seed(words[0])
    torch.manual_seed(int(words[1]))


def random_state(device: torch.device) -> Tree:
    """The states of all global random number generators."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    state: Tree = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "position": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state[GPU] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Tree, device: torch.device) -> None:
    python, numbers = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": numbers["key"].numpy().astype(np.uint32), "pos": numbers["position"]},
            "has_gauss": numbers["has_gauss"],
            "gauss": numbers["gauss"],
        }
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[GPU], device)
