"""Every message is the one asked for, or an error that names its sender and iteration."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dgt.errors import ConfigError, TrainingError, WireError
from dgt.exchange.frames import HEAD, TAIL, Frame, Seal, Settings, frame_bytes
from dgt.processes.notices import NEVER, Notices, goodbye

LIKE = torch.empty(37, dtype=torch.float32)


def node(rank: int) -> Any:
    return SimpleNamespace(
        rank=rank, name=rank, title=f"node {rank}", size=8, members=list(range(8)), notices=Notices()
    )


def framed(like: torch.Tensor = LIKE) -> Frame:
    frame = Frame(torch.zeros(frame_bytes(like), dtype=torch.uint8), like)
    frame.payload.copy_(torch.arange(like.numel()).to(like.dtype) + 1)
    return frame


def sealed(
    number: int = 5, iteration: int = 40, kind: str = "tracker", like: torch.Tensor = LIKE, crc: bool = True
) -> Frame:
    frame = framed(like)
    Seal(node(3), kind, like, crc).write(frame, number, iteration)
    return frame


def check(frame: Frame, crc: bool = True) -> None:
    Seal(node(1), "tracker", LIKE, crc).check([(3, frame)], number=5, iteration=40)


def delivered(frame: Frame) -> Frame:
    """What a receive buffer of the expected size holds afterwards, as gloo fills it: what came, then what was there."""
    inbox = sealed(number=4, iteration=39)
    taken = min(inbox.raw.numel(), frame.raw.numel())
    inbox.raw[:taken] = frame.raw[:taken]
    return inbox


def test_the_right_message_passes() -> None:
    check(sealed())
    check(sealed(crc=False), crc=False)


def test_every_flipped_bit_is_noticed() -> None:
    draw = random.Random(0)
    for _ in range(400):
        frame = sealed()
        bit = draw.randrange(8 * frame.raw.numel())
        frame.raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match="node 1: the tracker of iteration 40 from neighbour 3 is wrong: "):
            check(frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (sealed(number=4, iteration=39), "it is number 4 of iteration 39, expected 5 of 40"),
        (sealed(number=7, iteration=40), "it is number 7 of iteration 40, expected 5 of 40"),
        (sealed(kind="parameters"), "another kind, shape or dtype"),
        (sealed(like=LIKE.view(torch.int32)), "another kind, shape or dtype"),
        (sealed(like=torch.empty(1, 37)), "another kind, shape or dtype"),
        (sealed(like=torch.empty(30)), "120 bytes in place of 148"),
    ],
    ids=["stale", "early", "swapped", "dtype", "shape", "short"],
)
@pytest.mark.parametrize("crc", [True, False])
def test_what_is_wrong_is_said(frame: Frame, words: str, crc: bool) -> None:
    with pytest.raises(WireError, match=words):
        check(delivered(frame), crc)


def test_a_message_cut_off_anywhere_is_noticed_without_checksums() -> None:
    whole = sealed(crc=False)
    for length in range(0, whole.raw.numel() - TAIL, 3):
        inbox = sealed(number=4, iteration=39, crc=False)
        inbox.raw[:length] = whole.raw[:length]
        with pytest.raises(WireError, match=r"number 4 of|head is damaged|end is missing"):
            check(inbox, crc=False)


def test_notices_travel_in_the_head_and_the_earliest_counts() -> None:
    sender, receiver = node(3), node(1)
    sender.notices.hear(90, NEVER)
    receiver.notices.hear(95, 70)
    frame = framed()
    Seal(sender, "tracker", LIKE, False).write(frame, 5, 40)
    Seal(receiver, "tracker", LIKE, False).check([(3, frame)], 5, 40)
    assert (receiver.notices.stop_at, receiver.notices.save_at) == (90, 70)


def noted(*values: float) -> Settings:
    settings = Settings()
    settings.note(values)
    return settings


@pytest.mark.parametrize(
    ("own", "theirs", "words"),
    [
        ([0.05, 0.0], [0.1, 0.0], "node 1: lr is 0.05 here and 0.1 on neighbour 3 at iteration 40; all ranks need"),
        (
            [0.05, 0.0],
            [0.05, 0.1],
            "node 1: a weight_decay, momentum or beta, or the lr of a later .* is another one on neighbour 3",
        ),
        (
            [0.05, 0.0, 0.1, 0.0],
            [0.05, 0.0, 0.2, 0.0],
            "node 1: a weight_decay, momentum or beta, or the lr of a later",
        ),
    ],
)
def test_settings_that_differ_are_named(own: list[float], theirs: list[float], words: str) -> None:
    frame = framed()
    Seal(node(3), "both", LIKE, True, noted(*theirs)).write(frame, 5, 40)
    with pytest.raises(ConfigError, match=words):
        Seal(node(1), "both", LIKE, True, noted(*own)).check([(3, frame)], 5, 40)
    # a schedule whose last bit is another one on another host
    Seal(node(1), "both", LIKE, True, noted(*(value * (1 + 1e-15) for value in theirs))).check([(3, frame)], 5, 40)


def test_answers_are_compared_with_the_settings_that_were_sent() -> None:
    """A schedule may go on while messages travel."""
    settings, receiver, own, theirs = noted(0.1, 0.0), node(1), framed(), framed()
    seal = Seal(receiver, "both", LIKE, False, settings)
    seal.write(own, 5, 40)
    Seal(node(3), "both", LIKE, False, noted(0.1, 0.0)).write(theirs, 5, 40)
    settings.note([0.05, 0.0])
    seal.check([(3, theirs)], 5, 40)
    assert seal.last == 40


def test_a_goodbye_in_place_of_a_message_is_understood() -> None:
    inbox = sealed(number=4, iteration=39)
    inbox.raw[:HEAD] = torch.frombuffer(bytearray(goodbye(steps=40)), dtype=torch.uint8)
    with pytest.raises(TrainingError, match="node 1: neighbour 3 has left after 40 steps, this node is at step 41: do"):
        check(inbox)


def test_head_and_tail_are_all_that_is_added() -> None:
    assert frame_bytes(torch.empty(10, dtype=torch.float64)) == HEAD + 80 + TAIL
