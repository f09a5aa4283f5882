"""`dgt train ranks_per_node=k`: the same numbers as with one rank per node, resumed, stopped, and after a loss."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dgt.config import STRATEGIES, Config, registry
from dgt.errors import ConfigError, LaunchError
from dgt.processes.node import Node
from dgt.processes.placement import Placement
from dgt.training import setup
from tests.distributed.ranks import DGT, TORCHRUN, command
from tests.distributed.runs import NOISY, assert_identical, metrics, train
from tests.distributed.test_ranks_per_node import run_grouped
from tests.distributed.test_twin import Record, TrainAll, config_for, twin

pytestmark = pytest.mark.timeout(180)


def assert_close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], apart: float) -> None:
    assert [row["iteration"] for row in ours] == [row["iteration"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"bytes_sent"}:
            assert one[name] == pytest.approx(other[name], rel=apart, abs=apart), (name, one, other)


def rows_of(records: list[Record]) -> list[dict[str, Any]]:
    skipped = ("seconds", "evaluation_share", "waited")
    return [
        {"iteration": t}
        | {name: values.tolist() for name, values in {**of_nodes, **found}.items() if name not in skipped}
        for t, found, of_nodes in records
    ]


@pytest.mark.parametrize(("nodes", "ranks"), [(4, 2), (3, 3)])
def test_every_metric_equals_the_twin(nodes: int, ranks: int) -> None:
    """Also those of single nodes, and the tracking residual: shares are put together."""
    configs = [
        config_for("ring", nodes, "", algorithm=algorithm, strategy=name)
        for algorithm in registry.names("algorithm")
        for name in STRATEGIES
    ]
    for config, records in zip(configs, run_grouped(TrainAll(configs), nodes, ranks)[0], strict=True):
        assert_close(rows_of(records), rows_of(twin(config)), 1e-10)


def test_ranks_of_a_node_divide_its_batch(tmp_path: Path) -> None:
    """With weight decay, clipping of the node's gradient, and metrics of which each rank measures a part."""
    text = [
        "problem=text", "problem.batch=8", "problem.width=16", "problem.context=16", "problem.weight_decay=0.01",
        "dtype=float64", "clip=0.5", "algorithm.momentum=0.5", "weights=[1,2]", "iterations=6", "eval_every=3",
    ]  # fmt: skip
    train(tmp_path / "one", *text)
    train(tmp_path / "two", *text, "ranks_per_node=2")
    assert_close(metrics(tmp_path / "two"), metrics(tmp_path / "one"), 1e-10)


@pytest.mark.heavy
def test_augmented_images_are_divided_too(data_root: Path, tmp_path: Path) -> None:
    """With statistics of BatchNorm that are mixed nothing is the same, but for the loss before the first step."""
    images = [
        "weights=[1,2]", "problem=cifar10", "problem.model=cnn", "problem.batch=8", "problem.test_samples=30",
        "iterations=3", "eval_every=1", "dtype=float64", "lr=0.01",
    ]  # fmt: skip
    train(tmp_path / "one", *images, "problem.norm=group")
    train(tmp_path / "two", *images, "problem.norm=group", "ranks_per_node=2")
    assert_close(metrics(tmp_path / "two"), metrics(tmp_path / "one"), 1e-9)
    train(tmp_path / "mixed", *images, "problem.buffers=mixed", "ranks_per_node=2")
    train(tmp_path / "recalibrated", *images, "problem.buffers=recalibrated", "ranks_per_node=2")


@dataclass
class Placed(TrainAll):
    """Nodes on two hosts in turn: on a ring, `placement=graph` has them change places, with all their ranks."""

    def run(self, node: Node) -> Any:
        with mock.patch.object(setup, "host_number", return_value=node.rank % 2):
            return super().run(node), node.rank, node.world.rank


