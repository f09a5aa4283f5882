"""Checkpoints that somebody else may have made: what they claim is compared with what there is before it is believed.

torch's restricted loader runs no code, but it believes the file: a compressed member may be a thousand times as large
as its file, a tensor may claim more bytes than were stored, a number may ask for a terabyte, and keys nested a million
deep overrun the stack when they are hashed. A checkpoint that dgt has written has none of it.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import zipfile
from dataclasses import dataclass
from typing import Any

import torch

from dgt.errors import ConfigError

MOST_COMMIT = 64 * 2**20  # bytes: some hundred per rank
MOST_RANKS = 100_000
MOST_STEPS = 2**53
MOST_MEMBERS = 1_000_000  # tensors of a rank's file
MOST_PICKLE = 64 * 2**20  # bytes without those of the tensors
DEEPEST = 100  # values within values
MAKES_ROOM = ("builtins bytearray", "__builtin__ bytearray")  # allowed by torch: as many bytes as it is told
ITEM_BYTES = {
    f"{kind}Storage": size
    for size, kinds in {
        1: ("Untyped", "Byte", "Char", "Bool", "QUInt8", "QInt8", "QUInt4x2", "QUInt2x4"),
        2: ("Short", "Half", "BFloat16"),
        4: ("Int", "Float", "QInt32"),
        8: ("Long", "Double", "ComplexFloat"),
        16: ("ComplexDouble",),
    }.items()
    for kind in kinds
}


def most_bytes() -> int:
    """Of a rank's file: it is in memory twice, as read and as tensors."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def check_commit(record: Any) -> None:
    """`ValueError` unless the numbers of a COMMIT record can be those of a checkpoint."""
    if not isinstance(record, dict) or not isinstance(record["files"], list) or not isinstance(record["facts"], dict):
        raise ValueError("not a record")
    numbers = [(record["step"], MOST_STEPS), (record["world"], MOST_RANKS)]
    model = [] if record.get("model") is None else [record["model"]]
    numbers += [(note["bytes"], 2**62) for note in [*record["files"], *model]]
    if not all(isinstance(number, int) and 0 <= number <= most for number, most in numbers):
        raise ValueError("a count that is none")
    if not all(math.isfinite(value) for value in [record["time"], *(note["share"] for note in record["files"])]):
        raise ValueError("not a number")


def outline(data: bytes, where: str) -> Any:
    """What a file of tensors and plain values holds, the tensors without memory; `ConfigError` for anything else.

    torch's restricted loader refuses whatever could run.
    """
    try:
        check_archive(data)
        return torch.load(io.BytesIO(data), weights_only=True, map_location="meta")
    except Exception as error:  # whatever a hostile file makes the parser do
        reason = str(error).splitlines()[0][:120]
        raise ConfigError(f"{where}: refused, not a checkpoint of tensors and numbers ({reason})") from None


def check_archive(data: bytes) -> None:
    """`ValueError` unless torch can load this without making more of it than its own size."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, len(data))
            (name,) = [member.filename for member in members if member.filename.endswith("/data.pkl")]
            sizes = {member.filename: member.file_size for member in members}
            if sizes[name] > MOST_PICKLE:
                raise ValueError(f"{sizes[name]} bytes of plain values, at most {MOST_PICKLE}")
            pickled = archive.read(name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError(f"not an archive ({error})") from None
    try:
        _Outline({key.removeprefix(name.removesuffix("data.pkl")): size for key, size in sizes.items()}).read(pickled)
    except (IndexError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"no outline of tensors ({type(error).__name__}: {error})") from None


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """torch compresses nothing, and stores nothing twice."""
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"{len(members)} members, at most {MOST_MEMBERS}")
    packed = [m.filename for m in members if m.compress_type != zipfile.ZIP_STORED or m.compress_size != m.file_size]
    if packed:
        raise ValueError(f"{packed[0][:60]} is compressed")
    if sum(member.file_size for member in members) > size:
        raise ValueError("its members are larger than all of it")


@dataclass(slots=True, eq=False)
class _Value:
    """What an instruction of a pickle leaves on the stack: how deep it is, and itself where it is plain."""

    depth: int = 0
    plain: Any = None


_MARK = _Value()
_EMPTY = ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE")
_PLAIN = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "NONE", "NEWTRUE", "NEWFALSE", "BINBYTES", "SHORT_BINBYTES", "SHORT_BINSTRING",
)  # fmt: skip
_MANY = {"APPENDS", "SETITEMS", "ADDITEMS"}
_FEW = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CALLS = ("REDUCE", "NEWOBJ")


class _Outline:
    """Goes through the instructions of a pickle without following them: depths, names, and sizes of tensors only."""

    def __init__(self, stored: dict[str, int]) -> None:
        self._stored = stored  # member -> bytes
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}

    def read(self, pickled: bytes) -> None:
        for operation, argument, _ in pickletools.genops(pickled):
            self._step(operation.name, argument)

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _PLAIN:
            stack.append(_Value(0, argument))
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _EMPTY:
            stack.append(_Value(1, () if name == "EMPTY_TUPLE" else None))
        elif name == "TUPLE" or name in _TUPLES:
            self._push_tuple(self._since_mark() if name == "TUPLE" else self._last(_TUPLES[name]))
        elif name in _MANY or name in _FEW:
            inner = self._since_mark() if name in _MANY else self._last(_FEW[name])
            self._deepen(stack[-1], inner)
        elif name in _CALLS:
            function, arguments = self._last(2)
            stack.append(_Value(1))
            self._deepen(stack[-1], [function, arguments])
        elif name == "GLOBAL":
            if argument in MAKES_ROOM:
                raise ValueError(f"{argument} is not allowed")
            stack.append(_Value(0, argument))
        elif name == "BINPERSID":
            self._check_storage(*stack.pop().plain)
            stack.append(_Value())
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"the instruction {name} is not allowed")

    def _last(self, number: int) -> list[_Value]:
        taken = self._stack[-number:]
        del self._stack[-number:]
        if len(taken) < number or _MARK in taken:
            raise ValueError("instructions that do not fit together")
        return taken

    def _since_mark(self) -> list[_Value]:
        taken = []
        while (value := self._stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def _push_tuple(self, values: list[_Value]) -> None:
        self._stack.append(_Value(1, tuple(value.plain for value in values) if len(values) == 5 else None))
        self._deepen(self._stack[-1], values)

    def _deepen(self, outer: _Value, inner: list[_Value]) -> None:
        outer.depth = max([outer.depth, *(1 + value.depth for value in inner)])
        if outer.depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels of values within values")

    def _check_storage(self, word: str, kind: str, key: str, place: str, numbers: int) -> None:
        """('storage', 'torch FloatStorage', '0', 'cpu', 1000): as many bytes as its member has."""
        module, _, name = kind.partition(" ")
        if word != "storage" or name not in ITEM_BYTES or module not in ("torch", "torch.storage"):
            raise ValueError(f"{kind[:60]} is no storage of torch")
        size = ITEM_BYTES[name]
        stored = self._stored[f"data/{key}"]
        if not 0 <= numbers * size <= stored:
            raise ValueError(f"a tensor of {numbers * size} bytes, of which {stored} are stored")
