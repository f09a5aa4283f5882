"""Files that somebody else may have made: read within bounds, and written without following what lies there already.

    text = read_text(path, 2**20)              # a regular file of at most a megabyte, else `OSError`
    found = parsed_json(text)                  # `ValueError` where it is too large, too deep, or no JSON
    write(path, "words")                       # all of it or nothing; a link of that name is replaced, not followed

A pipe, a device or a socket in place of a file would be waited for, or be read for ever. So a path is opened without
waiting, and only what turns out to be a regular file is read. A file of a few kilobytes may stand for gigabytes (YAML
aliases), or nest deeper than Python can follow: values are counted before they are made.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

DEEPEST = 40  # values within values
MOST_VALUES = 5_000_000  # of one JSON text: some 400 MB as Python objects


@contextlib.contextmanager
def opened(path: str | Path, most: int | None = None) -> Iterator[BinaryIO]:
    """A regular file of at most that many bytes; else `OSError`. Links are followed: what they lead to is looked at."""
    # without O_NONBLOCK, opening a pipe waits for somebody to write to it; O_NOCTTY: a terminal is not made ours
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    _refuse_others(descriptor, path)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, more than the {most} that are read", str(path))
        yield file


def _refuse_others(descriptor: int, path: str | Path) -> None:
    """Close what is no regular file, and say so."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))


def read(path: str | Path, most: int) -> bytes:
    """All of a regular file; `OSError` where there is more of it."""
    with opened(path, most) as file:
        data = file.read(most + 1)  # a file may have grown meanwhile, and those of /proc say that they are empty
    if data is None:  # one of /proc that would have us wait
        raise OSError(errno.EINVAL, "not a file", str(path))
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than the {most} bytes that are read", str(path))
    return data


def read_text(path: str | Path, most: int, errors: str = "strict") -> str:
    return read(path, most).decode("utf-8", errors)


def parsed_json(text: str, most: int = MOST_VALUES) -> Any:
    """JSON; whole numbers that fit no machine word become floats, if need be infinite ones."""
    if sum(map(text.count, ",[{")) > most:
        raise ValueError(f"more than {most} values")
    try:
        found = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 18 else float(digits))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_depth(found)
    return found


def _refuse_depth(found: Any) -> None:
    """Level by level, so that nothing is as deep as what is looked at."""
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(DEEPEST):
        if not level:
            return
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [item for values in inner for item in values if isinstance(item, dict | list)]
    raise ValueError(f"more than {DEEPEST} levels of values within values")


# --------------------------------------------------------------------------------------------------------- writing


def write(path: Path, content: str | bytes) -> None:
    """All of it or nothing, under that name: what had the name before, a link for example, is replaced."""
    with replacing(path) as draft:
        draft.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name when it is complete; nothing is left of it after an error."""
    draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}")
    # O_EXCL: never one that somebody else has put there, be it a link
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


@contextlib.contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A regular file to which lines are added, made if need be; `OSError` for links, pipes and devices."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o666)
    _refuse_others(descriptor, path)
    with os.fdopen(descriptor, "ab") as file:
        yield file


def make_folder(folder: Path, below: Path) -> None:
    """Make a folder somewhere below another; `OSError` where a link would lead elsewhere on the way."""
    below.mkdir(parents=True, exist_ok=True)
    place = below
    for part in folder.relative_to(below).parts:
        place /= part
        if place.is_symlink():
            raise OSError(errno.ELOOP, f"{place.name} is a link", str(place))
        place.mkdir(exist_ok=True)
