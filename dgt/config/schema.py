"""The typed configuration of a run: one dataclass per config group, each checking its own values.

`Config.from_dict(...)` turns the plain dictionary that `conf/` and the overrides compose to into a `Config`,
or raises one `ConfigError` that names the key, the value and what is allowed. No Hydra in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dgt.config.checks import build, check_choice, check_range
from dgt.errors import ConfigError

STRATEGIES = ("I", "II")
ALGORITHMS = ("gradient_tracking", "dsgd", "allreduce")
TOPOLOGIES = (
    "ring", "grid", "torus", "exponential", "erdos_renyi", "geometric", "complete", "star", "tailored", "file",
)  # fmt: skip
DEFAULT_WEIGHTS = "auto"  # A, or uniform where only `nodes` is given
WEIGHTS = ("uniform", "A", "B", "C", "D", "lognormal", "list", "file", "data_size")
PARTITIONS = ("iid", "dirichlet")
MODELS = ("resnet18", "resnet20", "cnn")
NORMS = ("batch", "group")
BUFFERS = ("local", "mixed", "recalibrated")
LOGGERS = ("jsonl", "tensorboard")
BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
TRANSPORTS = ("auto", "messages")
WIRES = ("full", "bfloat16", "float16")
DTYPES = ("auto", "float64", "float32")
PLACEMENTS = ("none", "graph")
ON_PEER_LOSS = ("stop", "continue")
FAULTS = ("none", "kill", "term", "pause", "delay", "corrupt", "not_a_number", "forget", "rollback", "disk_full")
PHASES = ("step", "copy", "write", "rename", "commit", "prune", "written", "drain", "barrier", "summary", "leave")
DAMAGES = ("flip", "stale", "swap", "short", "dtype")


@dataclass(slots=True, kw_only=True)
class StrategyConfig:
    name: str = "II"
    """I: weights in the loss, W doubly stochastic. II: weights in the mixing, W row-stochastic."""

    def __post_init__(self) -> None:
        check_choice("strategy", self.name, STRATEGIES)


@dataclass(slots=True, kw_only=True)
class WeightsConfig:
    name: str = "A"
    """uniform, one of the paper's A to D, lognormal, a list, a file, or data_size (shares of the samples).

    In `conf/` also auto: A, or uniform where only `nodes` is given.
    """
    values: list[float] | None = None
    """The weights themselves, for weights=list (short: weights=[1,2,3])."""
    path: str | None = None
    """The file with the weights, for weights=file."""
    spread: float = 1.0
    """lognormal: standard deviation of ln(lambda_i); 0 is uniform."""
    seed: int = 0
    """lognormal: seed of the draw, independent of the run's seed."""

    def __post_init__(self) -> None:
        check_choice("weights", self.name, WEIGHTS)
        check_range("weights.spread", self.spread, 0, 10)
        check_range("weights.seed", self.seed, 0)
        if self.name == "list" and self.values is None:
            raise ConfigError("weights=list: give the numbers, for example weights=[1,2,3]")
        if self.name == "file" and self.path is None:
            raise ConfigError("weights=file: give the file, weights.path=FILE")


@dataclass(slots=True, kw_only=True)
class TopologyConfig:
    name: str = "ring"
    """The graph the nodes form."""
    seed: int = 0
    """Seed of the random graphs (erdos_renyi, geometric, tailored); independent of the run's seed."""
    avg_degree: float | None = None
    """tailored: average degree; null is 5 up to 16 nodes and 10 above."""
    optimize: bool = True
    """tailored: widen the gap by swapping edges, at the same degrees; false: the graph as the paper draws it."""
    probability: float | None = None
    """erdos_renyi: probability of each edge; null is 2 ln(n) / n."""
    radius: float = 0.3
    """geometric: nodes of the unit square at most this far apart are neighbours."""
    tries: int = 1000
    """erdos_renyi, geometric: graphs drawn before giving up on a connected one."""
    path: str | None = None
    """file: text file with one edge 'i j' per line, nodes counted from 0."""

    def __post_init__(self) -> None:
        check_choice("topology", self.name, TOPOLOGIES)
        check_range("topology.seed", self.seed, 0)
        check_range("topology.tries", self.tries, 1)
        check_range("topology.radius", self.radius, 0, open_low=True)
        if self.avg_degree is not None:
            check_range("topology.avg_degree", self.avg_degree, 1)
        if self.probability is not None:
            check_range("topology.probability", self.probability, 0, 1, open_low=True)
        if self.name == "file" and self.path is None:
            raise ConfigError("topology=file: give the edge list, topology.path=FILE")


