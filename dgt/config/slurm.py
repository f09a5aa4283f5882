"""Keys and types of `hydra/launcher=slurm`; `conf/hydra/launcher/slurm.yaml` has the values that dgt starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SlurmJobs:
    """The job of one run of a sweep: parameters of submitit's `AutoExecutor`, those of Slurm without `slurm_`."""

    name: str = "dgt"
    timeout_min: int = 60
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    mem_gb: int | None = None
    stderr_to_stdout: bool = False
    partition: str | None = None
    qos: str | None = None
    comment: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    gres: str | None = None
    cpus_per_gpu: int | None = None
    gpus_per_task: int | None = None
    mem_per_gpu: str | None = None
    mem_per_cpu: str | None = None
    account: str | None = None
    signal_delay_s: int = 120
    max_num_timeout: int = 0
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    array_parallelism: int = 256
    setup: list[str] | None = None
