"""What is chosen by name or by `_target_` carries its settings: into the config, --help, the ranks and back."""

from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from dgt.config import AlgorithmConfig, Config, ProblemConfig, TopologyConfig, compose, registry
from dgt.config.compose import compose as composed
from dgt.errors import ConfigError
from dgt.network import graphs, topologies
from dgt.training.session import run_facts

TOYS = """
    from dataclasses import dataclass
    from typing import Annotated

    import networkx as nx

    import dgt
    from dgt.config.settings import Meaning, setting

    class Damped(dgt.DSGD):
        @dataclass(slots=True, kw_only=True)
        class Settings:
            damping: float = setting(0.5, "share that is kept", low=0, high=1)
            kind: str = setting("soft", "soft or hard", choices=("soft", "hard"))

    class Plain(dgt.DSGD):
        pass

    def wheel(n: int, spokes: Annotated[int, Meaning("neighbours of the hub", low=1)] = 2) -> nx.Graph:
        graph = nx.cycle_graph(n)
        graph.add_edges_from((0, k) for k in range(1, spokes + 1))
        return graph

    def by_weight(weights, most: int) -> nx.Graph:
        assert len(weights) == 4
        return nx.path_graph(len(weights))

    TEN = 10

    def pieces(n): return nx.empty_graph(n)
    def small(n): return nx.path_graph(n - 1)
    def number(n): return n

    class Sized(dgt.Problem):
        @dataclass(slots=True, kw_only=True)
        class Settings:
            width: int = setting(3, "of the model", low=1)

        def __init__(self, context, width): ...
        def backward(self, iteration): ...
"""
ALGORITHM = """
    from dataclasses import dataclass
    from dgt.config.settings import setting

    class Momentum:
        supports = frozenset({"wire"})

        @dataclass(slots=True, kw_only=True)
        class Settings:
            beta: float = setting(0.9, "share of the last step", low=0, high=1, open_high=True)

    ALGORITHM = Momentum
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "choice_toys.py").write_text(textwrap.dedent(TOYS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("choice_toys", None)


@pytest.fixture
def momentum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module added to dgt/algorithms, and nothing else."""
    import dgt.algorithms

    (tmp_path / "momentum.py").write_text(textwrap.dedent(ALGORITHM))
    monkeypatch.setattr(dgt.algorithms, "__path__", [*dgt.algorithms.__path__, str(tmp_path)])
    known = registry.names
    monkeypatch.setattr(registry, "names", lambda group: (*known(group), *["momentum"] * (group == "algorithm")))
    yield
    sys.modules.pop("dgt.algorithms.momentum", None)


def test_names_are_read_from_the_files() -> None:
    assert set(registry.names("algorithm")) == {"allreduce", "dsgd", "exact_diffusion", "gradient_tracking"}
    assert set(registry.names("problem")) == {"cifar10", "least_squares", "text"}
    assert {"ring", "tailored", "file"} <= set(registry.names("topology"))


def test_a_module_is_all_that_an_algorithm_needs(momentum: None) -> None:
    config = composed(["algorithm=momentum", "algorithm.beta=0.5", "wire=bfloat16"])
    assert config.algorithm == AlgorithmConfig(name="momentum", beta=0.5)
    assert config.to_dict()["algorithm"] == {"name": "momentum", "beta": 0.5}
    assert "algorithm.beta: 0.9   # share of the last step   [algorithm=momentum]" in compose.settings()
    assert run_facts(config, [0])["algorithm.beta"] == "0.5"
    with pytest.raises(ConfigError, match=r"^algorithm.beta=1.0: must be at least 0 and below 1"):
        composed(["algorithm=momentum", "algorithm.beta=1"])
    with pytest.raises(ConfigError, match=r"^algorithm.bta: algorithm=momentum has no such key; did you mean"):
        composed(["algorithm=momentum", "algorithm.bta=1"])
    with pytest.raises(ConfigError, match=r"^local_steps=2: not with algorithm=momentum; leave it out"):
        composed(["algorithm=momentum", "local_steps=2"])


