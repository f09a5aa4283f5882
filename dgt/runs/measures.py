"""What runs are measured by: the metrics' names in words, which way is better, and which part of a run counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

Metrics = dict[str, np.ndarray]  # each [copies]
NodeMetrics = dict[str, np.ndarray]  # each [nodes]: of the first copy


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric as figures and tables show it."""

    metric: str
    label: str
    symbol: str = ""  # in TeX, for the axis
    late: float = 0.8  # share of the iterations after which values count for the verdict
    late_words: str = "last fifth"
    logarithmic: bool = False
    close_up: bool = False  # the plateau again on a linear scale, where a logarithmic one hides what differs
    higher_is_better: bool = False


# the paper's: exact gradients and the distance for least squares; the mean loss of 30 iterations and the accuracy
# of every node's own model for models trained on data
GRADIENT = Measure(
    "grad_norm",
    "weighted gradient norm",
    r"$\Vert\frac{1}{n}\,\Sigma_i\lambda_i\nabla F_i(\theta_i)\Vert$",
    logarithmic=True,
    close_up=True,
)
DISTANCE = Measure("distance", "distance to the optimum", r"$\Vert\bar\theta-\theta^\star\Vert$", logarithmic=True)
LOSS = Measure("loss", "interval loss", late=0.5, late_words="second half")
ACCURACY = Measure("accuracy", "test accuracy", higher_is_better=True)
ALL = (
    GRADIENT,
    DISTANCE,
    LOSS,
    ACCURACY,
    Measure("average_accuracy", "test accuracy of the average model", higher_is_better=True),
    Measure("test_loss", "test loss"),
    Measure("average_test_loss", "test loss of the average model"),
    Measure("consensus", "distance of the nodes from their average", logarithmic=True),
)
BY_METRIC = {measure.metric: measure for measure in ALL}
# what an evaluation says of the machine and of the arithmetic, not of what was learnt
UPKEEP = ("tracking_residual", "seconds", "evaluation_share", "bytes_sent")


def main(metrics: Iterable[str]) -> Measure:
    """What strategies are compared by: the gradient norm where it is known, else the loss."""
    return GRADIENT if GRADIENT.metric in set(metrics) else LOSS


def apart(value: float, other: float) -> str:
    """How far `value` is from `other`: in percent of it, or as a number where there is nothing to take percent of."""
    return f"{abs((value - other) / other):.1%}" if other else f"{abs(value - other):.4g}"


def drawn(metrics: Iterable[str]) -> list[Measure]:
    """The paper's measures among these metrics."""
    known = set(metrics)
    return [measure for measure in (main(known), DISTANCE, ACCURACY) if measure.metric in known]
