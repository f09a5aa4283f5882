"""What the writer of a run logs, besides progress."""

from __future__ import annotations

import logging
from collections.abc import Callable

Say = Callable[[str], None]
log = logging.getLogger("dgt.runs")


def say(words: str) -> None:
    """One line, on standard error under the `dgt` command."""
    log.info("%s", words)