@dataclass(slots=True, kw_only=True)
class LeastSquaresConfig:
    name: str = "least_squares"
    """The paper's synthetic quadratic experiment."""
    dimension: int = 10
    """d, number of parameters."""
    noise: float = 1.0
    """sigma, standard deviation of the gradient noise; 0 gives exact gradients."""
    curvature_min: float = 5.5
    """Lower end of the curvatures zeta_i."""
    curvature_max: float = 12.5
    """Upper end of the curvatures zeta_i."""
    offset: float = 3.0
    """mu_0, distance of the local centers from the shared one."""
    regularization: float = 0.01
    """rho."""

    def __post_init__(self) -> None:
        check_range("problem.dimension", self.dimension, 1)
        check_range("problem.noise", self.noise, 0)
        check_range("problem.curvature_min", self.curvature_min, 0, open_low=True)
        check_range("problem.curvature_max", self.curvature_max, self.curvature_min)
        check_range("problem.offset", self.offset, 0)
        check_range("problem.regularization", self.regularization, 0)


@dataclass(slots=True, kw_only=True)
class Cifar10Config:
    name: str = "cifar10"
    """Image classification on CIFAR-10."""
    model: str = "resnet18"
    """resnet18 (the paper's), resnet20 or cnn, both small enough for a CPU."""
    norm: str = "batch"
    """batch or group normalisation."""
    buffers: str = "local"
    """BatchNorm statistics: local, mixed with the neighbours', or recalibrated for the average model."""
    batch: int = 128
    """Samples per node and iteration."""
    augment: bool = True
    """Random crops and flips."""
    weight_decay: float = 5e-4
    """On the weights of convolutions and linear layers only."""
    partition: str = "iid"
    """iid, or dirichlet for shards of unequal labels."""
    beta: float = 0.5
    """dirichlet: the smaller, the fewer labels a node sees."""
    sizes: list[float] | None = None
    """Shares of the samples, one per node; null: in proportion to the weights."""
    test_samples: int = 10000
    """Test images used at evaluations."""
    root: str | None = None
    """Where the data set is stored; null: the user's cache directory."""

    def __post_init__(self) -> None:
        check_choice("problem.model", self.model, MODELS)
        check_choice("problem.norm", self.norm, NORMS)
        check_choice("problem.buffers", self.buffers, BUFFERS)
        check_range("problem.batch", self.batch, 1)
        check_range("problem.weight_decay", self.weight_decay, 0)
        check_range("problem.test_samples", self.test_samples, 1, 10000)
        check_choice("problem.partition", self.partition, PARTITIONS)
        check_range("problem.beta", self.beta, 0, open_low=True)
        _check_shares(self.sizes)


@dataclass(slots=True, kw_only=True)
class TextConfig:
    name: str = "text"
    """A character transformer that learns to continue a text."""
    path: str | None = None
    """Text file (UTF-8); null: the text that comes with dgt."""
    context: int = 64
    """Characters the model looks back."""
    layers: int = 2
    """Transformer blocks."""
    heads: int = 2
    """Attention heads."""
    width: int = 64
    """Numbers per character, a multiple of heads."""
    batch: int = 16
    """Pieces of text per node and iteration."""
    weight_decay: float = 0.0
    """On the weights of linear layers only."""
    sizes: list[float] | None = None
    """Shares of the text, one per node; null: in proportion to the weights."""

    def __post_init__(self) -> None:
        for key in ("context", "layers", "heads", "batch"):
            check_range(f"problem.{key}", getattr(self, key), 1)
        check_range("problem.width", self.width, self.heads)
        if self.width % self.heads:
            raise ConfigError(f"problem.width={self.width}: must be a multiple of problem.heads={self.heads}")
        check_range("problem.weight_decay", self.weight_decay, 0)
        _check_shares(self.sizes)


def _check_shares(sizes: list[float] | None) -> None:
    for size in sizes or []:
        check_range("problem.sizes", size, 0, open_low=True)


