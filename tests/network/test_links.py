"""How long a step takes on a link."""

from __future__ import annotations

import pytest

from dgt.network.links import Exchange, Link, all_reduce_seconds, step_seconds

LINK = Link(bandwidth=1e9, latency=0.01, compute=0.1)
QUICK = Link(bandwidth=1e9, latency=0.01, compute=0.01)
VECTOR = 0.05e9  # bytes that take 0.05 s


def test_a_step_takes_as_long_as_its_messages_and_its_gradient() -> None:
    """Gradient tracking: z and y together, or z first and y behind the next gradient, which hides it or does not."""
    assert step_seconds(LINK, Exchange(now=2 * VECTOR)) == pytest.approx(0.21)
    assert step_seconds(LINK, Exchange(now=VECTOR, later=VECTOR)) == pytest.approx(0.16)
    assert step_seconds(QUICK, Exchange(now=VECTOR, later=VECTOR)) == pytest.approx(0.12)


def test_one_vector_is_waited_for_or_travels_behind_the_gradient() -> None:
    assert step_seconds(LINK, Exchange(now=VECTOR)) == pytest.approx(0.16)
    assert step_seconds(LINK, Exchange(waits=0, later=VECTOR)) == pytest.approx(0.1)
    assert step_seconds(QUICK, Exchange(waits=0, later=VECTOR)) == pytest.approx(0.06)


def test_local_steps_share_an_exchange() -> None:
    """0.1 + 0.06 / 4; in the EXTRA form the message has four gradients of time."""
    assert step_seconds(LINK, Exchange(now=VECTOR), local_steps=4) == pytest.approx(0.115)
    assert step_seconds(QUICK, Exchange(waits=0, later=VECTOR, behind=4), local_steps=4) == pytest.approx(0.015)


def test_messages_that_need_each_other_wait_twice() -> None:
    assert step_seconds(LINK, Exchange(now=2 * VECTOR, waits=2)) == pytest.approx(0.22)


def test_a_ring_all_reduce_sends_a_model_twice_and_waits_for_every_node_twice() -> None:
    assert all_reduce_seconds(LINK, nodes=5, sent=2 * 4 / 5 * VECTOR) == pytest.approx(8 * 0.01 + 0.08)
    assert all_reduce_seconds(LINK, nodes=2, sent=VECTOR) == pytest.approx(0.1), "it travels during the gradient"
