"""Random commands: each trains to its last iteration or is refused in one line. Never a traceback, never a hang.

DGT_CONFIGS=1000 DGT_SEED=1 bash launch/test.sh tests/distributed/test_random_configs.py -m trials -s

How they are drawn: every command takes a graph, weights and a problem that fit together, and each other setting with
a chance of its own from what is allowed. Two of five then get one or two of the mistakes below (typos, wrong types,
values out of range, settings that exclude each other); a mistake may turn out to be none. So at least half train.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.conftest import Said

CONFIGS, SEED = int(os.environ.get("DGT_CONFIGS", "1000")), int(os.environ.get("DGT_SEED", "0"))

# setting, chance, values
SETTINGS: list[tuple[str, float, Sequence[Any]]] = [
    ("strategy", 0.5, ["I", "II"]),
    ("algorithm", 0.3, ["gradient_tracking", "dsgd", "allreduce"]),
    ("laziness", 0.2, [0.05, 0.3, 0.5, 0.9]),
    ("lr", 0.5, [1e-4, 0.01, 0.02, 0.05]),
    ("eval_every", 0.5, [1, 2, 5, 1000]),
    ("seed", 0.3, [0, 1, 2**63 - 1]),
    ("transport", 0.4, ["auto", "messages"]),
    ("overlap", 0.3, ["true", "false"]),
    ("wire", 0.2, ["full", "bfloat16", "float16", "int8", "int4"]),
    ("local_steps", 0.2, [1, 2, 3]),
    ("dtype", 0.3, ["auto", "float64", "float32"]),
    ("crc", 0.2, ["true", "false"]),
    ("placement", 0.2, ["none", "graph"]),
    ("on_peer_loss", 0.2, ["stop", "continue"]),
    ("checkpoint.every", 0.3, [0, 1, 3]),
    ("checkpoint.keep_last", 0.3, [0, 1, 2]),
    ("checkpoint.keep_every", 0.2, [0, 2]),
    ("checkpoint.minutes", 0.1, [0, 0.001, 10]),
    ("timeout", 0.2, [20, 60]),
    ("logger", 0.1, ["jsonl", "tensorboard"]),
    ("backend", 0.2, ["auto", "gloo"]),
    ("device", 0.2, ["auto", "cpu"]),
    ("bucket_mb", 0.1, [0, 0.01, 4]),
]
PROBLEMS: list[tuple[float, str, list[tuple[str, float, Sequence[Any]]]]] = [
    (0.6, "least_squares", [
        ("problem.dimension", 0.5, [1, 3, 10, 2000]), ("problem.noise", 0.4, [0, 0.5, 1]),
        ("problem.curvature_min", 0.2, [1, 5.5]), ("problem.offset", 0.2, [0, 3]),
    ]),
    (0.2, "text", [
        ("problem.context", 1, [4, 8]), ("problem.width", 1, [8]), ("problem.layers", 1, [1]),
        ("problem.batch", 1, [2]), ("problem.weight_decay", 0.3, [0, 0.01]),
    ]),
    (0.2, "custom", [
        ("problem._target_", 1, ["tests.distributed.problems.Noisy"]), ("problem.pause", 1, [0]),
        ("problem.width", 0.5, [3, 16]),
    ]),
]  # fmt: skip
MISTAKES = [
    "lr=-1", "lr=nan", "lr=", "lr=[1]", "lr=1e400", "lr=\u0660.\u0661", "iterations=-1", "iterations=2.5",
    "eval_every=0", "nodes=0", "nodes=two", "nodes=3000000000", "weights=[0,1]", "weights=[1,-2,3]", "weights=E",
    "weights=file", "weights=list", "topology=rign", "topology=file", "topology.seed=-3", "strategy=III",
    "algorithm=adam", "algoritm=dsgd", "transport=udp", "wire=int1", "local_steps=0", "dtype=float8", "crc=perhaps",
    "placement=grap", "on_peer_loss=pray", "checkpoint.every=-1", "checkpoint.evry=3", "checkpoint=5", "resume=auto",
    "resume=/nowhere", "warm_start=true", "run_dir=/proc/nothing", "run_dir=/dev/null/x", "problem.dimension=0",
    "problem.noise=-1", "problem.width=7", "problem.nothing=1", "problem=", "problem._target_=no.such.Class",
    "chaos=meteor", "seed=-1", "seed=1.5", "seeds=0", "backend=nccl", "device=cuda", "laziness=1", "laziness=0",
    "timeout=0", "bucket_mb=-1", "+new=1", "~lr", "=", "lr", "lr==1", "a.b.c=1", "weights={a:1}", "topology=[ring]",
    "strategy.name=I", "\u00fc=1", "lr=0.1,0.2", "--frobnicate", "problem.dimension=1e3", "weights=lognormal",
    "weights=D", "topology=torus", "topology=tailored", "local_steps=1000",
]  # fmt: skip


def drawn(draw: random.Random, run_dir: Path) -> list[str]:
    nodes = draw.choice([1, 2, 2, 3, 4, 4, 5, 6])
    weights = draw.choice(["uniform", "list", "lognormal", "data_size"])
    problem = draw.choices(PROBLEMS, [share for share, _, _ in PROBLEMS])[0]
    if weights == "data_size" and problem[1] != "text":
        weights = "uniform"
    topologies = ["ring", "grid", "exponential", "complete", "star", "erdos_renyi", "geometric", "tailored", "file"]
    topology = draw.choice(topologies if nodes > 2 else ["complete", "star", "file"])
    words = [f"iterations={draw.choice([0, 1, 3, 8, 20])}", f"run_dir={run_dir}", f"topology={topology}"]
    if weights == "list":
        words.append(f"weights={[round(draw.uniform(0.2, 5), 2) for _ in range(nodes)]}".replace(" ", ""))
    else:
        words += [f"nodes={nodes}", f"weights={weights}"]
    if weights == "data_size":
        words.append(f"problem.sizes={[draw.randint(1, 4) for _ in range(nodes)]}".replace(" ", ""))
    if topology == "file":
        edges = run_dir.with_suffix(".edges")
        edges.write_text("".join(f"{i} {draw.randrange(i)}\n" for i in range(1, nodes)))
        words.append(f"topology.path={edges}")
    if topology == "geometric":
        words.append("topology.radius=0.9")
    words.append(f"problem={problem[1]}")
    for name, chance, values in [*SETTINGS, *problem[2]]:
        if draw.random() < chance:
            words.append(f"{name}={draw.choice(values)}")
    if draw.random() < 0.4:
        words += draw.sample(MISTAKES, draw.choice([1, 1, 2]))
    return words


@pytest.mark.trials
@pytest.mark.timeout(60 + 30 * CONFIGS)
def test_random_commands_train_or_are_refused_in_one_line(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(CONFIGS):
        words = drawn(random.Random(f"{SEED} {number}"), tmp_path / f"run-{number}")
        said = dgt_here("train", *words)
        end, trouble = judged(said, tmp_path / f"run-{number}", words)
        ends[end] += 1
        if trouble:
            wrong.append(f"{number}: {trouble}\n    dgt train {' '.join(words)}")
            print(wrong[-1], said.stderr[-600:], flush=True)
    print(f"\n{dict(ends)}")
    assert not wrong, "\n".join(wrong)
    assert ends["trained"] >= CONFIGS / 2, ends


def judged(said: Said, run_dir: Path, words: list[str]) -> tuple[str, str]:
    """How it ended, and what is wrong with that."""
    lines = [line for line in said.stderr.splitlines() if line.startswith("dgt: error: ")]
    if "Traceback" in said.stderr:
        return "traceback", "a traceback"
    if said.code == 0:
        return "trained", _incomplete(run_dir, words)
    if said.code == 2 and (len(lines) == 1 or said.stderr.startswith("usage: ")):
        return "refused", ""
    if said.code == 1 and len(lines) == 1:
        return "alarm", ""  # a step that is too large for its graph, say
    return f"code {said.code}", f"exit code {said.code} with {len(lines)} lines of error"


def _incomplete(run_dir: Path, words: list[str]) -> str:
    """What is missing of a run that says it has finished."""
    if not (run_dir / "summary.json").exists():
        return "no summary"
    iterations = int(next(word for word in words if word.startswith("iterations=")).partition("=")[2])
    final = json.loads((run_dir / "summary.json").read_text())["final"]
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    if final["iteration"] != iterations or last["iteration"] != iterations:
        return f"ended at {final['iteration']}"
    finite = all(math.isfinite(value) for value in final.values())
    return "" if finite else "its metrics are not finite"
