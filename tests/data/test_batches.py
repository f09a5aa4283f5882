"""Batches depend on (seed, node, step) only; crops and flips are those of a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dgt.data.batches import MEAN, STD, ImageBatches, Order, crop_and_flip, normalised

CPU = torch.device("cpu")


@pytest.mark.parametrize(("size", "batch"), [(10, 3), (128, 128), (5, 16), (1, 4)])
def test_every_epoch_visits_every_sample_once(size: int, batch: int) -> None:
    order = Order(size, batch, seed=1, node=2)
    stream = np.concatenate([order.at(step) for step in range(3 * size)])
    for epoch in stream[: len(stream) // size * size].reshape(-1, size):
        assert np.array_equal(np.sort(epoch), np.arange(size))


def test_a_step_is_the_same_whenever_it_is_asked_for() -> None:
    walked, jumped = Order(50, 8, seed=3, node=1), Order(50, 8, seed=3, node=1)
    there = [walked.at(step) for step in range(30)]
    assert np.array_equal(jumped.at(29), there[29])
    assert np.array_equal(jumped.at(2), there[2])
    assert not np.array_equal(Order(50, 8, seed=3, node=2).at(0), there[0])
    assert not np.array_equal(Order(50, 8, seed=4, node=1).at(0), there[0])


def test_crops_and_flips_equal_a_loop() -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (9, 3, 32, 32), dtype=torch.uint8)
    corners, flips = torch.randint(0, 9, (2, 9)), torch.rand(9) < 0.5
    result = crop_and_flip(images, corners, flips)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    for k in range(9):
        top, left = corners[:, k].tolist()
        expected = padded[k, :, top : top + 32, left : left + 32]
        assert torch.equal(result[k], expected.flip(-1) if flips[k] else expected)


def test_pixels_are_normalised() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    expected = (images / 255 - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    torch.testing.assert_close(normalised(images), expected)


def test_batches_come_from_the_shard_and_repeat_exactly() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(40, dtype=np.uint8)
    shard = np.array([3, 7, 11])

    def make(augment: str) -> ImageBatches:
        return ImageBatches(images, labels, shard, batch=8, augment=augment, seed=0, node=5, device=CPU)

    x, y = make(augment="full").at(4)
    assert x.shape == (8, 3, 32, 32)
    assert set(y.tolist()) == {3, 7, 11}  # a shard smaller than the batch appears more than once
    again, _ = make(augment="full").at(4)
    assert torch.equal(x, again)
    plain, y = make(augment="none").at(0)
    torch.testing.assert_close(plain, normalised(torch.from_numpy(images[y.numpy()])))
    flipped, y = make(augment="flip").at(0)
    sides = [plain, normalised(torch.from_numpy(images[y.numpy()])).flip(-1)]
    kept = [min(float((flipped[k] - side[k]).abs().max()) for side in sides) for k in range(8)]
    assert max(kept) == 0, "each image as it is, or mirrored"
    assert not torch.equal(flipped, plain)
    images.setflags(write=False)  # memory maps are read-only
    make(augment="full").at(0)
