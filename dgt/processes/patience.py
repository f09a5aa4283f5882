"""Waiting for a GPU, and for the ranks that it waits for, without standing still in a call that nothing interrupts.

A message over nccl that does not come stops the GPU, and with it every call that waits for the GPU; nccl's own watchdog
would then end the process, without a word about who was missing. So the host asks again and again, in between runs the
handlers of signals, looks for neighbours that are gone, and gives up after the timeout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dgt.errors import TrainingError

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    from dgt.processes.node import Node

PROBE_SECONDS = 1.0  # how often a rank that waits looks whether the others are still there
PROBE_TAG = 2**30 + 1  # beyond those of messages
SHORTEST, LONGEST = 20e-6, 1e-3  # seconds between two questions


def wait_for_gpu(is_done: Callable[[], bool], timeout: float, what: str) -> None:
    """Until this GPU is through with something; `TrainingError` after the timeout."""
    if not asked_until(is_done, time.monotonic() + timeout):
        raise TrainingError(f"the GPU did not finish {what} within {timeout:g} s")


def asked_until(is_done: Callable[[], bool], deadline: float, every_second: Callable[[], None] = lambda: None) -> bool:
    """Ask until it is so, or until the deadline; `every_second` may raise."""
    pause, probe = SHORTEST, time.monotonic() + PROBE_SECONDS
    while not is_done():
        now = time.monotonic()
        if now > deadline:
            return False
        if now > probe:
            every_second()
            probe = now + PROBE_SECONDS
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
    return True


def find_lost(node: Node, peers: Sequence[int]) -> tuple[int, RuntimeError] | None:
    """One of these ranks whose process has ended, and gloo's error about it: a message to such a rank fails at once."""
    import torch

    for peer in peers:
        node.probes.pop(peer, None)
        try:
            node.probes[peer] = node.control.send([torch.zeros(1, dtype=torch.uint8)], peer, PROBE_TAG)
        except RuntimeError as error:
            return peer, error
    return None


def abort(groups: dict[str, Any]) -> None:
    """Give up what a GPU waits for, after an error: else ending the group waits for it too."""
    if groups and groups["data"] is not groups["control"]:
        with contextlib.suppress(Exception):  # an older torch, or a group that has failed already
            groups["data"].abort()
