from pathlib import Path

import pytest

from dgt.config import Config, ProblemConfig
from dgt.config.compose import compose, conf_dir, expand, groups, search_override
from dgt.config.compose import swept as swept_in
from dgt.errors import ConfigError

FILES = [(group, choice) for group, choices in groups().items() for choice in choices]


def test_the_files_compose_to_the_dataclass_defaults() -> None:
    assert compose([]) == Config()


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_every_file_in_conf_composes(group: str, choice: str) -> None:
    needed = {
        "file": [f"{group}.path=x"],
        "list": [f"{group}.values=[1,2]"],
        "custom": [f"{group}._target_=a.B", f"{group}.name=custom"],
    }
    config = compose([f"{group}={choice}", *needed.get(choice, [])])
    assert group == "experiment" or getattr(config, group).name == {"auto": "A"}.get(choice, choice)
    assert Config.from_dict(config.to_dict()) == config


def test_experiments_are_the_papers() -> None:
    for name, weights in (("a", "A"), ("b", "B"), ("c", "C")):
        config = compose([f"experiment=cifar10_{name}"])
        assert (config.weights.name, config.seeds, config.eval_every) == (weights, list(range(6)), 30)
        assert config.problem == ProblemConfig(
            name="cifar10", model="resnet18", batch=128, weight_decay=5e-4, norm="batch"
        )
    assert compose(["experiment=cifar10_cpu", "topology=tailored", "problem.batch=8"]).problem.batch == 8


def test_a_folder_of_ones_own_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "problem").mkdir()
    (tmp_path / "problem" / "mine.yaml").write_text("_target_: my.Problem\nwidth: 3\n")
    mine = [search_override(tmp_path), "problem=mine"]
    config = compose([*mine, "problem.depth=2", "problem.width=5"])
    assert config.problem == ProblemConfig(name="Problem", _target_="my.Problem", width=5, depth=2)
    assert [compose(run).lr for run in expand([*mine, "lr=0.1,0.2"])] == [0.1, 0.2]
    with pytest.raises(ConfigError, match="problem=mien: did you mean mine"):
        compose([search_override(tmp_path), "problem=mien"])
    (tmp_path / "problem" / "broken.yaml").write_text("width: 3\nsizes: [1,\n")
    with pytest.raises(ConfigError, match=r"broken.yaml, line 3: not YAML"):
        compose([search_override(tmp_path), "problem=broken"])
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        compose([search_override(tmp_path / "nowhere")])


def test_conf_has_all_groups() -> None:
    assert set(groups()) == {
        "strategy", "topology", "weights", "problem", "algorithm", "schedule", "logger", "chaos", "experiment",
    }  # fmt: skip
    assert (conf_dir() / "config.yaml").is_file()


def test_weights_take_a_list_or_a_file_directly() -> None:
    assert compose(["weights=[1,2.5,3]"]).weights.values == [1.0, 2.5, 3.0]
    assert compose(["weights=some/where.txt"]).weights.path == "some/where.txt"
    assert compose(["weights=it's.txt"]).weights.path == "it's.txt"


def test_nodes_without_weights_have_uniform_ones(tmp_path: Path) -> None:
    """`nodes=4` was refused, as the default weights are those of 16 nodes."""
    assert compose([]).weights.name == "A"
    assert [compose(run).weights.name for run in expand(["nodes=4,8"])] == ["uniform", "uniform"]
    assert compose(["nodes=16", "weights=A"]).weights.name == "A"
    assert compose(["nodes=16", "experiment=cifar10_cpu"]).weights.name == "A", "the experiment names them"


def test_what_is_swept_is_known_run_by_run() -> None:
    words = ["strategy=I,II", "iterations=9", "lr=0.1,0.2", "weights=[1,2],[3,4]"]
    runs, swept = expand(words), swept_in(words)
    assert [f"lr={named['lr']}" in run for run, named in zip(runs, swept, strict=True)] == [True] * 8
    assert swept[0] == {"strategy": "I", "lr": "0.1", "weights.values": "[1,2]"}
    assert swept_in(["lr=0.1"]) == [{}]


def test_lr_is_the_problems_own_unless_it_is_given() -> None:
    assert [compose([f"problem={name}"]).lr for name in ("least_squares", "text", "cifar10")] == [0.02, 0.3, 0.1]
    assert compose(["problem=text", "lr=0.5"]).lr == compose(["experiment=text", "lr=0.5"]).lr == 0.5
    assert compose(["experiment=text", "lr=null"]).to_dict()["lr"] == 0.003  # with AdamW
    assert compose(["problem=text", "lr=null"]).lr == 0.3
    assert compose(["problem=text", "algorithm.momentum=0.9"]).lr == 0.03
    config = compose(["problem._target_=tests.distributed.problems.Noisy"])
    assert Config.from_dict(config.to_dict()) == config
    config.check_targets()
    assert config.lr == 0.02


def test_epochs_are_in_place_of_iterations(tmp_path: Path) -> None:
    assert compose(["problem=text", "epochs=3"]).epochs == 3
    with pytest.raises(ConfigError, match="iterations=9: epochs=3 says how many; give one of them"):
        compose(["problem=text", "epochs=3", "iterations=9"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\n# mine\nepochs: 4\n")
    mine = [search_override(tmp_path), "experiment=mine"]
    assert compose(mine).epochs == 4
    assert (compose([*mine, "iterations=9"]).epochs, compose([*mine, "iterations=9"]).iterations) == (None, 9)


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
        (["lr=0.1,0.2"], "lr=0.1,0.2: .* give one, or use dgt train -m"),
        (["weights=[1,x]"], "weights.values=x: must be a number"),
        (["nodes=3", "lr={"], "^lr={: cannot read"),
        (["topology.name=star"], "topology.name=star: choose with topology=NAME; did you mean star"),
        (["topology=file"], "topology.path=FILE"),
        (["+new=3"], "new: no such key"),
        (["nodes=two"], "nodes=two: must be a whole number"),
    ],
)
def test_typos_name_the_nearest_choices(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)
