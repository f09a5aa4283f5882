"""Leaving the network without an error, at the end of `with dgt.join()`: all ranks finish their messages together."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dgt.errors import PeerError
from dgt.processes import call_header, collectives, peer_status
from dgt.processes.node import Node
from dgt.processes.notices import absence, goodbye
from dgt.processes.peer_status import Departure


def leave(node: Node) -> None:
    """Finish what is under way and wait until all ranks do the same; the caller then destroys the process groups.

    node   all ranks
    """
    scopes = [*node.scopes, node]
    node.steps = max(scope.steps for scope in scopes)
    for finish in [finish for scope in scopes for finish in scope.before_leaving]:
        finish()
    # first receive everything, then wait for the own sends: neighbours may complete theirs in another order
    exchanges = [exchange for scope in scopes for exchange in scope.under_way]
    for exchange in exchanges:
        exchange.receive_rest()
    for exchange in exchanges:
        exchange.finish()
    for scope in scopes:
        scope.sender.shutdown()
    # a connection that is closed before the neighbour has read it loses its messages: so all ranks wait here
    if node.size > 1:
        _wait_for_all(node, scopes)


def _wait_for_all(node: Node, scopes: Sequence[Node]) -> None:
    """A barrier. A rank that is in a step still, waiting for a message of this one, receives a goodbye in its place and
    raises an error that says so."""
    import torch.distributed as dist

    for scope in scopes:
        departure = Departure(scope.name, node.steps, scope.calls)
        peer_status.publish_departure(scope.store, scope.generation, departure)
        for sign in scope.life_signs:
            sign.leave(node.steps)
    header = call_header.pack("leaving `with dgt.join()`", f" after {node.steps} steps")
    headers, goodbyes = header.new_empty(node.size, header.numel()), None
    try:
        work = dist.all_gather(list(headers.unbind()), header, group=node.control, async_op=True)
        while not collectives.is_complete(work):
            # the others may only be computing; in one that waits, the goodbye matches the tag of its receive
            goodbyes = goodbyes or [_send_goodbyes(scope, node.steps) for scope in scopes]
    except RuntimeError as error:
        done = f"this rank made {node.steps} steps and was leaving"
        raise PeerError(f"{node.title}: another rank {absence(error, node.timeout)}; {done}") from error
    call_header.compare(headers)


def _send_goodbyes(node: Node, steps: int) -> list[object]:
    """Send one to every rank that may wait for a message; the caller must keep the returned sends until they end."""
    import torch

    message = torch.frombuffer(bytearray(goodbye(steps)), dtype=torch.uint8)
    sent: list[object] = [message]
    for tag, peers in node.expected_next.values():
        for peer in peers:
            with contextlib.suppress(RuntimeError):  # its connection is closed
                sent.append(node.control.send([message], peer, tag))
    return sent
