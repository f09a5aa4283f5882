"""`dgt plan` from overrides to the words that train its recommendation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dgt.commands.doctor import examination
from dgt.commands.plan import planning
from dgt.commands.plan import words as report
from dgt.commands.plan.answer import as_dict
from dgt.config import Config
from dgt.config.compose import compose, search_override
from dgt.config.fragment import fragment, overrides_of, write
from dgt.errors import ConfigError
from dgt.network.topologies import PROPOSED

QUICK = ["iterations=60", "seeds=2"]
GT = "algorithm=gradient_tracking"


def planned(*overrides: str) -> dict:
    answer = as_dict(planning.plan([*overrides, *QUICK]))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    return answer


def test_every_graph_with_every_algorithm_and_both_strategies_the_better_ones_first() -> None:
    answer = planned("weights=A")
    static = {name for name in PROPOSED if name != "one_peer"}
    pairs = {("gradient_tracking", name) for name in PROPOSED} | {("exact_diffusion", name) for name in static}
    assert len(answer["rows"]) == 2 * len(pairs) == 26
    first, last = answer["rows"][:13], answer["rows"][13:]
    assert {(row["algorithm"], row["topology"]) for row in first} == pairs, "exact diffusion is refused on schedules"
    for row in first:
        other = next(other for other in last if is_same(other, row))
        assert row["strategy"] != other["strategy"]
        assert row["error"] <= other["error"]
    best = answer["recommendation"]
    assert (best["strategy"], best["topology"]) == (first[0]["strategy"], first[0]["topology"])
    assert report.reason(answer).startswith(f"Strategy {best['strategy']} on {best['topology']}, {best['algorithm']}: ")
    words = report.text(answer)
    assert "\ndgt train weights=A topology=" in words
    assert all(name in words for name in PROPOSED)
    assert "13 more candidates with --json" in words
    assert not answer["left_out"], "what nobody asked for is no news"


def is_same(one: dict, other: dict) -> bool:
    return all(one[key] == other[key] for key in ("topology", "algorithm", "wire", "local_steps"))


def test_equal_weights_are_said_to_leave_the_strategy_open() -> None:
    answer = planned("weights=uniform", "nodes=9", "topology=ring,one_peer,grid")
    assert answer["recommendation"]["either"]
    assert all(choice["either"] for choice in answer["choices"])
    assert report.reason(answer).startswith("Either strategy on ")
    assert "both strategies are the same algorithm" in report.reason(answer)


def test_a_budget_leaves_out_what_costs_more_and_tailored_graphs_are_made_to_fit() -> None:
    answer = planned("weights=D", "budget.degree=10", GT)
    assert max(row["degree"] for row in answer["rows"]) <= 10
    assert "tailored" in {row["topology"] for row in answer["rows"]}
    assert answer["left_out"]["exponential"] == "11 neighbours, 10 allowed"
    tailored = planning.plan(["weights=D", "budget.degree=10", "topology=tailored", GT, *QUICK]).best
    assert tailored.config.topology.avg_degree is not None
    assert planned(*overrides_of(tailored.config))["rows"][0]["degree"] == tailored.candidate.degree
    # z and y, 10 numbers of 8 bytes, to each neighbour
    by_bytes = planned("weights=A", "budget.bytes=640", GT)
    assert max(row["bytes"] for row in by_bytes["rows"]) == 640
    assert {row["degree"] for row in by_bytes["rows"]} <= {2, 3, 4}


def test_a_budget_of_bytes_leaves_denser_graphs_to_the_algorithm_that_sends_half() -> None:
    answer = planned("weights=A", "budget.bytes=320", "topology=ring,torus,exponential")
    assert {(row["algorithm"], row["topology"]) for row in answer["rows"]} == {
        ("gradient_tracking", "ring"),
        ("exact_diffusion", "ring"),
        ("exact_diffusion", "torus"),
    }
    assert answer["left_out"] == {
        "exponential": "7 neighbours, 2 allowed",
        "gradient_tracking on torus": "4 neighbours, 2 allowed",
    }


def test_with_a_bandwidth_the_time_decides() -> None:
    model = ["weights=A", "parameters=11000000", "dtype=float32", "latency=50", "compute=100", "iterations=120"]
    model += [GT, "wire=full", "local_steps=1"]
    slow = planned(*model, "bandwidth=0.1", "topology=torus,complete")
    assert slow["ranked_by"] == "time"
    best, other = slow["rows"][:2]
    assert (best["topology"], best["degree"], other["topology"]) == ("torus", 4, "complete")
    # z to four neighbours, then y, which takes longer than the gradient
    assert best["iteration_seconds"] == pytest.approx(2 * (50e-6 + 4 * 44e6 / 0.1e9))
    assert best["seconds"] == pytest.approx(best["iterations"] * best["iteration_seconds"])
    quick = planned(*model, "bandwidth=1e9", "topology=torus,complete")
    assert quick["rows"][0]["iteration_seconds"] == pytest.approx(0.1 + 50e-6, rel=1e-3)
    assert "GB/s per node" in report.text(slow)


def test_where_time_counts_the_strategy_is_the_one_that_gets_there_sooner() -> None:
    """Once it was the one with the lower error in the end, though it took twice as long, or never got there."""
    longer = ["weights=A", "topology=grid,ring", "bandwidth=1", "compute=20", "iterations=200", "seeds=2"]
    longer += [GT, "wire=full", "local_steps=1"]
    answer = as_dict(planning.plan(longer))
    first, second = answer["rows"][0], next(row for row in answer["rows"] if row["strategy"] == "II")
    assert (first["strategy"], first["topology"], second["topology"]) == ("I", "grid", "grid")
    assert first["seconds"] < second["seconds"]
    assert first["error"] > second["error"]
    assert "Strategy II takes" in report.reason(answer)
    assert "lower" in report.reason(answer)
    assert all(row["strategy"] == "I" for row in answer["rows"][:2]), "Strategy II never gets there on the ring"


def test_measured_figures_take_the_place_of_stated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = examination.Talk((0, 1), "messages", latency=80e-6, bandwidth=4 * 4_000_000 / 2e9)
    monkeypatch.setattr(examination, "measured", lambda way: talk)
    answer = planned("weights=A", "measure=true", "topology=ring")
    assert (answer["latency"], answer["bandwidth"]) == (pytest.approx(80), pytest.approx(2.0))


def test_settings_of_a_graph_go_to_the_graphs_that_have_them() -> None:
    answer = planned("weights=A", "topology=ring,tailored", "topology.avg_degree=6", GT)
    assert {row["topology"]: row["mean_degree"] for row in answer["rows"]} == {"ring": 2.0, "tailored": 6.0}


def test_several_values_of_a_graphs_setting_are_several_graphs(tmp_path: Path) -> None:
    (tmp_path / "path.txt").write_text("0 1\n1 2\n2 3\n")
    (tmp_path / "ring.txt").write_text("0 1\n1 2\n2 3\n3 0\n")
    files = [tmp_path / "path.txt", tmp_path / "ring.txt"]
    answer = planned("weights=[1,2,3,4]", "topology=file,star", f"topology.path={files[0]},{files[1]}", GT)
    names = [*(f"file path={file}" for file in files), "star"]
    assert sorted(row["topology"] for row in answer["rows"]) == sorted(2 * names)
    assert sorted(choice["topology"] for choice in answer["choices"]) == sorted(names)
    assert answer["recommendation"]["topology"] == names[1]
    assert compose(answer["overrides"]).topology.path == str(files[1])


def test_a_strategy_that_is_given_is_taken() -> None:
    answer = planned("weights=A", "strategy=I", "topology=ring,grid", GT)
    assert [row["strategy"] for row in answer["rows"]] == ["I", "I"]
    assert not answer["choices"]


def test_other_problems_are_planned_on_least_squares() -> None:
    answer = planned("weights=A", "problem=cifar10", "topology=ring", GT)
    assert answer["rows"][0]["bytes"] == 2 * 2 * 4 * 11_173_962
    assert answer["overrides"][:4] == ["weights=A", "topology=ring", "strategy=II", "problem=cifar10"]
    assert "standing in for cifar10" in report.text(answer)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["budget.degree=1"], r"budget.degree=1: no graph fits \(ring: 2 neighbours, 1 allowed; "),
        (["budget.bytes=100"], r"budget.bytes=100: no graph fits \(ring: 2 neighbours, 0 allowed; "),
        (["budget.degre=3"], "budget.degre: no such key; did you mean degree"),
        (["bandwith=3"], "bandwith: no such key; did you mean bandwidth"),
        (["lrr=3"], "lrr: no such key; did you mean lr"),
        (["budget=3"], "budget=3: expected a group of keys"),
        (["budget.degree=0"], "budget.degree=0: must be at least 1"),
        (["accuracy=2"], "accuracy=2.0: must be above 0 and below 1"),
        (["bandwidth=-1"], "bandwidth=-1.0: must be above 0"),
        (["bandwidth=1", "measure=true"], "measure=true: bandwidth=1 is given"),
        (["latency=50", "measure=true"], "measure=true: latency=50 is given"),
        (["latency=50"], "latency=50: times need bandwidth=GB/s too, or measure=true"),
        (["topology.radius=0.5,0.6"], "topology.radius: .* no such key"),
        (["parameters=many"], "parameters=many: must be a whole number"),
        (["lr=5"], r"lr=5: too large for every graph and strategy here; at most 0.\d+ \(Strategy II on "),
        (["lr=0.01,0.02"], "lr: dgt plan varies topology, algorithm .*; give one lr"),
        (["algorithm=allreduce"], "algorithm=allreduce: dgt plan predicts dsgd, exact_diffusion, gradient_tracking; "),
        (["algorithm=none"], "algorithm=none: "),
        (["algorithm.form=both"], "algorithm.form=both: "),
        (["algorithm.moment=0.9"], "algorithm.moment: .*no such key"),
        (["algorithm.base=adamw"], "algorithm.base=adamw: dgt plan predicts gradient tracking, with momentum or "),
        (["algorithm=exact_diffusion", "topology=one_peer"], "ExactDiffusion: needs the same neighbours at every "),
        (["wire=int8", "topology=one_peer"], "wire=int8: not on a schedule, whose partners change"),
        (["wire=full,int7"], "wire=int7: "),
        (["local_steps=0"], "local_steps=0: must be at least 1"),
        (["local_steps=1,0"], "local_steps=0: must be at least 1"),
        (["local_steps=1,many"], "local_steps=many: must be a whole number"),
        (["algorithm=exact_diffusion", "algorithm.form=extra", "strategy=I"], "form=extra: not with Strategy I"),
        (["algorithm=exact_diffusion", "laziness=0.3", "topology=ring", "strategy=I"], "laziness: W_ii=0.3 on node 0"),
        (["topology.radius=0.5"], "topology.radius: .* no such key"),
        (["weights=[1]"], "a network of one node has nothing to choose"),
        (["iterations=0"], "iterations=0: dgt plan needs at least 1"),
    ],
)
def test_bad_input_is_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        planning.plan([*(["weights=A"] if "weights=[1]" not in overrides else []), *overrides])
    assert "\n" not in str(caught.value)


def test_a_graph_in_pieces_is_named(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n2 3\n")
    with pytest.raises(ConfigError, match=r"not connected \(2 pieces of 4 nodes\)"):
        planning.plan(["weights=[1,2,3,4]", "topology=file", f"topology.path={tmp_path / 'edges.txt'}"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["weights=A", "topology=tailored", "topology.avg_degree=6", "strategy=I"],
        ["weights=[1,2.5,3]", "topology=ring", "lr=0.01", "problem.noise=0", "crc=true"],
        ["weights=it's there.txt", "topology=file", "topology.path='a b/edges, all.txt'"],
        ["weights=lognormal", "weights.spread=0.5", "nodes=12", "seeds=[3,4]", "wire=bfloat16"],
        ["problem=cifar10", "problem.model=cnn", "weights=B", "logger=tensorboard", "checkpoint.every=5"],
        ["experiment=cifar10_cpu", "strategy=II"],
        ["problem=custom", "problem._target_=a.B", "problem.width=3", "weights=A"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_the_words_and_the_file_make_the_same_config(overrides: list[str], tmp_path: Path) -> None:
    config = compose(overrides)
    assert compose(overrides_of(config)) == config
    assert write(config, str(tmp_path / "mine")) == tmp_path / "mine" / "experiment" / "plan.yaml"
    assert compose([search_override(tmp_path / "mine"), "experiment=plan"]) == config
    assert fragment(config).startswith("# @package _global_\n")


def test_a_shell_reads_the_words_as_they_are_meant() -> None:
    answer = planned("weights=[1,2,3]", "topology=ring", GT)
    line = next(line for line in report.text(answer).splitlines() if line.startswith("dgt train"))
    assert shlex.split(line)[2:] == answer["overrides"]
    assert compose(shlex.split(line)[2:]).weights.values == [1.0, 2.0, 3.0]
    assert shlex.split(report.text(answer, "my plans"))[-4:] == ["train", "--config-dir", "my plans", "experiment=plan"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"write=.*file: cannot write there"):
        write(Config(), str(tmp_path / "file"))


def test_several_algorithms_wires_and_local_steps_are_compared() -> None:
    """What the library does not take is not proposed, and said where it was asked for."""
    answer = planned(
        "weights=A", "algorithm=gradient_tracking,exact_diffusion", "topology=ring,one_peer", "parameters=100000",
        "wire=full,int8", "local_steps=1,2", "algorithm.momentum=0,0.9", "strategy=II",
    )  # fmt: skip
    cells = {(row["algorithm"], row["topology"], row["wire"], row["local_steps"]) for row in answer["rows"]}
    assert len(cells) == len(answer["rows"]) == 2 * (2 * 2 * 2) + 2 * 2, "one_peer with wire=full only"
    assert all(wire == "full" for _, topology, wire, _ in cells if topology == "one_peer")
    assert not any(algorithm.startswith("exact") for algorithm, topology, *_ in cells if topology == "one_peer")
    assert set(answer["left_out"]) == {"exact_diffusion on one_peer", "gradient_tracking on one_peer"}
    full, narrow = (row_of(answer, wire=wire, local_steps=1, topology="ring") for wire in ("full", "int8"))
    assert (full["error"], full["contraction"]) == (narrow["error"], narrow["contraction"])
    assert (full["bytes"], narrow["bytes"]) == (2 * 2 * 800_000, 2 * 2 * 103_224)
    assert row_of(answer, wire="full", local_steps=2, topology="ring")["bytes"] == full["bytes"] / 2
    assert row_of(answer, wire="full", local_steps=1, topology="one_peer")["bytes"] == full["bytes"] / 2
    assert "A narrow wire is taken to leave the gradient norm as it is" in report.text(answer)


def row_of(answer: dict, **wanted: object) -> dict:
    """The first of gradient tracking without momentum."""
    wanted |= {"momentum": 0, "algorithm": "gradient_tracking momentum=0"}
    return next(row for row in answer["rows"] if all(row[key] == value for key, value in wanted.items()))


MODEL = ["parameters=11000000", "dtype=float32", "bandwidth=0.125", "latency=500", "compute=100"]


def test_with_a_link_exchanges_and_wires_are_varied_and_ddp_stands_beside() -> None:
    answer = planned("weights=A", "topology=ring,one_peer", "strategy=II", *MODEL)
    assert {(row["wire"], row["local_steps"]) for row in answer["rows"]} == {
        ("full", 1), ("full", 4), ("int8", 1), ("int8", 4),
    }  # fmt: skip
    rows = {
        (r["algorithm"], r["topology"], r["wire"], r["local_steps"]): r["iteration_seconds"] for r in answer["rows"]
    }
    model = 44e6 / 0.125e9
    assert rows["exact_diffusion", "ring", "full", 1] == pytest.approx(0.1 + 0.0005 + 2 * model)
    assert rows["gradient_tracking", "ring", "full", 1] == pytest.approx(2 * (0.0005 + 2 * model))
    assert rows["gradient_tracking", "one_peer", "full", 1] == pytest.approx(2 * (0.0005 + model))
    assert rows["exact_diffusion", "ring", "full", 4] == pytest.approx(0.1 + (0.0005 + 2 * model) / 4)
    ddp = answer["ddp"]
    assert ddp["bytes"] == pytest.approx(2 * 15 / 16 * 44e6, rel=1e-6)
    assert ddp["iteration_seconds"] == pytest.approx(2 * 15 * 0.0005 + 2 * 15 / 16 * model)
    assert ddp["seconds"] == pytest.approx(ddp["iterations"] * ddp["iteration_seconds"])
    best = answer["rows"][0]
    assert best["seconds"] == min(row["seconds"] for row in answer["rows"] if row["seconds"])
    config = compose(answer["overrides"])
    assert (config.wire, config.local_steps) == (best["wire"], best["local_steps"])
    assert (config.algorithm.name, config.topology.name) == (best["algorithm"], best["topology"])
    assert "DDP would take " in report.reason(answer)
    assert "\n          DDP " in report.text(answer)


def test_on_a_quick_link_ddp_is_said_to_be_quicker() -> None:
    slow = ["parameters=11000000", "dtype=float32", "bandwidth=10", "compute=1", "topology=ring", GT, "strategy=I"]
    words = report.reason(planned("weights=A", *slow, "wire=full", "local_steps=1", "accuracy=0.2"))
    assert "and is the quicker one here" in words


def test_a_narrow_wire_that_saves_nothing_is_not_proposed() -> None:
    """128 numbers are sent at least: of ten numbers int8 makes more bytes, not fewer."""
    answer = planned("weights=A", "topology=ring", "bandwidth=1", GT, "strategy=II")
    assert {row["wire"] for row in answer["rows"]} == {"full"}


def test_extra_is_for_strategy_two_and_travels_during_the_gradient() -> None:
    ed = ["algorithm=exact_diffusion", "algorithm.form=diffusion,extra", "topology=ring", "wire=full", "local_steps=1"]
    answer = planned("weights=A", *ed, *MODEL)
    rows = {(row["algorithm"], row["strategy"]): row for row in answer["rows"]}
    assert set(rows) == {
        ("exact_diffusion form=diffusion", "I"),
        ("exact_diffusion form=diffusion", "II"),
        ("exact_diffusion form=extra", "II"),
    }
    diffusion, extra = (rows[f"exact_diffusion form={form}", "II"] for form in ("diffusion", "extra"))
    assert extra["iteration_seconds"] == pytest.approx(diffusion["iteration_seconds"] - 0.1)
    assert 0.6 < extra["lr_stable"] / diffusion["lr_stable"] < 0.75


def test_where_the_usual_step_is_too_large_half_of_what_is_stable_is_taken() -> None:
    """lambda of .2 to 19: Strategy I bears a tenth of what II does. The command has the step that was predicted."""
    uneven = [f"weights=[{'0.1,' * 23}8]", "topology=ring", GT]
    answer = planned(*uneven, "strategy=I")
    (row,) = answer["rows"]
    assert row["lr"] == pytest.approx(row["lr_stable"] / 2, rel=0.05)
    assert compose(answer["overrides"]).lr == row["lr"]
    both = planned(*uneven)
    first, second = both["rows"]
    assert (first["strategy"], first["reduced"], first["lr"]) == ("II", False, 0.02)
    assert (second["strategy"], second["reduced"], second["lr"]) == ("I", True, row["lr"])
    assert "half of what is stable is taken" in report.text(both)
    given = planned(*uneven, "lr=0.02")
    assert [(row["strategy"], row["lr"], row["reduced"]) for row in given["rows"]] == [
        ("II", 0.02, False), ("I", 0.02, False),
    ]  # fmt: skip
    assert not given["rows"][1]["stable"]


def test_dsgd_can_be_compared_and_is_not_recommended_for_a_gradient_norm_that_does_not_show_its_bias() -> None:
    answer = planned("weights=[4,1,2,1]", "topology=ring", "algorithm=dsgd,gradient_tracking", "strategy=II")
    tracking, dsgd = answer["rows"]
    assert (tracking["algorithm"], dsgd["algorithm"]) == ("gradient_tracking", "dsgd")
    assert dsgd["consensus"] > 5 * tracking["consensus"]
    assert "dsgd does not settle at the optimum" in report.text(answer)
