import pytest

from dgt.compose import compose, conf_dir, expand, groups
from dgt.config import Config, ConfigError

FILES = [(group, choice) for group, choices in groups().items() for choice in choices]


def test_the_files_compose_to_the_dataclass_defaults() -> None:
    assert compose([]) == Config()


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_every_file_in_conf_composes(group: str, choice: str) -> None:
    needed = {"file": [f"{group}.path=x"], "list": [f"{group}.values=[1,2]"]}.get(choice, [])
    config = compose([f"{group}={choice}", *needed])
    assert getattr(config, group).name == choice


def test_conf_has_all_groups() -> None:
    assert set(groups()) == {"strategy", "topology", "weights", "problem", "algorithm", "logger"}
    assert (conf_dir() / "config.yaml").is_file()


def test_weights_take_a_list_or_a_file_directly() -> None:
    assert compose(["weights=[1,2.5,3]"]).weights.values == [1.0, 2.5, 3.0]
    assert compose(["weights=some/where.txt"]).weights.path == "some/where.txt"


def test_settings_of_a_group_reach_the_config() -> None:
    config = compose(["topology=tailored", "topology.avg_degree=6", "problem.noise=0", "lr=0.1"])
    assert (config.topology.avg_degree, config.problem.noise, config.lr) == (6.0, 0.0, 0.1)


def test_sweeps_expand_to_the_product() -> None:
    runs = expand(["strategy=I,II", "topology=ring,grid", "lr=0.1"])
    assert len(runs) == 4
    assert [compose(run).strategy.name for run in runs].count("I") == 2
    assert len(expand(["seed=range(0,3)"])) == 3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["topology=rnig"], "topology=rnig: did you mean ring"),
        (["strategy=III"], "strategy=III: .*allowed: I, II"),
        (["topolgy=ring"], "topolgy: no such key; did you mean topology"),
        (["lrr=0.1"], "lrr: no such key; did you mean lr"),
        (["topology.avg_degree=5"], "topology=ring has no such key"),
        (["topology=tailored", "topology.avgdegree=5"], "did you mean topology.avg_degree"),
        (["problem.nosie=0"], "did you mean problem.noise"),
        (["lr=abc"], "lr=abc: must be a number"),
        (["ring"], "ring: overrides look like key=value"),
        (["lr=0.1,0.2"], "add -m"),
        (["weights=[1,x]"], "weights.values=x: must be a number"),
        (["lr={"], "cannot read"),
        (["topology=file"], "topology.path=FILE"),
        (["+new=3"], "new: no such key"),
        (["nodes=two"], "nodes=two: must be a whole number"),
    ],
)
def test_typos_name_the_nearest_choices(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)
