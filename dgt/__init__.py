"""dgt: weighted decentralized training in PyTorch, one process per network node.

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.05, network=network)
"""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import fcntl  # noqa: F401
    import resource  # noqa: F401
except ImportError:
    _WORDS = f"dgt runs on Linux and macOS, not on {sys.platform}; on Windows, install it inside WSL 2"
    if sys.argv and (sys.argv[0] == "-m" or Path(sys.argv[0]).stem in ("dgt", "__main__")):  # the command: one line
        print(f"dgt: error: {_WORDS}", file=sys.stderr)
        raise SystemExit(2) from None
    raise ImportError(_WORDS) from None

if TYPE_CHECKING:
    from dgt.algorithms import DSGD, AllReduce, ExactDiffusion, GradientTracking
    from dgt.config import Config
    from dgt.errors import ConfigError, PeerError
    from dgt.exchange.buffers import MixedBuffers
    from dgt.exchange.network import Network
    from dgt.network import graphs, schedules, weights
    from dgt.problems.base import Problem, ProblemContext
    from dgt.processes.even_steps import even_steps
    from dgt.processes.join import join
    from dgt.processes.node import Node
    from dgt.training.checkpoints.library import Checkpoints
    from dgt.training.own_data import ResumableLoader, cifar10, data_size_weights, shard

__all__ = [
    "DSGD", "AllReduce", "Checkpoints", "Config", "ConfigError", "ExactDiffusion", "GradientTracking", "MixedBuffers",
    "Network", "Node", "PeerError", "Problem", "ProblemContext", "ResumableLoader", "cifar10", "data_size_weights",
    "even_steps", "graphs", "join", "schedules", "shard", "weights",
]  # fmt: skip

# Imported at first use: torch takes seconds, and the `dgt` command has something to do meanwhile.
_HOMES = {
    "DSGD": "dgt.algorithms", "AllReduce": "dgt.algorithms", "ExactDiffusion": "dgt.algorithms",
    "GradientTracking": "dgt.algorithms",
    "ConfigError": "dgt.errors", "Config": "dgt.config", "MixedBuffers": "dgt.exchange.buffers",
    "Network": "dgt.exchange.network", "graphs": "dgt.network", "weights": "dgt.network", "schedules": "dgt.network",
    "Checkpoints": "dgt.training.checkpoints.library", "even_steps": "dgt.processes.even_steps",
    "ResumableLoader": "dgt.training.own_data", "cifar10": "dgt.training.own_data", "shard": "dgt.training.own_data",
    "data_size_weights": "dgt.training.own_data", "Problem": "dgt.problems.base", "ProblemContext": "dgt.problems.base",
    "Node": "dgt.processes.node", "PeerError": "dgt.errors", "join": "dgt.processes.join",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("dgt")  # pyproject.toml has it
    if name not in _HOMES:
        raise AttributeError(f"module 'dgt' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return getattr(home, name) if hasattr(home, name) else import_module(f"{_HOMES[name]}.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
