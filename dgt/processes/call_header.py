"""The header that every collective operation sends first, so that all ranks know which operation each of them is in.

gloo itself checks nothing: a message longer than the receiver's buffer aborts the process (SIGABRT), bytes of another
dtype are reinterpreted, and ranks in different operations block until their timeout. The header has a fixed size:

    | checksum of what must be equal, 4 bytes | operation, shape and dtype as text, 188 bytes | values, 2368 bytes |

Values that fit travel inside the header, so that small operations cost one message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dgt.errors import ConfigError, SharedError

if TYPE_CHECKING:  # torch is imported inside functions: the `dgt` command imports this module before torch
    import torch

_FIELDS = struct.Struct("<I188s")
SIZE = 2560  # bytes: also enough for the table in which ranks compare their settings (`agreement`)
ROOM = SIZE - _FIELDS.size  # bytes left for values


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
    except (TypeError, ValueError, RuntimeError):  # strings, lists of different lengths, sparse tensors
        raise ConfigError(
            f"{call}: a {type(values).__name__} cannot travel; give a number, a list of numbers, an array or a tensor"
        ) from None


def described(values: torch.Tensor) -> str:
    """'shape (3,), float32', as the header has it."""
    return f"shape {tuple(values.shape)}, {str(values.dtype).removeprefix('torch.')}"


def pack(call: str, remark: str = "", values: torch.Tensor | None = None) -> torch.Tensor:
    """A header of [SIZE] bytes.

    call    operation, shape and dtype: must be equal on all ranks
    remark  added to the text, may differ between ranks
    values  bytes that are copied into the header if they fit
    """
    import torch

    header = torch.zeros(SIZE, dtype=torch.uint8)
    fields = _FIELDS.pack(crc32(call.encode()), (call + remark).encode()[:188])
    header[: len(fields)] = torch.frombuffer(bytearray(fields), dtype=torch.uint8)
    if values is not None and values.numel() <= ROOM:
        header[_FIELDS.size : _FIELDS.size + values.numel()] = values
    return header


def values_in(headers: torch.Tensor, length: int) -> torch.Tensor:
    """Every rank's values [ranks, length] in bytes, from headers [ranks, SIZE] in which they fit."""
    return headers[:, _FIELDS.size : _FIELDS.size + length].contiguous()


def compare(headers: torch.Tensor) -> None:
    """Raise `SharedError` unless the headers [ranks, SIZE] all name the same operation, shape and dtype."""
    if bool((headers[:, :4] == headers[0, :4]).all()):
        return
    calls = [_FIELDS.unpack(bytes(row[: _FIELDS.size].tolist()))[1] for row in headers]
    raise SharedError(
        f"ranks make different calls: {by_rank([call.decode(errors='replace').strip(chr(0)) for call in calls])}; all "
        "ranks must make the same call with values of the same shape and dtype, outside of `if node.is_main:`"
    )


def by_rank(texts: Sequence[str]) -> str:
    """'rank 0 is in this; ranks 1, 2 are in that', for the three most frequent of these texts, one text per rank."""
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    parts = []
    for text, ranks in sorted(groups.items(), key=lambda item: -len(item[1]))[:3]:
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        parts.append(f"rank {shown} is in {text}" if len(ranks) == 1 else f"ranks {shown} are in {text}")
    return "; ".join(parts)
