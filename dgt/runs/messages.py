"""What the writer of a run says on standard error, besides progress."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def say(words: str) -> None:
    """One line on standard error."""
    print(f"dgt: {words}", file=sys.stderr, flush=True)
