"""The interface between a problem and the trainer, and everything a problem of one's own has to provide.

class MyProblem(dgt.Problem):
    def __init__(self, context: dgt.ProblemContext, width: int = 32) -> None:
        self.model = ...                              # on context.device, trained on node context.node's own data

    def backward(self, iteration: int) -> float:
        loss = ...
        loss.backward()                               # the optimizer does the rest
        return loss.item()

    def measure(self) -> dict[str, float]:            # optional: what to report besides the loss
        return {"accuracy": ...}

Settings that are to be checked before any rank starts, and to be listed, stand in a nested dataclass `Settings`, whose
fields `dgt.config.settings.setting` makes; the constructor gets them as keyword arguments of the same names.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dgt.config.schema import LR
from dgt.errors import ConfigError
from dgt.network.weights import Weights


@dataclass(frozen=True, slots=True)
class ProblemContext:
    """What a node knows when its problem is made.

    node           its number, from 0
    part, parts    which of the node's ranks this is, and how many there are: each takes its part of the node's batch,
                   `context.part_of(samples)`, as the node's gradient is the mean of theirs
    weights        lambda of all nodes, [nodes]
    seed           of data, start and noise; `seeds` are all of them, where a problem stacks several
    device, dtype  of model and data
    cache          where data sets are kept on this host
    """

    node: int
    weights: Weights
    seed: int
    device: torch.device
    dtype: torch.dtype
    seeds: tuple[int, ...] = ()
    cache: Path | None = None
    part: int = 0
    parts: int = 1

    @property
    def nodes(self) -> int:
        return int(self.weights.size)

    def part_of(self, batch: np.ndarray) -> np.ndarray:
        """What this rank takes of a node's batch [samples, ...]: as much as the other ranks of the node."""
        if len(batch) % self.parts:
            raise ConfigError(
                f"a batch of {len(batch)} samples: with ranks_per_node={self.parts} give a multiple of {self.parts}, "
                "as all ranks of a node take as many"
            )
        return batch[self.part :: self.parts]


class Problem(abc.ABC):
    """One node's share of the global loss F = 1/n sum_i lambda_i F_i.

    `copies` independent problems may be stacked in one model (the same network, several seeds): every metric
    then has one value per copy, and the flat parameters split evenly into the copies.
    """

    Settings: ClassVar[type | None] = None
    """A dataclass of the constructor's keyword arguments, with defaults, help and bounds."""
    local_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that may differ from rank to rank, such as the folder of the data."""
    usual_dtype: ClassVar[torch.dtype] = torch.float32
    """What dtype=auto is."""
    usual_lr: ClassVar[float] = LR
    """What lr=null is."""
    is_small: ClassVar[bool] = False
    """Whether a GPU would only slow it down: device=auto is the CPU then."""
    is_quadratic: ClassVar[bool] = False
    """Whether F_i is the quadratic of `least_squares`, so that `dgt plan` and `dgt simulate` compute it exactly."""
    stacks_seeds: ClassVar[bool] = False
    """Whether several seeds can be trained in one model."""

    model: torch.nn.Module
    copies: int = 1
    measures_start: bool = True
    """Whether the start is worth an evaluation."""
    mixes_buffers: bool = False
    """Whether floating-point buffers (BatchNorm statistics) are mixed with the neighbours' after each step."""

    uses_autograd: bool = True
    """Whether the gradient comes from a forward and backward pass of `model`."""

    smoothness: float | None = None
    """beta, the largest curvature of any node's loss, where it is known: messages about step sizes use it."""

    @classmethod  # noqa: B027
    def check_settings(cls, settings: Any, weights: Weights) -> None:
        """Raise `ConfigError` for what can be known to be wrong before any rank starts."""

    @classmethod  # noqa: B027
    def fetch_data(cls, settings: Any, cache: Path, say: Callable[[str], None]) -> None:
        """Make sure the data is on this host; called once per host, before the ranks need it."""

    @classmethod
    def shard_sizes(cls, settings: Any, nodes: int, seed: int) -> Sequence[int] | None:
        """Samples of each node where the weights do not say, for weights=data_size; None: not known."""
        return None

    @classmethod
    def steps_per_epoch(cls, settings: Any, nodes: int) -> float | None:
        """Iterations in which so many nodes see as many samples as there are in all, for epochs=; None: not known."""
        return None

    @classmethod
    def parameter_count(cls, settings: Any) -> int | None:
        """Parameters of the model with these settings, for `dgt plan`; None: not known without making it."""
        return None

    @abc.abstractmethod
    def backward(self, iteration: int) -> float | None:
        """Leave the stochastic gradient of F_i in the parameters' `.grad`, which is empty before; return the loss.

        The network's mean of the returned losses since the last evaluation is reported as `loss`.
        """

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs besides the model and the iteration: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over what `state_dict` gave."""

    def go_on_with(self, members: Sequence[int], weights: Weights) -> None:  # noqa: B027
        """Nodes were lost: `members` are left, with these weights among them."""

    def parameters(self) -> Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]:
        """Parameters or parameter groups, as for any torch optimizer."""
        return self.model.parameters()

    def measure(self) -> Mapping[str, float | np.ndarray]:
        """This node's quantities whose lambda-weighted mean over the network is wanted; [copies, ...] if stacked."""
        return {}

    def measure_part(self, part: int, parts: int) -> Mapping[str, float | np.ndarray] | None:
        """With several ranks per node: this rank's part of `measure`, which are added up; or None but on the first,
        which measures alone then."""
        return self.measure() if part == 0 else None

    def measure_average(self, part: int, parts: int) -> dict[str, float]:
        """While `model` is the network average: this rank's part of its metrics; the ranks' parts are added up."""
        return {}

    def recalibration(self) -> Callable[[], None] | None:
        """How to bring the buffers up to date with the averaged parameters, if they should be."""
        return None

    def summarise(self, means: Mapping[str, np.ndarray], average: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics [copies] from the network's means and its average parameters [copies, parameters]."""
        return {name: np.broadcast_to(values, (self.copies,)) for name, values in means.items()}