@dataclass(slots=True, kw_only=True)
class CustomConfig:
    """A problem from outside the package: the class or function `target` is called with the arguments."""

    name: str = "custom"
    target: str
    """Dotted path of a `dgt.Problem`, such as my_package.my_module.MyProblem."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments beside the context."""

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target:
            raise ConfigError("problem._target_: give the class, such as problem._target_=my_module.MyProblem")


ProblemConfig = LeastSquaresConfig | Cifar10Config | TextConfig | CustomConfig
PROBLEMS: dict[str, type] = {
    "least_squares": LeastSquaresConfig, "cifar10": Cifar10Config, "text": TextConfig,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class AlgorithmConfig:
    name: str = "gradient_tracking"
    """gradient_tracking, or the baselines dsgd (no tracker) and allreduce (centralised weighted SGD)."""

    def __post_init__(self) -> None:
        check_choice("algorithm", self.name, ALGORITHMS)


@dataclass(slots=True, kw_only=True)
class LoggerConfig:
    name: str = "jsonl"
    """jsonl, or tensorboard to mirror it there."""

    def __post_init__(self) -> None:
        check_choice("logger", self.name, LOGGERS)


@dataclass(slots=True, kw_only=True)
class CheckpointConfig:
    every: int = 0
    """Iterations between checkpoints; 0: by time alone."""
    minutes: float = 10.0
    """Minutes between checkpoints; 0: by iterations alone."""
    keep_last: int = 2
    """How many of the last ones to keep; 0: write none, not even at the end or when asked to stop."""
    keep_every: int = 0
    """Keep those of every so many iterations for good; 0: none."""

    def __post_init__(self) -> None:
        check_range("checkpoint.every", self.every, 0)
        check_range("checkpoint.minutes", self.minutes, 0)
        check_range("checkpoint.keep_last", self.keep_last, 0)
        check_range("checkpoint.keep_every", self.keep_every, 0)


@dataclass(slots=True, kw_only=True)
class ChaosConfig:
    name: str = "none"
    """A fault to rehearse, once per run directory."""
    rank: int | None = None
    """The node it happens to; null: drawn from the seed."""
    iteration: int | None = None
    """When; null: drawn from the seed."""
    seed: int = 0
    """Seed of what is drawn."""
    phase: str = "step"
    """kill: before a step; in a checkpoint: copy, write, rename, written, commit, prune; or drain, ... at the end."""
    seconds: float = 2.0
    """pause, delay: for how long."""
    damage: str = "flip"
    """corrupt: flip a bit, or send the message stale, swapped, short or in another dtype."""

    def __post_init__(self) -> None:
        check_choice("chaos", self.name, FAULTS)
        check_range("chaos.seed", self.seed, 0)
        check_range("chaos.seconds", self.seconds, 0)
        check_choice("chaos.phase", self.phase, PHASES)
        check_choice("chaos.damage", self.damage, DAMAGES)
        for key in ("rank", "iteration"):
            if getattr(self, key) is not None:
                check_range(f"chaos.{key}", getattr(self, key), 0)


@dataclass(slots=True, kw_only=True)
class Config:
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    problem: ProblemConfig = field(default_factory=LeastSquaresConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    nodes: int | None = None
    """Number of nodes; null is as many as the weights have, else one per rank, else 16."""
    laziness: float = 0.3
    """epsilon in W = (1 - epsilon) P + epsilon I."""
    lr: float = 0.02
    """Step size alpha."""
    iterations: int = 300
    """Number of updates."""
    eval_every: int = 3
    """Iterations between evaluations of the whole network."""
    seed: int = 0
    """Seed of problem data, start and gradient noise."""
    seeds: list[int] = field(default_factory=lambda: list(range(10)))
    """dgt compare: the seeds to run, or how many."""
    timeout: float = 60.0
    """Seconds to wait for a neighbour before giving up."""
    backend: str = "auto"
    """auto (nccl when every rank has its own GPU, else gloo), gloo or nccl."""
    device: str = "auto"
    """auto (what suits the problem), cpu or cuda."""
    transport: str = "auto"
    """auto (memory where neighbours share it, messages elsewhere) or messages."""
    overlap: bool = True
    """Let the tracker exchange travel while the next gradient is computed."""
    bucket_mb: float = 0
    """Start the exchange during backward, in buckets of so many MB; 0: after it."""
    wire: str = "full"
    """full, or bfloat16 or float16: rounded changes with error feedback, fewer bytes."""
    local_steps: int = 1
    """Exchange after every so many steps only."""
    dtype: str = "auto"
    """auto (float64 for least squares, float32 for the rest), float64 or float32."""
    crc: bool = False
    """Check the content of every message, not only its head."""
    placement: str = "none"
    """graph: choose which rank is which node so that few edges run between hosts; none: rank i is node i."""
    on_peer_loss: str = "stop"
    """stop when a rank is lost, or continue with the others (on this host, or under srun)."""
    resume: str = "none"
    """none, auto (the last checkpoint in run_dir, if there is one), or a run or checkpoint directory."""
    warm_start: bool = False
    """resume: take only the average model, so that nodes, graph and weights may differ."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    run_dir: str | None = None
    """Run directory; null is runs/<time>-<problem>-<weights>-<topology>-<strategy>."""

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_range("nodes", self.nodes, 1, 10**7)  # more would fill the memory before anything is refused
        check_range("laziness", self.laziness, 0, 1, open_low=True, open_high=True)
        check_range("lr", self.lr, 0, open_low=True)
        check_range("iterations", self.iterations, 0)
        check_range("eval_every", self.eval_every, 1)
        for seed in (self.seed, *self.seeds):
            check_range("seed", seed, 0, 2**63 - 1)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: must be a count above 0 or a list of different seeds")
        check_range("timeout", self.timeout, 0, 1e9, open_low=True)
        check_choice("backend", self.backend, BACKENDS)
        check_choice("device", self.device, DEVICES)
        check_choice("transport", self.transport, TRANSPORTS)
        check_choice("wire", self.wire, WIRES)
        check_range("local_steps", self.local_steps, 1)
        check_range("bucket_mb", self.bucket_mb, 0)
        self._check_traffic()
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("placement", self.placement, PLACEMENTS)
        check_choice("on_peer_loss", self.on_peer_loss, ON_PEER_LOSS)
        if not self.resume:
            raise ConfigError("resume=: none, auto, or a run or checkpoint directory")
        if self.warm_start and self.resume in ("none", "auto"):
            raise ConfigError(f"warm_start=true: say from where, resume=DIR (resume={self.resume} here)")
        if self.resume == "auto" and self.run_dir is None:
            raise ConfigError("resume=auto: say which run, run_dir=DIR")

    def _check_traffic(self) -> None:
        """What an all-reduce cannot do."""
        plain = {"wire": "full", "local_steps": 1, "bucket_mb": 0}
        for key, value in plain.items():
            if self.algorithm.name == "allreduce" and getattr(self, key) != value:
                raise ConfigError(f"{key}={getattr(self, key)}: not with algorithm=allreduce; leave it out")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        plain = {key: value for key, value in values.items() if key != "problem"}
        weights = plain.get("weights")
        if isinstance(weights, Mapping) and weights.get("name") == DEFAULT_WEIGHTS:
            plain["weights"] = {**weights, "name": "A" if plain.get("nodes") is None else "uniform"}
        count = plain.get("seeds")
        if type(count) is int:
            check_range("seeds", count, 1)
            plain["seeds"] = list(range(count))
        elif "seeds" in plain and not isinstance(count, list):
            raise ConfigError(f"seeds={count}: must be a count above 0 or a list of different seeds")
        config = build(cls, plain, "")
        if "problem" in values:
            config.problem = problem_from_dict(values["problem"])
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; what is unset within a group is left out. `from_dict` reads it back."""
        values = dataclasses.asdict(self)
        if isinstance(self.problem, CustomConfig):
            custom = self.problem
            values["problem"] = {"name": custom.name, "_target_": custom.target, **custom.arguments}
        for key, value in values.items():
            if isinstance(value, dict) and "_target_" not in value:
                values[key] = {name: item for name, item in value.items() if item is not None}
        return values


def problem_from_dict(values: Mapping[str, Any]) -> ProblemConfig:
    """The problem named in `values`; with a `_target_` it is one's own, and all other keys are its arguments."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"problem={values}: expected a group of keys")
    if "_target_" in values:
        arguments = {key: value for key, value in values.items() if key not in ("name", "_target_")}
        target = values["_target_"]
        name = values.get("name") or str(target).rpartition(".")[2]
        return CustomConfig(name=name, target=target, arguments=arguments)
    name = values.get("name", "least_squares")
    check_choice("problem", name, PROBLEMS)
    problem: ProblemConfig = build(PROBLEMS[name], values, "problem.")
    return problem
