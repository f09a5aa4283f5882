"""The start-up agreement check: every rank must mean the same run before any gradient is computed.

Each fact travels as a digest and the start of its text in one fixed-size table, so that ranks of different
versions can still compare, and the error can say who has what. Plain bytes, no pickle.
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
    """Raise the same error on every rank unless all ranks bring the same facts, in the same order."""
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
    with node.during(f"the check that ranks agree on {', '.join(facts)}"[:100]):
        tables = node.gather(table)
    for slot in range(SLOTS):
        if (tables[:, slot] == tables[0, slot]).all():
            continue
        rows = [bytes(row.tolist()) for row in tables[:, slot]]
        name = rows[0][:NAME].decode(errors="replace").strip("\0 ") or "configuration"
        raise SharedError(f"ranks disagree on {name}: {_who_has_what(rows)}")


def together(node: Node, make: Callable[[], Made]) -> Made:
    """What `make` returns here; bad input that any rank finds in it is raised on every rank, and told once."""
    made, trouble = [], ""
    try:
        made.append(make())
    except ConfigError as error:
        trouble = str(error)
    share_trouble(node, trouble)
    return made[0]


def share_trouble(node: Node, trouble: str) -> None:
    """Raise on every rank what any rank found wrong before joining; say where, unless it is wrong everywhere."""
    text = torch.zeros(MESSAGE, dtype=torch.uint8)
    said = trouble.encode()[:MESSAGE]
    text[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else 0
    with node.during("the question whether anything is wrong"):
        rows = node.gather(text)
    messages = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]
    troubled = [rank for rank, message in enumerate(messages) if message]
    if troubled:
        where = "" if len(troubled) == node.size or troubled == [0] else f" (on rank {troubled[0]})"
        raise SharedError(messages[troubled[0]] + where)


def broadcast_text(node: Node, text: str, most: int = 4096) -> str:
    """Rank 0's text, on every rank."""
    table = torch.zeros(most, dtype=torch.uint8)
    said = text.encode()
    if len(said) > most:
        raise SharedError(f"{text[:60]}...: longer than {most} bytes")
    table[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said and node.is_main else 0
    with node.during("hearing from rank 0"):
        return bytes(node.sum(table).tolist()).rstrip(b"\0").decode()


def _who_has_what(rows: list[bytes]) -> str:
    groups: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        groups.setdefault(row, []).append(rank)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:3]
    said = []
    for row, ranks in largest:
        text = row[NAME : NAME + TEXT].decode(errors="replace").strip("\0 ")
        if len({other[: NAME + TEXT] for other in groups}) < len(groups):
            text = f"{text}... ({row[-DIGEST:].hex()[:6]})"  # they differ further on
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        said.append(f"{text} on rank{'s' if len(ranks) > 1 else ''} {shown}")
    return "; ".join(said)
