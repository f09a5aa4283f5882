"""Parts of a data set on real ranks, weights by their sizes, and loaders that go on where they were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import dgt
from dgt.processes.node import Node
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(120)

WEIGHTS = [1.0, 2.0, 5.0]


def everything(samples: int = 80) -> TensorDataset:
    return TensorDataset(torch.arange(float(samples)), torch.arange(samples) % 4)


def refused(attempt: Any) -> str:
    with pytest.raises(dgt.ConfigError) as caught:
        attempt()
    return str(caught.value)


@dataclass
class Parts:
    def run(self, node: Node) -> dict[str, Any]:
        network, data = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS), everything()
        mine = dgt.shard(data, network)
        given = dgt.shard(data, network, [[0, 1], [2], [3, 79]])
        longer = everything(80 + (node.rank == 1))
        return {
            "iid": mine.indices,
            "again": dgt.shard(data, network).indices,
            "other": dgt.shard(data, network, seed=1).indices,
            "dirichlet": dgt.shard(data, network, "dirichlet", beta=0.05).indices,
            "labels": dgt.shard(range(80), network, "dirichlet", beta=0.05, labels=[k % 4 for k in range(80)]).indices,
            "given": [int(x) for x, _ in given],
            "weights": dgt.data_size_weights(mine, node),
            "refused": [
                refused(lambda: dgt.shard(data, network, "fair")),
                refused(lambda: dgt.shard(longer, network)),
                refused(lambda: dgt.shard(data, network, [[0], [1]])),
                refused(lambda: dgt.shard(data, network, [[0], [], [1]])),
                refused(lambda: dgt.shard(data, network, [[0], [1], [80]])),
                refused(lambda: dgt.shard(range(80), network, "dirichlet")),
                refused(lambda: dgt.data_size_weights(range(node.rank), node)),
            ],
        }


def test_parts_are_in_proportion_to_the_weights_and_have_every_sample_once() -> None:
    found = run_ranks(Parts(), 3)
    for kind in ("iid", "other", "dirichlet", "labels"):
        assert [len(found[rank][kind]) for rank in range(3)] == [10, 20, 50]
        assert sorted(sample for rank in range(3) for sample in found[rank][kind]) == list(range(80))
    assert found[0]["iid"] == found[0]["again"] != found[0]["other"]
    assert found[0]["labels"] == found[0]["dirichlet"]
    assert max(np.bincount(np.array(found[0]["dirichlet"]) % 4)) >= 8  # of ten: nearly all of one label
    assert [found[rank]["given"] for rank in range(3)] == [[0, 1], [2], [3, 79]]
    assert all(found[rank]["weights"] == [10, 20, 50] for rank in range(3))
    assert found[0]["refused"] == found[1]["refused"] == found[2]["refused"]
    hints = [
        "fair", "ranks disagree on samples: 80 on ranks 0, 2; 81 on rank 1", "2 lists of indices for 3 nodes",
        "the list of node 1 is empty", "node 2 has index 80", "give labels=", "rank 0 is empty",
    ]  # fmt: skip
    for words, hint in zip(found[0]["refused"], hints, strict=True):
        assert hint in words


@dataclass
class Interrupted:
    """Everything at once that people train with: AdamW, a schedule, clipping, bfloat16, a loader of their own.

    Dropout draws from the model's generator, as loaders do that have none of their own.
    """

    folder: Path
    workers: int

    def run(self, node: Node) -> dict[str, list[float]]:
        network = dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)

        def train(folder: str, steps: int) -> list[float]:
            torch.manual_seed(node.rank)
            model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(1, 1))
            optimizer = dgt.GradientTracking(model.parameters(), lr=1e-2, network=network, base=torch.optim.AdamW)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=11)
            mine = TensorDataset(torch.arange(5.0 + 3 * node.rank).view(-1, 1))
            loader = dgt.ResumableLoader(mine, node, batch_size=3, num_workers=self.workers)
            kept = {"model": model, "optimizer": optimizer, "loader": loader, "scheduler": scheduler}
            checkpoints = dgt.Checkpoints(self.folder / folder, network, minutes=0, **kept)
            done, seen = checkpoints.resume(), []
            while done < steps:
                for (x,) in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = model(x).square().mean()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    scheduler.step()
                    seen += x.flatten().tolist()
                    done += 1
                    if done == steps:
                        break
            checkpoints.save(done)
            return [float(len(loader)), *seen[-9:], *(parameter.item() for parameter in model.parameters())]

        return {"whole": train("whole", 11), "first": train("halves", 6), "second": train("halves", 11)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_in_the_middle_of_an_epoch_bit_by_bit(workers: int, tmp_path: Path) -> None:
    """Epochs have four batches on all nodes, as the largest data set has; the stop is within the second."""
    for found in run_ranks(Interrupted(tmp_path, workers), 3).values():
        assert found["whole"][0] == 4
        assert found["second"] == found["whole"]
        assert found["first"] != found["whole"]


class Stateful:
    def run(self, node: Node) -> tuple[list[float], list[float]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        torch.manual_seed(node.rank)
        loader = StatefulDataLoader(TensorDataset(torch.arange(40.0)), batch_size=4, shuffle=True, num_workers=1)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = [value for (batch,) in batches for value in batch.tolist()]
        again = StatefulDataLoader(TensorDataset(torch.arange(40.0)), batch_size=4, shuffle=True, num_workers=1)
        again.load_state_dict(state)
        return rest, [value for (batch,) in again for value in batch.tolist()]


def test_the_loader_of_torchdata_resumes_too() -> None:
    pytest.importorskip("torchdata")
    for rest, again in run_ranks(Stateful(), 2).values():
        assert len(rest) == 28
        assert rest == again


def test_cifar10_is_a_data_set_of_torch(data_root: Path) -> None:
    data, tests = dgt.cifar10(root=data_root), dgt.cifar10(train=False, root=data_root, transform=lambda image: image)
    assert (len(data), len(tests)) == (50000, 10000)
    loader = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(200)), batch_size=200)
    images, labels = next(iter(loader))
    assert images.shape == (200, 3, 32, 32)
    assert abs(images.mean().item()) < 0.2
    assert torch.equal(images[7], data[7][0])
    assert labels[7].item() == data[7][1] == data.targets[7]
    assert tests[0][0].dtype == torch.uint8
