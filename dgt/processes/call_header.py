"""Calls that all ranks make together. Each begins with a message of fixed size that says what it is.

gloo checks nothing: a longer message than expected ends the process (SIGABRT), bytes of another dtype are taken as they
are, and ranks in different calls wait for each other. So every rank first learns what all others are calling:

    | checksum of what must be equal, 4 bytes | the call in words, 188 bytes | the values, if they fit, 2368 bytes |

Values that fit travel with it, so that small ones cost no message more than before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dgt.errors import ConfigError, SharedError

if TYPE_CHECKING:  # imported where it is used: the `dgt` command asks where it is while torch is still on its way
    import torch

_TICKET = struct.Struct("<I188s")
FIRST = 2560  # the table in which ranks compare their settings fits
ROOM = FIRST - _TICKET.size


def as_tensor(call: str, values: Any) -> torch.Tensor:
    """A number, a list, an array or a tensor as a tensor; Python's own numbers keep their 64 bits."""
    import numpy as np
    import torch

    try:
        if isinstance(values, torch.Tensor):
            return values.detach().contiguous()
        if isinstance(values, (list, tuple)) and any(isinstance(value, torch.Tensor) for value in values):
            return torch.stack([as_tensor(call, value).cpu() for value in values])
        return torch.from_numpy(np.array(values, order="C"))
    except ConfigError:
        raise
    except (TypeError, ValueError, RuntimeError):  # words, lists of different lengths, sparse tensors
        raise ConfigError(
            f"{call}: a {type(values).__name__} cannot travel; give a number, a list of numbers, an array or a tensor"
        ) from None


def described(values: torch.Tensor) -> str:
    return f"shape {tuple(values.shape)}, {str(values.dtype).removeprefix('torch.')}"


def first_message(call: str, remark: str = "", values: torch.Tensor | None = None) -> torch.Tensor:
    """[FIRST] bytes: the call, which must be the same on all ranks, a remark, which need not, and values that fit."""
    import torch

    message = torch.zeros(FIRST, dtype=torch.uint8)
    ticket = _TICKET.pack(crc32(call.encode()), (call + remark).encode()[:188])
    message[: len(ticket)] = torch.frombuffer(bytearray(ticket), dtype=torch.uint8)
    if values is not None and values.numel() <= ROOM:
        message[_TICKET.size : _TICKET.size + values.numel()] = values
    return message


def values_in(messages: torch.Tensor, length: int) -> torch.Tensor:
    """Every rank's values [ranks, length] in bytes, out of first messages in which they fit."""
    return messages[:, _TICKET.size : _TICKET.size + length].contiguous()


def compare(messages: torch.Tensor) -> None:
    """Raise the same error on every rank that sees these first messages, unless all ranks make the same call."""
    if bool((messages[:, :4] == messages[0, :4]).all()):
        return
    calls = [_TICKET.unpack(bytes(row[: _TICKET.size].tolist()))[1] for row in messages]
    raise SharedError(
        f"ranks make different calls: {by_rank([call.decode(errors='replace').strip(chr(0)) for call in calls])}; all "
        "ranks must make the same call with values of the same shape and dtype, outside of `if node.is_main:`"
    )


def by_rank(texts: Sequence[str]) -> str:
    """rank 0 is in this, ranks 1, 2 are in that: the three texts that most ranks have."""
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    said = []
    for text, ranks in sorted(groups.items(), key=lambda item: -len(item[1]))[:3]:
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        said.append(f"rank {shown} is in {text}" if len(ranks) == 1 else f"ranks {shown} are in {text}")
    return "; ".join(said)
