"""What README and docs/ show: their commands and their Python, as the tests that run them read it."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[1]
EXAMPLES = TOP / "docs" / "examples"
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def _commands(text: str) -> list[str]:
    """The lines of shell blocks, without comments; a line that ends with a backslash goes on in the next."""
    shell = "".join(blocks("bash", text)).replace("\\\n", " ")
    return [" ".join(line.split("#")[0].split()) for line in shell.splitlines() if line.split("#")[0].strip()]


LINES = list(dict.fromkeys(line for text in TEXT.values() for line in _commands(text)))
"""Every command that stands in a block of its own, once."""

INLINE = sorted({words for text in TEXT.values() for words in re.findall(r"`(dgt (?:train|compare) [^`]+)`", text)})
"""Commands within sentences and captions."""
