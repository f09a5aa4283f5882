"""The graphs that can be chosen by name: functions with `@topology` above them, anywhere in this package.

    @topology
    def ring(n: int) -> nx.Graph: ...

    @topology
    def geometric(n: int, radius: Annotated[float, Meaning("how near neighbours are", low=0)] = 0.3) -> nx.Graph: ...

The first argument is the number of nodes, or their weights if it is called `weights`. The others are the settings of
the graph, `topology.radius=0.4`. A function from outside, `topology._target_=my_module.my_graph`, needs no decorator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

import networkx as nx

from dgt.config import TopologyConfig
from dgt.errors import ConfigError
from dgt.network.weights import Weights

Graph = Callable[..., Any]  # makes a networkx.Graph or a `schedules.Schedule`
AnyGraph = TypeVar("AnyGraph", bound=Graph)

TOPOLOGIES: dict[str, Graph] = {}
PROPOSED: list[str] = []
"""Those that `dgt plan` compares when none is named."""


@overload
def topology(function: AnyGraph) -> AnyGraph: ...
@overload
def topology(*, name: str = "", proposed: bool = False, slow: str = "") -> Callable[[AnyGraph], AnyGraph]: ...
def topology(function: Any = None, *, name: str = "", proposed: bool = False, slow: str = "") -> Any:
    """Register a function as a choice of `topology`.

    name      its name in a config; else that of the function
    proposed  whether `dgt plan` compares it when no graph is named
    slow      a setting, true or false, that takes its time and leaves the number of edges as it is: rank 0 alone
              draws the graph with it, and tells the others
    """

    def register(made: AnyGraph) -> AnyGraph:
        made.slow = slow  # type: ignore[attr-defined]
        TOPOLOGIES[name or made.__name__] = made
        PROPOSED.extend([name or made.__name__] * proposed)
        return made

    return register if function is None else register(function)


def make(config: TopologyConfig, weights: Weights) -> Any:
    """What a config asks for, on as many nodes as there are weights: a graph, a `schedules.Schedule`, or a list of
    graphs to be made into one."""
    config.check()
    function, label = config.kind, f"topology._target_={config.target}"
    graph = function(_first(function, weights), **config.values)
    if config.target is None:
        return graph
    from dgt.network.schedules import Schedule  # which imports this module

    if not isinstance(graph, nx.Graph | Schedule | list):
        words = "must make a networkx.Graph, a list of them or a dgt.schedules.Schedule"
        raise ConfigError(f"{label}: made {type(graph).__name__}, {words}")
    first = graph[0] if isinstance(graph, list) and graph else graph
    nodes = first.number_of_nodes() if isinstance(first, nx.Graph) else getattr(first, "size", weights.size)
    if nodes != weights.size:
        raise ConfigError(f"{label}: made {nodes} nodes, there are {weights.size}")
    return graph


def _first(function: Graph, weights: Weights) -> Weights | int:
    """What the function's first argument is for: the weights, or their number."""
    first = next(iter(inspect.signature(function).parameters), "")
    return weights if first == "weights" else int(weights.size)


def is_slow(config: TopologyConfig) -> bool:
    """Whether drawing this graph takes so long that one rank should do it for all."""
    return bool(_slow(config) and config.values.get(_slow(config)))


def as_drawn(config: TopologyConfig) -> TopologyConfig:
    """The same graph without what takes its time; it has as many edges."""
    return config.replace(**{_slow(config): False}) if is_slow(config) else config


def _slow(config: TopologyConfig) -> str:
    return getattr(config.kind, "slow", "")
