"""What a run is called where it is written: runs/<time>-least_squares-A-ring-II-lr_0.01."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from dgt.config import Config

DEFAULT = "gradient_tracking"
NAMED = ("problem", "weights", "topology", "strategy", "algorithm")  # in every name
LONGEST = 120  # characters; file systems allow 255, and time, counter and suffixes are added


def label_of(config: Config, swept: Mapping[str, str]) -> str:
    """problem-weights-topology-strategy, the algorithm if it is another than usual, and what else a sweep varies."""
    names = [config.problem.name, config.weights.name, config.topology.name, config.strategy.name]
    names += [config.algorithm.name] * (config.algorithm.name != DEFAULT)
    return file_name("-".join([*names, *words_of(swept)]))


def words_of(swept: Mapping[str, str]) -> list[str]:
    """key_value for whatever is not in every name."""
    return [f"{key}_{value}" for key, value in swept.items() if key not in NAMED]


def file_name(text: str) -> str:
    """The text in letters, digits and . _ - only; what is cut off a long one is told apart by a checksum."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.")
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
