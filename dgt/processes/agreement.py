"""Agreement between ranks: equal settings before any gradient is computed, errors that all ranks raise together.

Each setting is sent as a digest and the start of its text in a table of fixed size, so that ranks of different
versions can still compare, and the error can name which rank has which value. Plain bytes, no pickle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from dgt.errors import ConfigError, SharedError
from dgt.processes.node import Node

Made = TypeVar("Made")

SLOTS = 24
NAME, TEXT, DIGEST = 24, 60, 8
MESSAGE = 512


def agree(node: Node, facts: Mapping[str, str]) -> None:
    """Raise the same error on every rank unless `facts` {name: text} are equal on all ranks, in the same order."""
    listed = list(facts.items())
    # ranks that bring more facts than others would make one exchange more: how many there are is compared first
    _agree(node, dict([*listed[: SLOTS - 1], ("the number of settings", str(len(listed)))]))
    for first in range(SLOTS - 1, len(listed), SLOTS):
        _agree(node, dict(listed[first : first + SLOTS]))


def _agree(node: Node, facts: Mapping[str, str]) -> None:
    """On as many facts as the table of fixed size has room for."""
    table = torch.zeros(SLOTS, NAME + TEXT + DIGEST, dtype=torch.uint8)
    for slot, (name, text) in enumerate(facts.items()):
        digest = hashlib.sha256(text.encode()).digest()[:DIGEST]
        row = name.encode()[:NAME].ljust(NAME) + text.encode()[:TEXT].ljust(TEXT) + digest
        table[slot] = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    with node.world.during(f"the check that ranks agree on {', '.join(facts)}"[:100]):
        tables = node.world.all_gather(table)
    for slot in range(SLOTS):
        if (tables[:, slot] == tables[0, slot]).all():
            continue
        rows = [bytes(row.tolist()) for row in tables[:, slot]]
        name = rows[0][:NAME].decode(errors="replace").strip("\0 ") or "configuration"
        raise SharedError(f"ranks disagree on {name}: {_values_by_rank(rows)}")


def together(node: Node, make: Callable[[], Made]) -> Made:
    """The result of `make()`; a `ConfigError` that it raises on any rank is raised on all, and printed by rank 0."""
    made, trouble = [], ""
    try:
        made.append(make())
    except ConfigError as error:
        trouble = str(error)
    share_trouble(node, trouble)
    return made[0]


def share_trouble(node: Node, trouble: str) -> None:
    """Raise a `SharedError` on every rank if `trouble`, an error message, is not empty on any of them."""
    text = torch.zeros(MESSAGE, dtype=torch.uint8)
    raw = trouble.encode()[:MESSAGE]
    text[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else 0
    with node.world.during("the question whether anything is wrong"):
        rows = node.world.all_gather(text)
    messages = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]
    troubled = [rank for rank, message in enumerate(messages) if message]
    if troubled:
        where = "" if len(troubled) == node.world.size or troubled == [0] else f" (on rank {troubled[0]})"
        raise SharedError(messages[troubled[0]] + where)


def broadcast_text(node: Node, text: str, most: int = 4096) -> str:
    """Rank 0's `text`, on every rank; at most `most` bytes, of which all are sent."""
    table = torch.zeros(most, dtype=torch.uint8)
    raw = text.encode()
    if len(raw) > most:
        raise SharedError(f"{text[:60]}...: longer than {most} bytes")
    table[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw and node.is_main else 0
    with node.world.during("hearing from rank 0"):
        return bytes(node.world.all_reduce(table).tolist()).rstrip(b"\0").decode()


def _values_by_rank(rows: list[bytes]) -> str:
    """'I on rank 0; II on ranks 1, 2', for the three most frequent values."""
    groups: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        groups.setdefault(row, []).append(rank)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:3]
    parts = []
    for row, ranks in largest:
        text = row[NAME : NAME + TEXT].decode(errors="replace").strip("\0 ")
        if len({other[: NAME + TEXT] for other in groups}) < len(groups):
            text = (
                f"{text}... ({row[-DIGEST:].hex()[:6]})"  # equal as far as the text goes: the digest tells them apart
            )
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        parts.append(f"{text} on rank{'s' if len(ranks) > 1 else ''} {shown}")
    return "; ".join(parts)
