"""Run directories in every state: whatever can be read is read, the rest is said in words, and nothing raises."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dgt import cli
from dgt.commands.report import pages as command
from dgt.config import Config, TopologyConfig
from dgt.errors import ConfigError
from dgt.processes import output
from dgt.report.groups import NAMED, choices, differing, grouped
from dgt.report.html import page
from dgt.report.networks import graph_of
from dgt.report.verdict import objective, verdict
from dgt.runs.reader import read
from dgt.runs.run import FAILED, FINISHED, GOING_ON, SILENT, STOPPED
from dgt.runs.searching import search

LINES = [{"iteration": k, "loss": 10.0 / (k + 1), "grad_norm": 5.0 / (k + 1), "seconds": 0.1 * k} for k in (0, 3, 6)]


def crafted(path: Path, state: str = "finished", **config: object) -> Path:
    """A run directory as `dgt train` leaves it."""
    path.mkdir(parents=True)
    settings = Config(iterations=6).to_dict() | config
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    if state == "finished":
        (path / "summary.json").write_text(json.dumps({"iterations": 6, "nodes": 4, "final": LINES[-1]}))
    return path


def test_a_whole_run_is_read_without_a_remark(tmp_path: Path) -> None:
    run = read(crafted(tmp_path / "r"))
    assert run.records == LINES
    assert (run.state, run.notes, run.label) == (FINISHED, [], "A ring II")
    assert run.curve("loss")[-1] == (6, 10 / 7)


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r", "crashed")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 9, "lo')
    run = read(run_dir)
    assert run.records == LINES
    assert "the last line of metrics.jsonl is half-written: left out" in run.notes
    assert "iteration 6" in verdict([run]).headline


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("metrics.jsonl", '{"iteration": 0}\n!!\n[1]\n{"loss": 1}\n', "3 damaged lines in metrics.jsonl: left out"),
        ("summary.json", "{", "summary.json is damaged: left out"),
        ("network.json", '{"a": 1}', "network.json is damaged: left out"),
        ("config.yaml", "a: [", "config.yaml is damaged: left out"),
        ("config.yaml", "- 1\n- 2\n", "config.yaml is not a config: left out"),
        ("config.yaml", "day: 2020-13-45\n", "config.yaml is damaged: left out"),
        ("config.yaml", "a: &a [*a]\n", "config.yaml is damaged: left out"),
        ("config.yaml", "[" * 5000, "config.yaml is damaged: left out"),
        ("metrics.jsonl", '{"iteration": NaN}\n{"iteration": 0}\n', "1 damaged line in metrics.jsonl: left out"),
        ("events.jsonl", '{"iteration": Infinity}\n{"iteration": 0}\n', "1 damaged line in events.jsonl: left out"),
        (
            "metrics.jsonl",
            f'{{"iteration": 0, "loss": {10**400}}}\n',
            "loss is not a finite number in 1 of 1 evaluations, first at iteration 0",
        ),
        ("environment.json", "\x00\x01", "environment.json is damaged: left out"),
        ("metrics.jsonl", "", "metrics.jsonl has no complete line yet: nothing was measured so far"),
    ],
)
def test_damage_is_said_and_the_rest_is_shown(name: str, text: str, note: str, tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    (run_dir / name).write_text(text)
    run = read(run_dir)
    assert note in run.notes
    assert note in page([run])


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "network.json"])
def test_what_is_no_file_is_said_and_not_waited_for(name: str, tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    (run_dir / name).unlink(missing_ok=True)
    os.mkfifo(run_dir / name)
    run = read(run_dir)
    assert run.notes == [f"{name} cannot be read (not a file): left out"]
    assert verdict([run]).headline == {
        "metrics.jsonl": "Strategy II on ring with weights A finished, but its measurements are not here.",
        "config.yaml": "r: weighted gradient norm 0.7143 after 6 iterations.",
    }.get(name, "Strategy II on ring with weights A: weighted gradient norm 0.7143 after 6 iterations.")


def test_directories_of_somebody_else_are_passed_over() -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies below a private one
        Path(folder).chmod(0o755)
        crafted(Path(folder) / "r")
        (Path(folder) / "theirs").mkdir(mode=0)
        with nobody():
            assert [run.name for run in command.runs_in([folder])] == ["r"]
            with pytest.raises(ConfigError, match="theirs: may not be read"):
                command.runs_in([f"{folder}/theirs"])


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything: be somebody who may not."""
    own = os.getresuid()
    if 0 in own:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(*own)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    (run_dir / "config.yaml").unlink()
    (run_dir / "metrics.jsonl").unlink()
    run = read(run_dir)
    assert "no metrics.jsonl: nothing was measured, or it was not copied here" in run.notes
    assert "no config.yaml: what was chosen is known from the summary only" in run.notes
    assert "nothing was measured" in page([run])


