"""The table of metrics: what each is called, which way is better, and who shows it. A new metric is a line in `ALL`.

    BY_METRIC["grad_norm"].label          titles, units and scales of tables, figures and the page
    ORDER, SHOWN, COLUMNS, UPKEEP         names for metrics.jsonl, progress, compare.csv; and what nobody learns from

Metrics that a problem reports under names of its own need no line here: `measure_of(name)` makes one.
`docs/run_directory.md` shows this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Metrics = dict[str, np.ndarray]  # each [copies]
NodeMetrics = dict[str, np.ndarray]  # each [nodes]: of the first copy


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric, as it is recorded and as figures and tables show it."""

    metric: str
    label: str
    meaning: str = ""  # an equation, or a sentence
    unit: str = ""
    symbol: str = ""  # in TeX, for the axis
    late: float = 0.8  # share of the iterations after which values count for the verdict
    late_words: str = "last fifth"
    logarithmic: bool = False
    close_up: bool = False  # the plateau again on a linear scale, where a logarithmic one hides what differs
    better: str = ""  # lower or higher; empty where neither is a merit
    shown: bool = False  # in progress, and as a mean of the last fifth in summary.json
    upkeep: bool = False  # about the machine and the arithmetic, not about what was learnt
    of_all_seeds: bool = False  # where seeds are stacked they share messages and time: no value of one seed
    recorded: bool = True  # else only compared with by `training/health.py`

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"


# the paper's: exact gradients and the distance for least squares; the mean loss of 30 iterations and the accuracy
# of every node's own model for models trained on data
GRADIENT = Measure(
    "grad_norm",
    "weighted gradient norm",
    "norm of 1/n sum_i lambda_i grad F_i(theta_i), where gradients are exact",
    symbol=r"$\Vert\frac{1}{n}\,\Sigma_i\lambda_i\nabla F_i(\theta_i)\Vert$",
    logarithmic=True,
    close_up=True,
    better="lower",
    shown=True,
)
DISTANCE = Measure(
    "distance",
    "distance to the optimum",
    "from the strategy's network average to the closed-form optimum",
    symbol=r"$\Vert\bar\theta-\theta^\star\Vert$",
    logarithmic=True,
    better="lower",
    shown=True,
)
LOSS = Measure(
    "loss",
    "interval loss",
    "1/n sum_i lambda_i F_i(theta_i); of models trained on data the mean of the mini-batch losses since the last "
    "evaluation, weighted alike (the paper's interval loss)",
    late=0.5,
    late_words="second half",
    better="lower",
    shown=True,
)
ACCURACY = Measure(
    "accuracy",
    "test accuracy",
    "1/n sum_i lambda_i (node i's own model on the test set)",
    better="higher",
    shown=True,
)
CONSENSUS = Measure(
    "consensus",
    "distance of the nodes from their average",
    "sqrt(1/n sum_i lambda_i |theta_i - average|^2)",
    logarithmic=True,
    shown=True,
)
SECONDS = Measure("seconds", "training time", "without evaluations", "s", upkeep=True, of_all_seeds=True)
EVALUATION_SHARE = Measure(
    "evaluation_share", "share of the time spent evaluating", "of all time so far", upkeep=True
)  # fmt: skip
BYTES_SENT = Measure(
    "bytes_sent", "sent by all nodes", "so far, by all nodes together", "bytes", upkeep=True, of_all_seeds=True
)

# in the order of the tables of `dgt report`
ALL = (
    GRADIENT,
    DISTANCE,
    LOSS,
    ACCURACY,
    Measure(
        "average_accuracy",
        "test accuracy of the average model",
        "of the network's average model, the test set split over the ranks",
        better="higher",
        shown=True,
    ),
    Measure("test_loss", "test loss", "1/n sum_i lambda_i (node i's own model on the test set)", better="lower"),
    Measure("average_test_loss", "test loss of the average model", "of the network's average model", better="lower"),
    CONSENSUS,
    Measure(
        "tracking_residual",
        "tracking residual",
        "norm of sum_i pi_i (y_i - G_i g_i), how far the trackers are from tracking, or with exact diffusion of "
        "sum_i pi_i c_i: rounding only, unless a message was lost",
        upkeep=True,
    ),
    SECONDS,
    EVALUATION_SHARE,
    BYTES_SENT,
    Measure("average_norm", "norm of the average", "size of the average model", upkeep=True, recorded=False),
    Measure(
        "tracking_scale",
        "scale of the tracking residual",
        "size of what the residual adds up",
        upkeep=True,
        recorded=False,
    ),
)
# of single nodes, in nodes.jsonl
OF_NODES = (
    Measure("loss", "loss", "node i's loss"),
    Measure("from_average", "distance from the network average", "|theta_i - average|"),
    Measure("waited", "waited for neighbours so far", "time spent waiting for messages", "s"),
    Measure("accuracy", "test accuracy", "of node i's model"),
    Measure("test_loss", "test loss", "of node i's model"),
)

BY_METRIC = {measure.metric: measure for measure in ALL}
LEARNT = tuple(measure.metric for measure in ALL if not measure.upkeep)
UPKEEP = tuple(measure.metric for measure in ALL if measure.upkeep)
_LOSS_FIRST = sorted((measure for measure in ALL if measure.recorded), key=lambda measure: measure is not LOSS)
ORDER = tuple(measure.metric for measure in _LOSS_FIRST)  # within a line of metrics.jsonl; every problem has a loss
SHOWN = tuple(measure.metric for measure in _LOSS_FIRST if measure.shown)
COLUMNS = tuple(measure.metric for measure in _LOSS_FIRST if not measure.of_all_seeds)  # of compare.csv


def measure_of(metric: str) -> Measure:
    """The measure of this name; of a problem's own metric nothing is known but its name."""
    return BY_METRIC.get(metric) or Measure(metric, metric.replace("_", " "))


def recorded(metrics: Mapping[str, np.ndarray]) -> Metrics:
    """Those that are written down, the known ones first, the problem's own by name."""
    own = sorted(name for name in metrics if name not in BY_METRIC)
    return {name: metrics[name] for name in [*ORDER, *own] if name in metrics}


def in_words(values: Mapping[str, float]) -> str:
    """The metrics people look at, and those of a problem of their own, in one line."""
    own = [name for name in values if name not in BY_METRIC and name != "iteration"]
    return "  ".join(f"{name} {values[name]:.4g}" for name in [*SHOWN, *own] if name in values)


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