def test_a_node_changes_places_with_all_its_ranks() -> None:
    config = config_for("ring", 4, "", placement="graph")
    found = run_grouped(Placed([config]), 4, 2)
    assert_close(rows_of(found[0][0][0]), rows_of(twin(config)), 1e-10)
    assert all(number == rank // 2 for _, number, rank in found.values())
    assert [number for _, number, _ in (found[rank] for rank in range(8))] != [0, 0, 1, 1, 2, 2, 3, 3]


def test_trials_find_one_lr_for_all_shares(tmp_path: Path) -> None:
    found = []
    for ranks in (1, 2):
        train(tmp_path / str(ranks), "weights=[1,2]", "lr=auto", "iterations=40", f"ranks_per_node={ranks}")
        found.append(metrics(tmp_path / str(ranks)))
    assert_close(found[1], found[0], 1e-9)


GROUPED = [*NOISY, "weights=[1,2]", "ranks_per_node=2", "iterations=24"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(run, *GROUPED)
    return run


def test_a_rank_that_is_killed_ends_the_run_which_goes_on_bit_by_bit(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="rank 3 was killed"):
        train(tmp_path / "run", *GROUPED, "chaos=kill", "chaos.rank=3", "chaos.iteration=15")
    train(tmp_path / "run", *GROUPED, "resume=auto")
    assert_identical(whole, tmp_path / "run")


def test_sigterm_on_one_rank_stops_all_shares_at_one_step(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"stopped by SIGTERM at iteration \d+; resume=auto"):
        train(tmp_path / "run", *GROUPED, "chaos=term", "chaos.rank=1", "chaos.iteration=13")
    train(tmp_path / "run", *GROUPED, "resume=auto")
    assert_identical(whole, tmp_path / "run")


def test_a_run_of_other_ranks_per_node_starts_from_the_average_only(whole: Path, tmp_path: Path) -> None:
    again = [*NOISY, "weights=[1,2]", "iterations=24", f"resume={whole}"]
    with pytest.raises(LaunchError, match=r"ranks_per_node is 2 there, 1 here .*warm_start=true takes its average"):
        train(tmp_path / "refused", *again)
    train(tmp_path / "warm", *again, "warm_start=true")
    assert metrics(tmp_path / "warm")[0]["consensus"] < 1e-6
    exported = command([*DGT, "export", str(whole), "--output", str(tmp_path / "model.pt")], tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert "2 nodes" in exported.stdout + exported.stderr


@pytest.mark.parametrize("rank", [0, 3])
def test_the_loss_of_a_rank_is_the_loss_of_its_node(rank: int, tmp_path: Path) -> None:
    lost = [
        "weights=[1,2,3]", "topology=complete", "iterations=20", "eval_every=4", "timeout=10", "on_peer_loss=continue",
        "chaos=kill", "chaos.iteration=10",
    ]  # fmt: skip
    train(tmp_path / "two", *lost, "ranks_per_node=2", f"chaos.rank={rank}")
    train(tmp_path / "one", *lost, f"chaos.rank={rank // 2}")
    assert_close(metrics(tmp_path / "two"), metrics(tmp_path / "one"), 1e-9)
    told = [json.loads(line) for line in (tmp_path / "two" / "events.jsonl").read_text().splitlines()]
    assert told[-1]["members"] == [node for node in range(3) if node != rank // 2]


BAD = [
    (["ranks_per_node=0"], "ranks_per_node=0"),
    (["ranks_per_node=two"], "ranks_per_node=two: must be a number from 1 on, or auto"),
    (["ranks_per_node=2", "bucket_mb=1"], "bucket_mb=1: not with ranks_per_node=2"),
    (["ranks_per_node=3", "problem.dimension=2"], "ranks_per_node=3: the model has 2 parameters"),
    (["ranks_per_node=2", "problem=text", "problem.batch=3"], "a batch of 3 samples: with ranks_per_node=2"),
]


@pytest.mark.parametrize(("overrides", "words"), BAD, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_refused_in_one_line(overrides: list[str], words: str, dgt_here: Any) -> None:
    said = dgt_here("train", "weights=[1,2]", "iterations=3", *overrides)
    assert said.code != 0
    assert words in said.stderr
    assert len([line for line in said.stderr.splitlines() if "error" in line]) == 1


def test_what_torchrun_has_started_must_fit() -> None:
    for nodes, ranks, words in (
        (2, 3, "ranks_per_node=3: 4 ranks are no multiple of it"),
        (3, 2, "world size 4, 2 nodes of 2 ranks: this network has 3 nodes; start 6 ranks, 2 per node"),
    ):
        with pytest.raises(ConfigError, match=words):
            setup.network_of(
                Config.from_dict({"nodes": nodes, "ranks_per_node": ranks, "weights": {"name": "uniform"}}),
                Placement("torchrun", 0, 4, 0, 4),
            )


@pytest.mark.heavy
def test_torchrun_starts_nodes_of_two_ranks(tmp_path: Path) -> None:
    line = [*TORCHRUN, "--standalone", "--nproc-per-node", "4", "-m", "dgt", "train", "nodes=2"]
    done = command([*line, "ranks_per_node=2", "iterations=6", "run_dir=run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["ranks_per_node"] == 2