def test_an_algorithm_from_outside_has_settings_too(toys: None) -> None:
    config = composed(["algorithm._target_=choice_toys.Damped", "algorithm.damping=0.25"])
    assert config.algorithm.name == "Damped"
    config.check_targets()
    assert config.algorithm.values == {"damping": 0.25, "kind": "soft"}, "what is not given is at its default"
    assert config.algorithm.kind.__name__ == "Damped"
    facts = run_facts(config, [0])
    assert (facts["algorithm.target"], facts["algorithm.damping"]) == ("choice_toys.Damped", "0.25")
    assert Config.from_dict(config.to_dict()) == config == pickle.loads(pickle.dumps(config))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["Damped", "damping=2"], "algorithm.damping=2.0: must be at least 0 and at most 1"),
        (["Damped", "damping=much"], "algorithm.damping=much: must be a number"),
        (["Damped", "kind=warm"], "algorithm.kind=warm: allowed: soft, hard"),
        (["Damped", "dampign=1"], "algorithm.dampign: no such key; did you mean damping"),
        (["Plain", "beta=1"], "algorithm.beta: no such key; allowed: momentum, nesterov, base, base_options"),
        (["wheel"], "algorithm._target_=choice_toys.wheel: must be a class derived from dgt.algorithms.Decentralized"),
        (["Nowhere"], r"algorithm._target_=choice_toys.Nowhere: cannot import it \(module 'choice_toys' has no"),
    ],
)
def test_settings_of_an_algorithm_from_outside_are_checked(toys: None, overrides: list[str], words: str) -> None:
    name, *settings = overrides
    config = composed([f"algorithm._target_=choice_toys.{name}", *(f"algorithm.{word}" for word in settings)])
    with pytest.raises(ConfigError, match=f"^{words}"):
        config.check_targets()


def test_a_function_is_all_that_a_topology_needs(toys: None) -> None:
    config = composed(["topology._target_=choice_toys.wheel", "topology.spokes=3"])
    graph = graphs.from_config(config.topology, np.ones(6))
    assert set(graph[0]) == {1, 2, 3, 5}
    assert config.topology.to_dict() == {"name": "wheel", "_target_": "choice_toys.wheel", "spokes": 3}
    by_weight = TopologyConfig(_target_="choice_toys.by_weight", most=1)
    assert nx.utils.graphs_equal(graphs.from_config(by_weight, np.ones(4)), nx.path_graph(4))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "wheel", "spokes": 0}, "topology.spokes=0: must be at least 1"),
        ({"name": "wheel", "spoke": 1}, "topology.spoke: no such key; did you mean spokes"),
        ({"name": "by_weight"}, "topology.most: has no default; give it, topology.most=VALUE"),
        ({"name": "pieces"}, "topology._target_=choice_toys.pieces: not connected"),
        ({"name": "small"}, "topology._target_=choice_toys.small: made 3 nodes, there are 4"),
        ({"name": "number"}, "topology._target_=choice_toys.number: made int, must make a networkx.Graph"),
        ({"name": "Plain"}, "topology._target_=choice_toys.Plain: must be a function that makes a networkx.Graph"),
        ({"name": "TEN"}, "topology._target_=choice_toys.TEN: must be a function that makes a networkx.Graph"),
        ({"name": "none"}, "topology._target_=choice_toys.none: cannot import it"),
    ],
)
def test_what_is_wrong_with_a_graph_from_outside_is_one_line(toys: None, settings: dict, words: str) -> None:
    name = settings.pop("name")
    with pytest.raises(ConfigError, match=f"^{words}"):
        graphs.from_config(TopologyConfig(_target_=f"choice_toys.{name}", **settings), np.ones(4))


def test_a_decorated_function_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topologies, "TOPOLOGIES", dict(topologies.TOPOLOGIES))
    monkeypatch.setattr(topologies, "PROPOSED", [])

    @topologies.topology(proposed=True, slow="better")
    def chain(n: int, better: bool = True) -> nx.Graph:
        return nx.path_graph(n)

    assert topologies.TOPOLOGIES["chain"] is chain
    assert topologies.PROPOSED == ["chain"]
    assert chain.slow == "better"


def test_only_a_slow_graph_is_drawn_by_rank_0_alone() -> None:
    tailored = TopologyConfig(name="tailored")
    assert topologies.is_slow(tailored)
    assert topologies.as_drawn(tailored) == TopologyConfig(name="tailored", optimize=False)
    assert not topologies.is_slow(TopologyConfig(name="tailored", optimize=False))
    assert topologies.as_drawn(TopologyConfig()) == TopologyConfig()


def test_settings_of_other_graphs_are_ignored_and_unknown_ones_are_not() -> None:
    """Earlier versions wrote the settings of all graphs into config.yaml."""
    assert TopologyConfig(name="ring", radius=0.3, seed=2).values == {}
    with pytest.raises(ConfigError, match=r"topology.radios: no such key; it has no settings"):
        TopologyConfig(name="ring", radios=0.3)


def test_a_problem_from_outside_may_declare_settings(toys: None) -> None:
    config = ProblemConfig(_target_="choice_toys.Sized")
    config.check()
    assert config.values == {"width": 3}
    with pytest.raises(ConfigError, match=r"problem.width=0: must be at least 1"):
        ProblemConfig(_target_="choice_toys.Sized", width=0).check()


def test_a_target_is_imported_by_nobody_who_only_reads_a_config(toys: None) -> None:
    config = composed(["problem._target_=choice_toys.Sized", "algorithm._target_=choice_toys.Damped"])
    assert Config.from_dict(config.to_dict()) == config
    assert "choice_toys" not in sys.modules