@pytest.mark.parametrize(
    "network",
    [
        {"iteration": 0, "nodes": [0, 1], "weights": [1.0], "degrees": [1, 1]},
        {"iteration": 0, "nodes": [0, 1], "weights": [1.0, 1.0], "degrees": [1, 1], "edges": [[0, 7]]},
        {"iteration": 0, "nodes": [0, 1], "weights": [1.0, None], "degrees": [1, 1]},
        {"iteration": 0, "nodes": [0], "weights": [1.0], "degrees": [0], "edges": [3]},
        {"iteration": 0, "nodes": [0], "weights": [1.0], "degrees": [0], "edges": 3},
        {"iteration": 0, "nodes": [0], "weights": [1.0], "degrees": [0], "mixing": [{"x": 1.0}]},
        {"iteration": 0, "nodes": [[0]], "weights": [1.0], "degrees": [0]},
        {"iteration": 0, "nodes": [0], "weights": [1.0], "degrees": [0], "size": "x"},
        {"iteration": math.nan, "nodes": [0], "weights": [1.0], "degrees": [0]},
        17,
    ],
)
def test_a_network_that_does_not_fit_together_is_left_out(network: object, tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    (run_dir / "network.json").write_text(json.dumps([network]))
    assert read(run_dir).networks == []
    assert "not fit together" in page([read(run_dir)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "1: 2\nproblem: {name: p, 3: {4: 5}}\n"),
        ("config.yaml", "weights: null\ntopology: [tailored]\n"),
        ("summary.json", '{"final": {"iteration": "x"}}'),
        ("nodes.jsonl", '{"iteration": 0, "loss": [1.0, 2.0]}\n{"iteration": 3, "loss": 4.0}\n'),
        ("environment.json", '{"host": {"load": [NaN, 1e999]}}'),
    ],
)
def test_odd_files_that_can_be_read_are_shown(name: str, text: str, tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    (run_dir / name).write_text(text)
    run = read(run_dir)
    assert run.state == FINISHED
    assert "left out" not in " ".join(run.notes)
    assert '"iterations":[0,3,6]' in page([run])
    assert (graph_of(run) is None) == (name != "summary.json")  # the other one says 4 nodes, weights A are 16


def test_a_note_of_a_rank_with_the_wrong_kind_of_value_is_damaged(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r", "open")
    (run_dir / "failures" / "1").mkdir(parents=True)
    note = {"rank": 0, "kind": "TrainingError", "reason": "the disk is gone", "code": 1, "time": 5.0}
    for rank, wrong in enumerate([{}, {"time": "noon"}, {"time": None}, {"reason": 3}]):
        (run_dir / "failures" / "1" / f"rank-{rank}.json").write_text(json.dumps(note | {"rank": rank} | wrong))
    run = read(run_dir)
    assert [failure.rank for failure in run.failures] == [0]
    assert [note for note in run.notes if "damaged" in note] == [
        f"failures/1/rank-{rank}.json is damaged: left out" for rank in (1, 2, 3)
    ]
    assert "the disk is gone" in page([run])


def test_values_that_are_no_numbers_are_gaps_and_said(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    lines = ['{"iteration": 0, "loss": NaN}', '{"iteration": 3, "loss": Infinity}', '{"iteration": 6, "loss": 2.0}']
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read(run_dir)
    assert run.curve("loss") == [(6, 2.0)]
    assert "loss is not a finite number in 2 of 3 evaluations, first at iteration 0" in run.notes
    assert '"loss":[null,null,2.0]' in page([run])


def test_an_iteration_measured_again_counts_once(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "loss": 7.0}\n')
    assert [record["loss"] for record in read(run_dir).records] == [10.0, 7.0, 10 / 7]


def test_a_run_without_summary_is_going_on_or_was_ended(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r", "open")
    assert read(run_dir).state == GOING_ON
    for file in run_dir.iterdir():
        os.utime(file, (0, 0))
    assert read(run_dir).state == SILENT
    assert "no summary: the run was ended from outside, or crashed without a word" in read(run_dir).notes


def test_a_run_made_longer_has_not_finished(tmp_path: Path) -> None:
    assert read(crafted(tmp_path / "r", iterations=60)).state == GOING_ON


def test_a_stop_and_a_failure_count_for_the_start_they_happened_in(tmp_path: Path) -> None:
    run_dir = crafted(tmp_path / "r", "open")
    (run_dir / "environment.json").write_text('{"start": "2"}')
    (run_dir / "events.jsonl").write_text('{"iteration": 6, "event": "stopped", "start": "2", "words": "stopped"}\n')
    assert read(run_dir).state == STOPPED
    note = {"rank": 2, "kind": "TrainingError", "reason": "the disk is gone", "code": 1, "time": 5.0}
    (run_dir / "failures" / "3").mkdir(parents=True)
    (run_dir / "failures" / "3" / "rank-00002.json").write_text(json.dumps(note))
    (run_dir / "failures" / "3" / "rank-00001.json").write_text("{")
    run = read(run_dir)
    assert run.state == FAILED
    assert run.reason is not None
    assert run.reason.reason == "the disk is gone"
    assert "failures/3/rank-00001.json is damaged: left out" in run.notes
    (run_dir / "environment.json").write_text('{"start": "4"}')  # resumed since
    assert read(run_dir).state == GOING_ON


def test_runs_are_found_in_folders_and_named_once(tmp_path: Path) -> None:
    for name in ("sweep/0", "sweep/1", "other", "sweep/checkpoints/0", ".hidden"):
        crafted(tmp_path / name)
    (tmp_path / "comparison").mkdir()
    (tmp_path / "comparison" / "compare.csv").touch()
    runs, comparisons = search([tmp_path, tmp_path / "sweep" / "0", tmp_path / "other" / "metrics.jsonl"])
    assert [str(path.relative_to(tmp_path)) for path in runs] == ["other", "sweep/0", "sweep/1"]
    assert [path.name for path in comparisons] == ["comparison"]


def test_nothing_to_show_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        command.runs_in([str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="no run in there"):
        command.runs_in([str(tmp_path)])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: a file; give a run directory"):
        command.runs_in([str(tmp_path / "file")])
    with pytest.raises(ConfigError, match="which run"):
        command.parse(["out=x.html"])
    with pytest.raises(ConfigError, match=r"ot=x: no such setting"):
        command.parse(["a", "ot=x"])
    with pytest.raises(ConfigError, match="cannot write there"):
        command.write([str(crafted(tmp_path / "r"))], tmp_path / "r" / "config.yaml" / "page.html")


def test_different_problems_are_shown_and_not_compared(tmp_path: Path) -> None:
    runs = [read(crafted(tmp_path / name, problem={"name": name})) for name in ("least_squares", "text")]
    assert "different problems (least_squares, text): their values cannot be compared" in verdict(runs).headline
    assert "cannot be compared" in page(runs)


def test_different_weights_are_different_objectives(tmp_path: Path) -> None:
    runs = [read(crafted(tmp_path / name, weights={"name": name})) for name in "AB"]
    assert verdict(runs).headline.startswith("2 runs of 2 different objectives")


def test_keys_that_earlier_versions_did_not_write_are_at_their_defaults(tmp_path: Path) -> None:
    now = Config(topology=TopologyConfig(name="tailored", optimize=False), iterations=6).to_dict()
    before = {
        "weights": {key: value for key, value in now["weights"].items() if key not in ("spread", "seed")},
        "topology": {key: value for key, value in now["topology"].items() if key != "optimize"},
    }
    now["nodes"] = before["nodes"] = 16
    old, new = read(crafted(tmp_path / "old", **before)), read(crafted(tmp_path / "new", **now))
    assert objective(old) == objective(new)
    assert len(grouped([old, new])) == 1
    (_, drawn), (_, again) = graph_of(old), graph_of(new)
    swapped = graph_of(
        read(crafted(tmp_path / "swapped", **now | {"topology": {"name": "tailored", "optimize": True}}))
    )[1]
    assert set(drawn.edges) == set(again.edges) != set(swapped.edges)


def test_the_verdict_names_the_lower_run_and_doubts_what_noise_could_do(tmp_path: Path) -> None:
    def late(name: str, values: list[float]) -> Path:
        run_dir = crafted(tmp_path / name, strategy={"name": name}, iterations=5)
        lines = [{"iteration": k, "grad_norm": value} for k, value in enumerate(values)]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run_dir / "summary.json").write_text('{"iterations": 5}')
        return run_dir

    late("I", [9, 9, 9, 9, 2.0, 2.1])
    higher = late("II", [9, 9, 9, 9, 3.0, 3.15])
    assert (
        "in weighted gradient norm: +50.0% on ring (more than noise)"
        in verdict(command.runs_in([str(tmp_path)])).headline
    )
    shutil.rmtree(higher)
    clear = late("II", [9, 9, 9, 9, 1.0, 1.05])
    words = "Strategy II has a lower weighted gradient norm than Strategy I: by 50.0% on ring "
    assert verdict(command.runs_in([str(tmp_path)])).headline == f"{words}(more than noise)."
    crafted(tmp_path / "star", topology={"name": "star"}, iterations=6)
    found = verdict(command.runs_in([str(tmp_path)]))
    assert found.headline.startswith(
        "A star II, iterations 6 has the lowest weighted gradient norm, 0.7143: 30.3% below A ring II, "
    )
    shutil.rmtree(tmp_path / "star")
    (clear / "metrics.jsonl").write_text((tmp_path / "I" / "metrics.jsonl").read_text().replace("2.1", "2.05"))
    assert "within the noise" in verdict(command.runs_in([str(tmp_path)])).headline


def test_a_run_without_config_differs_in_one_thing_not_in_all(tmp_path: Path) -> None:
    known, unknown = read(crafted(tmp_path / "r")), read(crafted(tmp_path / "s"))
    unknown.config = {}
    assert differing([choices(known), choices(unknown)]) == [*NAMED, "settings"]
    assert differing([choices(unknown), choices(unknown)]) == []


@pytest.mark.heavy
def test_the_command_names_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = crafted(tmp_path / "r")
    cli.main(["report", str(run_dir), "--json"])
    written = [Path(name) for name in json.loads(capsys.readouterr().out)]
    assert written[0] == run_dir / "report.html"
    assert {"table.csv", "table.md"} <= {path.name for path in written}
    assert any(path.parent == run_dir / "figures" for path in written)
    assert all(path.exists() for path in written)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", str(tmp_path / "nowhere")])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_ctrl_c_ends_following_and_leaves_a_page_that_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = crafted(tmp_path / "r", "open")
    seen = []

    def interrupted(seconds: float) -> None:
        seen.append((run_dir / "report.html").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", interrupted)
    assert command.follow([str(run_dir)]) is False
    assert '"live":true' in seen[0]
    assert '"live":false' in (run_dir / "report.html").read_text()


@pytest.mark.parametrize("measured", [True, False])
def test_following_ends_with_words_when_a_run_falls_silent(
    measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = crafted(tmp_path / "r", "open")
    if not measured:
        (run_dir / "metrics.jsonl").write_text("")
    for file in run_dir.iterdir():
        os.utime(file, (0, 0))
    clock = iter(range(0, 10_000, 50))  # about to start, for all we know: waited for as long as it may be silent
    naps: list[float] = []
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(command.time, "sleep", naps.append)
    output.log_to_stderr(is_main=True)
    assert command.follow([str(run_dir)]) is True
    assert len(naps) == (0 if measured else 2)
    assert "dgt: r: no line for 2 minutes or more, and no reason: no longer followed\n" in capsys.readouterr().err
    assert '"live":false' in (run_dir / "report.html").read_text()
