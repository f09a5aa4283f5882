"""Settings without effect: what is typed must have one, or is an error; what an experiment's file brings is a line.

    dgt train seeds=5            # an error: seeds are those of dgt compare
    dgt simulate timeout=9       # a line: no rank has to wait for another

The same experiment may be trained, simulated and compared, so a file may hold what only one of them uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dgt.config import Config
from dgt.config import compose as composing
from dgt.errors import ConfigError

_ONE_SEED = "the seeds of dgt compare; here a run has one, seed=0, and -m seed=0,1,2 makes several runs"
_FROM_START = "for dgt train only; dgt compare runs every cell from its start"
_AS_LONG = "not for dgt compare, where all cells make the same number of iterations"
_ONE_RANK = "for dgt train; dgt compare has one rank per node"
# per command: keys, or sections, that must not be typed, and why
REFUSED = {
    "train": {"seeds": _ONE_SEED},
    "simulate": {"seeds": _ONE_SEED},
    "compare": {
        **dict.fromkeys(("strategy", "seed"), "dgt compare runs both strategies and seeds=COUNT; leave it out"),
        **dict.fromkeys(("warm_start", "checkpoint", "on_peer_loss", "replace", "chaos"), _FROM_START),
        "stop": _AS_LONG,
        "ranks_per_node": _ONE_RANK,
    },
}
FOR_RANKS = ("ranks_per_node", "timeout", "backend", "transport", "overlap", "crc")  # none of them changes a number
FOR_ONE_RUN = ("seed", "warm_start", "checkpoint", "on_peer_loss", "replace", "chaos")


def refuse(command: str, overrides: Sequence[str]) -> None:
    """Raise if one of these words would be ignored."""
    for key in _typed(overrides):
        why = REFUSED[command].get(key.split(".")[0])
        if why is not None:
            raise ConfigError(f"{key}: {why}")


def on_simulate(overrides: Sequence[str]) -> list[str]:
    """What to say about words that only ranks heed."""
    unused = [key for key in _typed(overrides) if key in FOR_RANKS]
    return [f"{', '.join(unused)}: for the ranks of dgt train; dgt simulate has none, so no effect"] if unused else []


def on_compare(config: Config) -> tuple[Config, list[str]]:
    """The config without what a comparison does not heed, and what to say about it."""
    plain = Config()
    unused = {key: getattr(plain, key) for key in FOR_ONE_RUN if getattr(config, key) != getattr(plain, key)}
    said = [f"{', '.join(unused)}: {_FROM_START}, so no effect"] if unused else []
    if config.stop != plain.stop:
        said.append(f"stop: {_AS_LONG}, so no effect")
        unused["stop"] = plain.stop
    if config.ranks_per_node != 1:
        said.append(f"ranks_per_node={config.ranks_per_node}: {_ONE_RANK}")
        unused["ranks_per_node"] = 1
    if config.placement != "none":
        said.append(f"placement={config.placement}: dgt compare has all ranks on this host, where all places are alike")
    return dataclasses.replace(config, **unused), said


def _typed(overrides: Sequence[str]) -> list[str]:
    return [item.key_or_group for item in composing.parse(overrides)]
