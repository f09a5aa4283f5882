"""What to say when a neighbour's message does not come: that it has left, where it waits, or what is likely."""

from __future__ import annotations

from collections.abc import Sequence

from dgt.errors import PeerError, TrainingError
from dgt.processes.collectives import other_positions
from dgt.processes.node import Node
from dgt.processes.notices import absence, has_left
from dgt.processes.peer_status import Position


def missed(
    node: Node, peers: Sequence[int], error: Exception, kind: str, iteration: int, steps: int, left: int | None
) -> PeerError | TrainingError:
    """The error to raise while waiting for a message of this kind from these ranks, one unless nccl does not say which.

    `steps` are those that the neighbour is known to have made, `left` those it said it had made when it left.
    """
    names = [node.members[peer] for peer in peers]
    what = absence(error, node.timeout)
    left = node.steps_at_leaving(names[0]) if left is None and len(names) == 1 else left
    if left is not None:
        return TrainingError(has_left(node.title, f"neighbour {names[0]}", left, f"at step {iteration + 1}"))
    who = f"neighbour {names[0]}" if len(names) == 1 else f"one of the neighbours {names}"
    words = f"{node.title}: {who} {what}; {kind} of iteration {iteration}"
    likely = other_positions(node, Position(True, f"step {iteration + 1}"), names, what)
    if not likely and what.timed_out and kind != "handshake":
        likely = f"; it has made {steps} steps: do all ranks make the same number?"
    return PeerError(words + likely, peers=names)
