"""What ranks are started for: a job or a script, and the options with which they join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dgt import problems
from dgt.config import Config
from dgt.processes.node import Node


class Job(Protocol):
    """What ranks do once they have joined; plain data, because it is pickled for the ranks."""

    def run(self, node: Node) -> Any: ...


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How ranks join: from the config, the same for all of them."""

    backend: str = "auto"
    device: str = "auto"
    timeout: float = 60.0
    tolerates_loss: bool = False
    """Whether the other ranks may go on when one is lost."""
    ranks_per_node: int | str = 1
    """A number, or auto: the GPUs of a host."""
    replace_most: int = 0
    """How often a lost rank is started again."""
    replace_pause: float = 0.0
    """Seconds before the first time; twice as many before each further one."""

    @classmethod
    def from_config(cls, config: Config) -> JoinOptions:
        small = problems.class_of(config).is_small  # it uses a GPU only if the user asks for one
        device = "cpu" if config.device == "auto" and small else config.device
        most = config.replace.most if config.on_peer_loss == "replace" else 0
        return cls(
            config.backend, device, config.timeout, config.on_peer_loss != "stop", config.ranks_per_node, most,
            config.replace.pause,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A user's own Python program, to be run by every rank."""

    path: str
    arguments: list[str]
