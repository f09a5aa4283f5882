import dataclasses

import pytest

from dgt.config import Config
from dgt.errors import ConfigError


def test_defaults_are_the_papers_settings() -> None:
    config = Config()
    assert (config.laziness, config.lr, config.iterations, config.eval_every) == (0.3, 0.02, 300, 3)
    problem = config.problem
    assert (problem.dimension, problem.noise, problem.offset, problem.regularization) == (10, 1.0, 3.0, 0.01)
    assert (problem.curvature_min, problem.curvature_max) == (5.5, 12.5)


def test_a_config_survives_the_round_trip_through_plain_values() -> None:
    config = dataclasses.replace(Config(), lr=0.5, nodes=4)
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 0}, "lr=0.0: must be above 0"),
        ({"lr": "fast"}, "lr=fast: must be a number"),
        ({"lr": float("nan")}, "lr=nan: must be finite and above 0"),
        ({"laziness": 1}, "laziness=1.0: must be above 0 and below 1"),
        ({"iterations": 1.5}, "iterations=1.5: must be a whole number"),
        ({"iterations": -1}, "iterations=-1: must be at least 0"),
        ({"iterations": True}, "iterations=True: must be a whole number"),
        ({"overlap": "maybe"}, "overlap=maybe: must be true or false"),
        ({"backend": "glo"}, "backend=glo: did you mean gloo"),
        ({"timeout": 1e300}, r"timeout=1e\+300: must be above 0 and at most"),
        ({"seeds": "two"}, "seeds=two: must be a count above 0 or a list"),
        ({"run_dir": ""}, "run_dir=: must not be empty"),
        ({"nodes": 0}, "nodes=0: must be at least 1"),
        ({"strategy": {"name": "2"}}, "strategy=2: .*allowed: I, II"),
        ({"topology": {"name": "rings"}}, "topology=rings: did you mean ring"),
        ({"topology": {"name": "tailored", "avg_degree": 0.5}}, "topology.avg_degree=0.5"),
        ({"topology": {"name": "file"}}, "topology.path=FILE"),
        ({"weights": {"name": "list"}}, r"weights=\[1,2,3\]"),
        ({"weights": {"name": "list", "values": "x"}}, "weights.values=x: expected a list"),
        ({"problem": {"dimensions": 3}}, "problem.dimensions: no such key; did you mean dimension"),
        ({"problem": {"curvature_min": 9, "curvature_max": 8}}, "curvature_max=8.0: must be at least 9"),
        ({"learning_rate": 3}, "learning_rate: no such key"),
        ({"problem": 3}, "problem=3: expected a group"),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(values: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config.from_dict(values)
