"""Sweeps on Slurm, as far as one can go without: settings, mistakes, what the waiting process makes of the queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dgt.cli import main
from dgt.config import compose
from dgt.errors import ConfigError
from dgt.launching import sweeps
from dgt.processes import output

SLURM = "hydra/launcher=slurm"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Shell scripts in place of Slurm's commands; nothing else is on the PATH."""
    output.log_to_stderr(is_main=True)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (["hydra/launcher=slrum"], "hydra/launcher=slrum: did you mean slurm"),
        (["hydra.launcher.partition=main"], "hydra.launcher.partition: .* add hydra/launcher=slurm"),
        ([SLURM, "hydra.launcher.partion=main"], "no such key; did you mean hydra.launcher.partition"),
        ([SLURM, "hydra.launcher.timeout_min=soon"], "timeout_min=soon: Value 'soon' .* could not be converted"),
        ([SLURM, "hydra.launcher.timeout_min=2"], "timeout_min=2: no time to train, as ranks stop 120 s before"),
        ([SLURM, "hydra.launcher.partition=a,b"], "quote a comma, hydra.launcher.partition='a,b'"),
        ([SLURM, "hydra.launcher.tasks_per_node=2"], "tasks_per_node=2: must be 1, as one task starts all ranks"),
        ([SLURM, "hydra.launcher.nodes=2"], "nodes=2: must be 1"),
    ],
)
def test_wrong_launcher_settings_are_named(programs, launcher: list[str], words: str) -> None:
    programs("sbatch", "exit 1")
    with pytest.raises(ConfigError, match=words) as caught:
        sweeps.checked(launcher, multirun=True)
    assert "\n" not in str(caught.value)


def test_other_settings_of_hydra_are_refused() -> None:
    for override in ("hydra.run.dir=x", "hydra/sweeper=basic", "hydra.launcher=3", "+hydra.job.name=x"):
        with pytest.raises(ConfigError, match=r"dgt sets this itself; .* it takes hydra/launcher=slurm and"):
            sweeps.split([override])
    assert sweeps.split(["hydra.searchpath=/x", "lr=1"]) == (["hydra.searchpath=/x", "lr=1"], [])


def test_what_is_missing_is_named(programs, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="hydra/launcher=slurm: makes every run of a sweep a job; add -m"):
        sweeps.checked([SLURM], multirun=False)
    with pytest.raises(ConfigError, match="hydra/launcher=slurm: no sbatch on the PATH"):
        sweeps.checked([SLURM], multirun=True)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"hydra/launcher=slurm: not installed; pip install 'dgt\[slurm\]'"):
        sweeps.checked([SLURM], multirun=True)


def test_every_mistake_is_told_before_a_job_is_submitted(
    programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs("sbatch", f"echo > {tmp_path}/submitted; exit 1")
    programs("srun", "exit 1")
    for overrides, words in (
        (["lr=0.02,fast"], "lr=fast: must be a number"),
        (["weights=[1,2]", "run_dir=a,b"], "run_dir: a sweep has one"),
        (["problem=custom", "problem._target_=nowhere.Problem"], "problem._target_=nowhere.Problem: cannot import it"),
    ):
        with pytest.raises(SystemExit) as leaving:
            main(["train", "-m", SLURM, "strategy=I,II", *overrides])
        assert leaving.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("dgt: error: ")
        assert words in line
    assert not (tmp_path / "submitted").exists()
    with pytest.raises(SystemExit):
        main(["train", "-m", SLURM, "weights=[1,2]"])
    assert (tmp_path / "submitted").exists(), "the check above can fail"


def test_what_sbatch_refuses_is_one_line(programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs("srun", "exit 1")
    programs("sbatch", "echo 'sbatch: error: invalid partition: x' >&2; echo 'sbatch: error: failed' >&2; exit 1")
    with pytest.raises(SystemExit) as leaving:
        main(["train", "-m", SLURM, "strategy=I,II", "weights=[1,2]"])
    assert leaving.value.code == 2
    assert capsys.readouterr() == ("", "dgt: error: sbatch refused the jobs: invalid partition: x; failed\n")


def test_a_launcher_of_ones_own_starts_from_ours(programs, tmp_path: Path) -> None:
    programs("sbatch", "exit 1")
    folder = tmp_path / "own" / "hydra" / "launcher"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text("defaults: [slurm]\npartition: long\n")
    (folder / "other.yaml").write_text("partition: long\n")
    search = compose.search_override(tmp_path / "own")
    own, launcher = sweeps.split([search, "lr=0.1", "hydra/launcher=site"])
    assert own == [search, "lr=0.1"]
    settings = sweeps.checked(launcher, multirun=True)
    assert (settings["partition"], settings["tasks_per_node"]) == ("long", 1)
    with pytest.raises(ConfigError, match=r"a config of your own has defaults: \[slurm\]"):
        sweeps.checked(["hydra/launcher=other", search], multirun=True)


def test_the_launcher_is_no_choice_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hydra" not in compose.groups()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "submitit" not in capsys.readouterr().out


def sweep_of_three(tmp_path: Path, finished: tuple[int, ...]) -> sweeps.Waiting:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    for number in finished:
        (tmp_path / str(number) / "summary.json").write_text(json.dumps({"number": number}))
    folders = [tmp_path / str(number) for number in range(3)]
    return sweeps.Waiting(tmp_path, ["seed=0", "seed=1", "seed=2"], ["7_0", "7_1", "7_2"], folders)


def test_jobs_that_leave_no_summary_are_named_with_their_log(
    programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeps, "PATIENCE", 0.0)
    programs("squeue", "echo 7_0 FAILED; echo 7_1 COMPLETED; echo 9_2 RUNNING")
    waiting = sweep_of_three(tmp_path, finished=(1,))
    (tmp_path / "0" / sweeps.FAILED).write_text("lr=50 is too large\n")
    assert waiting.until_all_are_over() == ([(1, {"number": 1})], 2)
    said = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    logs = [f"; log {tmp_path}/.submitit/7_{number}_0_log.out" for number in range(3)]
    assert said == [
        f"dgt: error: run 0 (seed=0) failed as job 7_0: lr=50 is too large{logs[0]}",
        f"dgt: error: run 2 (seed=2) failed as job 7_2: ended from outside (no longer in the queue){logs[2]}",
    ]


def test_a_queue_that_does_not_answer_is_asked_again(programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a silent controller nor a job that was queued again is a failure, whatever the job left behind."""
    monkeypatch.setattr(sweeps, "PATIENCE", 0.0)
    asked = tmp_path / "asked"
    asked.write_text("")
    script = f"""echo >> {asked}
    case $(/bin/grep -c '' {asked}) in
    1) exit 1;;
    2) echo 7_0 PENDING; echo 7_1 PENDING; echo 7_2 PREEMPTED;;
    *) for number in 0 1 2; do echo '{{}}' > {tmp_path}/$number/summary.json; done;;
    esac"""
    programs("squeue", script)
    waiting = sweep_of_three(tmp_path, finished=())
    (tmp_path / "0" / sweeps.FAILED).write_text("stopped by SIGTERM\n")
    assert waiting.until_all_are_over() == ([(0, {}), (1, {}), (2, {})], 0)
