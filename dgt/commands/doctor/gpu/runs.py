"""Short runs on least squares, on GPUs, whose every metric must be that of the single-process twin.

problem = differences(config, node)     # on rank 0, in words; empty if all numbers are the same
"""

from __future__ import annotations

import numpy as np

from dgt.commands.simulate.twin import evaluations
from dgt.config import Config
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.runs.measures import Metrics
from dgt.training.guard import Guard
from dgt.training.setup import network_of
from dgt.training.trainer import train

COMMON = "iterations=6 eval_every=1 seed=3 device=cuda problem.dimension=300 lr=0.01 weights=lognormal"
CASES = (
    "topology=ring strategy=I",
    "topology=exponential strategy=II",
    "topology=complete strategy=II overlap=false",
    "topology=star strategy=I local_steps=2",
    "topology=grid crc=true",
    "topology=one_peer",
    "topology=one_peer topology.schedule=matching topology.rounds=2",
    "topology=one_peer algorithm=dsgd local_steps=2",
    "topology=ring wire=bfloat16",
    "topology=exponential wire=float16 strategy=I",
    "topology=complete wire=int8",
    "topology=ring wire=int4 local_steps=2",
    "topology=exponential algorithm.momentum=0.9",
    "topology=one_peer algorithm.momentum=0.9 algorithm.nesterov=true",
    "topology=exponential algorithm.base=adamw",
    "topology=ring algorithm.base=adamw algorithm.base_form=together",
    "topology=ring algorithm.base=adam algorithm.base_form=predicted wire=bfloat16",
    "topology=complete algorithm.base=adamw algorithm.base_form=own local_steps=2",
    "topology=ring algorithm=exact_diffusion strategy=I",
    "topology=exponential algorithm=exact_diffusion wire=int8",
    "topology=exponential algorithm=exact_diffusion local_steps=3 algorithm.momentum=0.9",
    "topology=ring algorithm=exact_diffusion algorithm.form=extra",
    "topology=complete algorithm=exact_diffusion algorithm.form=extra local_steps=2 wire=bfloat16",
    "topology=ring algorithm=dsgd strategy=I",
    "topology=exponential algorithm=dsgd algorithm.base=adam wire=int4",
    "topology=ring algorithm=allreduce strategy=I",
    "topology=ring algorithm=allreduce algorithm.base=adamw",
)
RELATIVE, ABSOLUTE = 1e-9, 1e-9
NOT_COMPARED = {"seconds", "evaluation_share"}


def differences(config: Config, node: Node) -> str:
    """Train on all ranks; on rank 0 what differs from the twin."""
    weights, drawn = network_of(config, node.placement, as_drawn=True)
    rows: list[tuple[int, Metrics]] = []
    train(config, node, weights, drawn, Guard(lambda iteration, metrics, _: rows.append((iteration, metrics))))
    if not node.is_main:
        return ""
    weights, graph = network_of(config, Placement("alone"))
    expected = list(evaluations(config, weights, graph, [config.seed]))
    if [iteration for iteration, _ in rows] != [iteration for iteration, _ in expected]:
        return f"evaluated at {[iteration for iteration, _ in rows]}"
    for (iteration, metrics), (_, twin) in zip(rows, expected, strict=True):
        for name in twin.metrics.keys() & metrics.keys() - NOT_COMPARED:
            if not np.allclose(metrics[name], twin.metrics[name], rtol=RELATIVE, atol=ABSOLUTE):
                return f"{name} at iteration {iteration} is {metrics[name]}, on the twin {twin.metrics[name]}"
    return ""
