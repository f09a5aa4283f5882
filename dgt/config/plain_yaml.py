"""YAML of strangers: plain values, as many as it says, and none that takes long to read.

A file of a few hundred bytes may stand for gigabytes: an alias of nine aliases of nine aliases.
"""

from __future__ import annotations

from typing import Any

import yaml

from dgt.config.files import DEEPEST

LONGEST_NUMBER = 64  # characters
MOST_VALUES = 300_000  # with aliases followed


def parsed(text: str) -> Any:
    """YAML of plain values; `ValueError` where it is none, or stands for more than it should."""
    try:
        return yaml.load(text, _BoundedLoader)
    except (yaml.YAMLError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from None


class _BoundedLoader(yaml.SafeLoader):
    """Counts values as they are composed, those that an alias repeats included."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = self._depth = 0
        self._sizes: dict[str, int] = {}  # of what an anchor names, once it is complete

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._sizes:
                raise yaml.YAMLError(f"*{event.anchor} is a part of itself")
            self._add(self._sizes.get(str(event.anchor), 0))
            return super().compose_node(parent, index)
        anchor, before = event.anchor, self._count
        self._add(1)
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} levels of values within values")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = self._count - before
        return node

    def _add(self, values: int) -> None:
        self._count += values
        if self._count > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES} values")

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Without long ones: 1:1:1:... is a number to the base 60, and takes the longer the longer it is."""
        if len(node.value) > LONGEST_NUMBER:
            raise yaml.YAMLError(f"a number of {len(node.value)} characters")
        if node.tag.endswith(":float"):
            return self.construct_yaml_float(node)
        found = self.construct_yaml_int(node)
        return found if abs(found) < 10**18 else float(found)


for _kind in ("int", "float"):
    _BoundedLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _BoundedLoader.construct_number)
