"""Accelerate, transformers, Lightning and Fabric on three real ranks of unequal weight, against the plain loop.

What the ranks do is in `frameworks.py`: the example of docs/ until it has converged, then a few steps, after which
nodes still differ from each other and from their average.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.frameworks import SEEN, SIZES
from tests.distributed.ranks import TORCHRUN, command
from tests.pages import TOP

pytestmark = [pytest.mark.timeout(400), pytest.mark.heavy]

CLOSE = 1e-6


def ranks_of(name: str, folder: Path) -> list[dict[str, Any]]:
    arguments = [*TORCHRUN, "--nproc-per-node", "3", "-m", "tests.distributed.frameworks", name]
    done = command(arguments, folder, 300, PYTHONPATH=str(TOP))
    assert done.returncode == 0, done.stderr[-5000:]
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(3)]
    # weights 1, 1, 10 of the targets 0, 1, 2; without weights it were 1
    reached = [float(re.search(rf"node {rank}: (\S+)\n", each["example"])[1]) for rank, each in enumerate(found)]
    assert reached == pytest.approx([1.75] * 3, abs=1e-3)
    assert [name for name, each in enumerate(found) if each["theta"] != pytest.approx(each["average"], abs=1e-3)]
    return found


def test_accelerate_steps_like_the_plain_loop(tmp_path: Path) -> None:
    """Its own `prepare` averages gradients, divides each node's data, and steps a scheduler once per rank."""
    for rank, each in enumerate(ranks_of("accelerate", tmp_path)):
        assert each["unwrapped"]
        assert each["theta"] == pytest.approx(each["plain"], abs=CLOSE)
        assert each["lr"] == pytest.approx(0.081)  # after two steps of two batches
        assert each[SEEN] == [SIZES[rank] // 2, *[rank] * SIZES[rank]]
        assert each["saved"] == pytest.approx(each["average"], abs=CLOSE)
        assert each["split"] == list(range(7))
        assert "dgt.Checkpoints" in each["refused"]
        assert each["resumed"][0] == each["resumed"][1] != each["theta"]


def test_a_trainer_of_transformers_steps_like_the_plain_loop_and_resumes(tmp_path: Path) -> None:
    found = ranks_of("transformers", tmp_path)
    for rank, each in enumerate(found):
        assert each["constant"] == pytest.approx(each["plain"], abs=CLOSE)
        assert each["lr"][:6] == pytest.approx([0.1 * (1 - step / 6) for step in range(6)])
        assert each["resumed"] == each["theta"]  # bit by bit
        assert each["loss"] == pytest.approx((each["average"] - 1.75) ** 2 / 2, rel=1e-4)
        assert each["saved"] == each["average"]
        assert len(each["language model"]) > 10
        assert max(each["language model"]) == 0
        own = {round(rank + 0.01 * sample, 2) for sample in range(SIZES[rank])}
        assert set(each[SEEN]) <= own
        assert len(set(each[SEEN][: SIZES[rank]])) == SIZES[rank]  # all of them, before any comes again
    assert {"node_0.pt", "node_1.pt", "node_2.pt", "model.safetensors"} <= set(found[0]["files"])


def test_lightning_steps_like_the_plain_loop_and_saves_the_average(tmp_path: Path) -> None:
    for rank, each in enumerate(ranks_of("lightning", tmp_path)):
        assert each["theta"] == pytest.approx(each["plain"], abs=CLOSE)
        assert each["evaluated"] == each["saved"] == each["begun at"] == pytest.approx(each["average"], abs=CLOSE)
        assert each["rank"] == pytest.approx((SIZES[1] + 2 * SIZES[2]) / sum(SIZES))  # sync_dist: the mean over samples
        assert each[SEEN] == [rank]
        assert each["lr"] == pytest.approx(0.1 * 0.9**4)  # two steps, saved, loaded, two more
        assert each["bfloat16"] == pytest.approx(each["theta"], abs=0.01)  # and clipped at a norm that none reaches
        assert each["sampler"] == "RandomSampler"
    assert (tmp_path / "kept" / "last.ckpt").is_file()


def test_fabric_steps_like_the_plain_loop_and_saves_the_average(tmp_path: Path) -> None:
    for rank, each in enumerate(ranks_of("fabric", tmp_path)):
        assert each["theta"] == pytest.approx(each["plain"], abs=CLOSE)
        assert each[SEEN] == [rank]
        assert each["saved"] == pytest.approx(each["average"], abs=CLOSE)
        assert (each["lr"], each["step"]) == (0.05, 2)
        assert each["resumed"][0] == each["resumed"][1] != each["theta"]
        assert each["reduced"] == [1.0, 3.0, 2.0]
        assert each["gathered"] == [0.0, 1.0, 2.0]
        assert each["heard"] == [{"from": 0}, "/rank/0"]
