"""The end of a run: what summary.json holds, and how it is shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dgt.config import Config
from dgt.runs.lines import Tail
from dgt.runs.measures import EVALUATION_SHARE, in_words
from dgt.runs.messages import say

EVALUATION_LIMIT = 0.5  # above this share of the time, say how to spend less


def summary_of(
    config: Config, path: Path, nodes: int, tail: Tail, seconds: float, simulated: bool = False, early: str = ""
) -> dict[str, Any]:
    """What was chosen, the last record, and means over the last fifth of the iterations."""
    return {
        "run_dir": str(path),
        "nodes": nodes,
        "strategy": config.strategy.name,
        "topology": config.topology.name,
        "weights": config.weights.name,
        "algorithm": config.algorithm.name,
        "problem": config.problem.name,
        "seed": config.seed,
        "lr": config.lr,
        "iterations": config.iterations,
        "final": tail.last,
        "last_fifth": tail.means(),
        "wall_seconds": round(seconds, 3),
        "torch": torch.__version__,
        **({"stopped_early": early, "stop": dataclasses.asdict(config.stop)} if early else {}),
        **({"simulated": True} if simulated else {}),
    }


def show(summary: Mapping[str, Any], how: str) -> None:
    """As text, json or nothing, on standard output."""
    final = summary["final"]
    if how == "text":
        print(f"iteration {final['iteration']}  {in_words(final)}\nrun directory  {summary['run_dir']}", flush=True)
    elif how != "nothing":
        print(json.dumps(summary, indent=2), flush=True)


def advise(config: Config, final: Mapping[str, Any]) -> None:
    """Say on standard error how to spend less time on evaluations, where they took most of it."""
    share = final[EVALUATION_SHARE.metric]
    if share > EVALUATION_LIMIT and hasattr(config.problem, "test_samples"):
        hint = "a larger eval_every or fewer problem.test_samples is quicker"
        say(f"evaluations took {share:.0%} of the time; {hint}")
