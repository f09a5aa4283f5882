"""The typed configuration of a run: its own settings, and one object per config group, each checking its own values.

`Config.from_dict(...)` turns the plain dictionary that `conf/` and the overrides compose to into a `Config`,
or raises one `ConfigError` that names the key, the value and what is allowed. No Hydra in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dgt.config.checks import build, check_range
from dgt.config.choices import AlgorithmConfig, Choice, ProblemConfig, ScheduleConfig, TopologyConfig
from dgt.config.loggers import LoggerConfig
from dgt.config.sections import (
    DEFAULT_WEIGHTS,
    ChaosConfig,
    CheckpointConfig,
    ReplaceConfig,
    StopConfig,
    StrategyConfig,
    WeightsConfig,
)
from dgt.config.settings import check_settings, setting
from dgt.errors import ConfigError

BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
TRANSPORTS = ("auto", "messages")
WIRES = ("full", "bfloat16", "float16", "int8", "int4")
DTYPES = ("auto", "float64", "float32")
PRECISIONS = ("full", "bf16", "fp16")
PLACEMENTS = ("none", "graph")
ON_PEER_LOSS = ("stop", "continue", "replace")
MACHINERY = {"wire": "full", "local_steps": 1, "bucket_mb": 0, "overlap": True}
"""What the exchange can do for an algorithm that `supports` it, and the values that ask for nothing."""
AUTO = "auto"
BASE_LR = 0.003
"""The step size with an optimizer of torch, most of which normalise their step."""
LAZINESS = 0.3
"""Of algorithms that do not say another: `DecentralizedOptimizer.usual_laziness`."""
LR = 0.02
"""The step size of problems that do not say another: `Problem.usual_lr`."""


@dataclass(slots=True, kw_only=True)
class Config:
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    problem: ProblemConfig = field(default_factory=ProblemConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    # more nodes would fill the memory before anything is refused
    nodes: int | None = setting(
        None,
        "number of nodes, of uniform weights if none are named; null: as many as the weights have (else one per rank, "
        "else 16)",
        low=1,
        high=10**7,
    )
    ranks_per_node: Any = setting(
        1, "ranks of a host that are one node together: a number, or auto, the GPUs of a host", low=1, high=10**5
    )  # a number, once it is known how many GPUs there are
    laziness: float = setting(
        None,
        "epsilon in W = (1 - epsilon) P + epsilon I; null: the algorithm's own, 0.3, or 0.35 with exact_diffusion",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )  # never None once the algorithm is known
    lr: Any = setting(
        None,
        "step size alpha, where the schedule starts or peaks; auto: found by short trials; null: the problem's own, "
        "times 1 - momentum, or 0.003 with a base",
        low=0,
        open_low=True,
    )  # a float, or AUTO until `training/step_size.py` has found it; never None once the problem is known
    iterations: int = setting(300, "number of updates", low=0)
    epochs: int | None = setting(
        None, "in place of iterations: how often all training samples are seen, those of all nodes together", low=1
    )
    eval_every: int = setting(3, "iterations between evaluations of the whole network", low=1)
    seed: int = setting(0, "of problem data, start and gradient noise", low=0, high=2**63 - 1)
    seeds: list[int] = setting(list(range(10)), "dgt compare: how many, or a list such as [0,1,2]")
    timeout: float = setting(60.0, "seconds to wait for a neighbour", low=0, high=1e9, open_low=True)
    backend: str = setting(
        "auto", "auto (nccl where every rank has a GPU of its own, else gloo), gloo or nccl", choices=BACKENDS
    )
    device: str = setting("auto", "auto (what suits the problem), cpu or cuda", choices=DEVICES)
    transport: str = setting(
        "auto", "auto (memory where neighbours share it, messages elsewhere) or messages", choices=TRANSPORTS
    )
    overlap: bool = setting(True, "let the tracker travel while the next gradient is computed (models above 64 KiB)")
    bucket_mb: float = setting(0, "start the exchange during backward, in buckets of so many MB; 0: after it", low=0)
    wire: str = setting(
        "full",
        "full, or bfloat16, float16, int8 or int4: rounded changes with error feedback, fewer bytes",
        choices=WIRES,
    )
    local_steps: int = setting(1, "exchange after every so many steps only", low=1)
    adapt: bool = setting(
        False, "with local_steps: nodes slower than the median leave out some of them, so that the others need not wait"
    )
    dtype: str = setting("auto", "auto (least squares float64, all else float32), float64 or float32", choices=DTYPES)
    precision: str = setting(
        "full", "full, or bf16: forward pass and loss in bfloat16 where torch.autocast does that", choices=PRECISIONS
    )
    clip: float | None = setting(
        None, "largest norm of a node's own gradient, which is scaled down to it; null: any", low=0, open_low=True
    )
    crc: bool = setting(False, "check the content of every message, not only its head")
    placement: str = setting(
        "none",
        "graph: choose which rank is which node, so that few edges run between hosts; none: rank i is node i",
        choices=PLACEMENTS,
    )
    on_peer_loss: str = setting(
        "stop",
        "stop when a rank is lost; continue with the others (on this host, or under srun); or replace it: continue, "
        "and start it again (on this host)",
        choices=ON_PEER_LOSS,
    )
    replace: ReplaceConfig = field(default_factory=ReplaceConfig)
    resume: str = setting(
        "none", "none, auto (the last checkpoint in run_dir, if any), or a run or checkpoint directory"
    )
    warm_start: bool = setting(
        False, "resume: take only the average model, so that nodes, graph and weights may differ"
    )
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    run_dir: str | None = setting(None, "where to write; null: runs/<time>-<problem>-<weights>-<topology>-<strategy>")

    def __post_init__(self) -> None:
        self._check_lr()
        if self.ranks_per_node != AUTO and type(self.ranks_per_node) is not int:
            raise ConfigError(f"ranks_per_node={self.ranks_per_node}: must be a number from 1 on, or auto")
        check_settings(self)
        for seed in self.seeds:
            check_range("seed", seed, 0, 2**63 - 1)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: must be a count above 0 or a list of different seeds")
        if self.algorithm.target is None:
            self._check_algorithm()
        if self.problem.target is None:
            self._take_usual_lr()
        if self.clip is not None and self.bucket_mb:
            raise ConfigError(
                f"clip={self.clip:g}: with bucket_mb={self.bucket_mb:g} gradients leave during backward, before their "
                "norm is known; leave one of them out"
            )
        if self.bucket_mb and self.ranks_per_node != 1:
            raise ConfigError(
                f"bucket_mb={self.bucket_mb:g}: not with ranks_per_node={self.ranks_per_node}, whose ranks add up "
                "their gradients after backward; leave one of them out"
            )
        if self.adapt and (self.local_steps == 1 or self.bucket_mb):
            raise ConfigError(
                f"adapt=true: slow nodes leave out local steps; give local_steps above 1 ({self.local_steps} here), "
                "and leave bucket_mb at 0"
            )
        if self.precision == "fp16":
            raise ConfigError(
                "precision=fp16: small gradients vanish in it without a loss scaler, which dgt train has none of; use "
                "precision=bf16, or torch.amp.GradScaler in a loop of your own"
            )
        if self.precision == "bf16" and self.dtype == "float64":
            raise ConfigError("precision=bf16: torch.autocast leaves dtype=float64 alone; leave one of them out")
        if not self.resume:
            raise ConfigError("resume=: none, auto, or a run or checkpoint directory")
        if self.warm_start and self.resume in ("none", "auto"):
            raise ConfigError(f"warm_start=true: say from where, resume=DIR (resume={self.resume} here)")
        if self.resume == "auto" and self.run_dir is None:
            raise ConfigError("resume=auto: say which run, run_dir=DIR")

    def _take_usual_lr(self) -> None:
        if self.lr is None:
            self.lr = self.usual_lr

    @property
    def usual_lr(self) -> float:
        """The problem's own step size; (1 - b) of it with momentum b, which moves as far; that of Adam with a base."""
        values = self.algorithm.values
        if values.get("base") is not None:
            return BASE_LR
        usual: float = getattr(self.problem.kind, "usual_lr", LR)
        return float(f"{usual * (1 - float(values.get('momentum') or 0)):.12g}")

    def _check_lr(self) -> None:
        if type(self.lr) is int:
            self.lr = float(self.lr)
        if self.lr is not None and self.lr != AUTO and not isinstance(self.lr, float):
            raise ConfigError(f"lr={self.lr}: must be a number above 0, or auto")
        if self.lr == AUTO and self.warm_start:
            raise ConfigError("lr=auto: looks for a step from the usual start, not from warm_start=true; give a number")

    def check_lr_is_known(self, command: str) -> None:
        """Refuse lr=auto where no trials are made."""
        if self.lr == AUTO:
            raise ConfigError(f"lr=auto: dgt {command} makes no trials; take the lr that dgt plan lr=find suggests")

    def _check_algorithm(self) -> None:
        """Refuse what the algorithm has no use for, or cannot do; take its usual laziness if none is given."""
        kind = self.algorithm.kind
        if self.laziness is None:
            self.laziness = getattr(kind, "usual_laziness", LAZINESS)
        if hasattr(kind, "check_strategy"):
            kind.check_strategy(self.algorithm.settings, self.strategy.name)
        base = self.algorithm.values.get("base")
        if self.adapt and (base is not None or not getattr(kind, "may_leave_out_steps", False)):
            what = f"algorithm={self.algorithm.name}" if base is None else f"algorithm.base={base}"
            raise ConfigError(f"adapt=true: not with {what}; it is for gradient_tracking without a base")
        supported = supports(self.algorithm.kind)
        for key, value in MACHINERY.items():
            if key != "overlap" and key not in supported and getattr(self, key) != value:
                name = self.algorithm.name
                raise ConfigError(f"{key}={getattr(self, key)}: not with algorithm={name}; leave it out")

    def check_targets(self) -> None:
        """Import what comes from outside the package, check its settings and add those that were not given."""
        for choice in (self.problem, self.algorithm, self.topology, self.schedule):
            choice.check()
        self._take_usual_lr()
        self._check_algorithm()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Read what `to_dict` gave, or what `conf/` composes to; `ConfigError` names what is wrong with it."""
        plain = {key: value for key, value in values.items() if key not in CHOICES}
        weights = plain.get("weights")
        if isinstance(weights, Mapping) and weights.get("name") == DEFAULT_WEIGHTS:
            plain["weights"] = {**weights, "name": "A" if plain.get("nodes") is None else "uniform"}
        count = plain.get("seeds")
        if type(count) is int:
            check_range("seeds", count, 1)
            plain["seeds"] = list(range(count))
        elif "seeds" in plain and not isinstance(count, list):
            raise ConfigError(f"seeds={count}: must be a count above 0 or a list of different seeds")
        # those of the problem and of the algorithm that are chosen
        own = {key: plain.pop(key, None) for key in ("lr", "laziness") if plain.get(key) is None}
        config = build(cls, plain, "")
        chosen: dict[str, Any] = {key: kind.from_dict(values[key]) for key, kind in CHOICES.items() if key in values}
        return dataclasses.replace(config, **chosen, **own)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; what is unset within a group is left out. `from_dict` reads it back."""
        values: dict[str, Any] = {}
        for name in (item.name for item in dataclasses.fields(self)):
            value = getattr(self, name)
            if hasattr(value, "to_dict"):
                values[name] = value.to_dict()
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                whole = dataclasses.asdict(value)
                values[name] = {key: item for key, item in whole.items() if item is not None}
            else:
                values[name] = list(value) if isinstance(value, list) else value
        return values


CHOICES: dict[str, type[Choice] | type[LoggerConfig]] = {
    "problem": ProblemConfig, "algorithm": AlgorithmConfig, "topology": TopologyConfig, "schedule": ScheduleConfig,
    "logger": LoggerConfig,
}  # fmt: skip


def supports(algorithm: Any) -> frozenset[str]:
    """Which of wire, local_steps, bucket_mb and overlap an algorithm's class takes; all if it does not say."""
    found: frozenset[str] = getattr(algorithm, "supports", frozenset(MACHINERY))
    return found
