"""A sweep on Slurm, each of its runs a job: dgt train -m hydra/launcher=slurm strategy=I,II topology=ring,grid

Hydra's submitit launcher hands the jobs in, as one array. A job starts the ranks of one run on its host, as `dgt train`
does, in a directory below the sweep's; what it leaves there is all that the waiting process looks at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.global_hydra import GlobalHydra

from dgt.config import Config
from dgt.config import compose as composing
from dgt.errors import EXIT_FAILED, EXIT_STOPPED, ConfigError, LaunchError
from dgt.launching import forkserver
from dgt.launching.run import prepared, run_here, summary_of
from dgt.processes import environment, output
from dgt.processes.signals import PASSED_ON
from dgt.runs.claiming import claim
from dgt.runs.folders import has, holds_checkpoints
from dgt.runs.layout import CONFIG, FAILED, METRICS, SUMMARY, SUPERSEDED
from dgt.runs.lines import cut
from dgt.runs.naming import file_name
from dgt.runs.sinks.progress import Progress

log = logging.getLogger(__name__)
FIXED = ("_target_", "submitit_folder", "stderr_to_stdout", "tasks_per_node", "nodes")
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
GONE = "no longer in the queue"
PATIENCE = 15.0  # seconds for a shared file system to show what a job has written
LONGEST_PAUSE = 15.0  # seconds between two looks at the queue
ASKED_TO_STOP = (EXIT_STOPPED, *(128 + number for number in PASSED_ON))


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for dgt, and what is for Hydra's launcher; folders with configs of one's own are for both."""
    own: list[str] = []
    launcher: list[str] = []
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == composing.LAUNCHER or key.startswith("hydra.launcher."):
            launcher.append(override)
        elif key.startswith(("hydra.", "hydra/")) and key != "hydra.searchpath":
            allowed = f"{composing.LAUNCHER}=slurm and hydra.launcher.KEY=VALUE"
            raise ConfigError(f"{override}: dgt sets this itself; of Hydra's own settings it takes {allowed}")
        else:
            own.append(override)
    search = [override for override in own if override.startswith("hydra.searchpath=")]
    return own, launcher + search if launcher else []


def checked(launcher: Sequence[str], multirun: bool) -> list[str]:
    """These settings in Hydra's words, if they make sense and jobs can be handed in from here."""
    words = next((word for word in launcher if word.startswith(composing.LAUNCHER)), launcher[0])
    if not multirun:
        raise ConfigError(f"{words}: makes every run of a sweep a job; add -m")
    try:
        for name in ("submitit", "hydra_plugins.hydra_submitit_launcher.submitit_launcher"):
            importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{words}: not installed; pip install 'dgt[slurm]'") from None
    settings, told = composing.launcher(launcher)
    needed, _ = composing.launcher([f"{composing.LAUNCHER}=slurm"])
    for name in FIXED:
        if settings.get(name) != needed[name]:
            said = f"hydra.launcher.{name}={settings.get(name)}: must be {needed[name]}"
            raise ConfigError(
                f"{said}, as one task starts all ranks of a run; a config of your own has defaults: [slurm]"
            )
    minutes, seconds = settings["timeout_min"], settings["signal_delay_s"]
    if 60 * minutes <= seconds:
        raise ConfigError(
            f"hydra.launcher.timeout_min={minutes}: no time to train, as ranks stop {seconds} s before the end; "
            "give more minutes, or a smaller hydra.launcher.signal_delay_s"
        )
    if shutil.which("sbatch") is None:
        raise ConfigError(f"{words}: no sbatch on the PATH; hand jobs in where Slurm is")
    return told


def on_slurm(
    launcher: Sequence[str], swept: Sequence[Mapping[str, str]], configs: Sequence[Config]
) -> tuple[list[tuple[int, Any]], int]:
    """Hand in a job per run, wait for all; returns those that finished, by number and summary, and how many did not.

    `swept` is what the runs differ in.
    """
    forkserver.stop()  # no rank will be started here
    if len({config.run_dir for config in configs}) > 1:
        raise ConfigError("run_dir: a sweep has one, with a directory for each run below; give one value")
    top = Path(claim(configs[0].run_dir, "sweep")).resolve()
    folders = [_folder(top, number, differs) for number, differs in enumerate(swept)]
    checked = [
        prepared(dataclasses.replace(config, run_dir=str(folder)), environment.placement(), "nothing").config
        for folder, config in zip(folders, configs, strict=True)
    ]
    for folder in folders:
        for old in (SUMMARY, FAILED):  # of a sweep that is made longer
            (folder / old).unlink(missing_ok=True)
    jobs = _hand_in(launcher, Task(checked, str(Path.cwd())), top)
    names = [" ".join(f"{key}={value}" for key, value in differs.items()) for differs in swept]
    return Waiting(top, names, jobs, folders).until_all_are_over()


def _folder(top: Path, number: int, swept: Mapping[str, str]) -> Path:
    """The run's directory: its number and what is swept, 3-strategy_II-lr_0.01; or one that is there by its number."""
    plain = top / str(number)
    words = "-".join([str(number), *(f"{key}_{value}" for key, value in swept.items())])
    return plain if (plain / CONFIG).exists() else top / file_name(words)


@dataclass(frozen=True, slots=True)
class Task:
    """What a job does: the run whose number Hydra gives it. Plain data, because it travels there."""

    configs: list[Config]
    cwd: str

    def __call__(self, drawn: Any) -> None:
        output.ignore_write_errors()
        output.log_to_stderr(is_main=True)
        config = self.configs[drawn.run]
        run_dir = Path(str(config.run_dir))
        try:
            os.chdir(self.cwd)  # files named on the command line are relative to it
            (run_dir / FAILED).unlink(missing_ok=True)
            _train(config, run_dir)
        except Exception as error:
            expected = isinstance(error, (ConfigError, LaunchError))
            if not expected:
                traceback.print_exc()
            words = " ".join((str(error) if expected else f"{type(error).__name__}: {error}").split())
            log.error("%s", words)
            (run_dir / FAILED).write_text(words + "\n", encoding="utf-8")
            # Hydra would keep an exception to itself, and Slurm count the job as completed
            raise SystemExit(error.code if isinstance(error, LaunchError) else EXIT_FAILED) from None


def _train(config: Config, run_dir: Path) -> None:
    """Begin, or go on after this job was queued again."""
    if holds_checkpoints(run_dir):
        config = dataclasses.replace(config, resume="auto", warm_start=False)
    elif has(run_dir / METRICS):  # of this job, ended before its first checkpoint
        cut(run_dir / METRICS, run_dir / METRICS, -1, run_dir / SUPERSEDED)
        (run_dir / METRICS).unlink()
    try:
        run_here(config, {}, "", "text")
    except LaunchError as stop:
        if stop.code not in ASKED_TO_STOP:
            raise
        _queue_again(stop)


def _queue_again(stop: LaunchError) -> NoReturn:
    """As if submitit's signal came now that the ranks have saved: it hands this job in again, and ends the process."""
    from submitit import JobEnvironment

    if (_states() or {}).get(JobEnvironment().job_id) in (*OVER, "COMPLETING"):
        raise stop  # Slurm ends it for good (scancel, out of time), or queues it again itself
    log.info("%s; queueing again", stop)
    try:
        signal.raise_signal(signal.Signals[f"SIG{JobEnvironment.USR_SIG}"])
    except Exception as error:
        raise LaunchError(f"{stop}; it could not be queued again ({error})", stop.code) from None
    raise AssertionError("submitit has left, or raised")


def _hand_in(launcher: Sequence[str], task: Task, top: Path) -> list[str]:
    """Have Hydra's launcher submit the task once per run; returns the jobs' numbers."""
    quoted = str(top).replace("'", "\\'")
    own = [
        f"hydra.sweep.dir='{quoted}'",
        "hydra.sweep.subdir=.",  # runs make directories of their own
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
        f"+run={','.join(map(str, range(len(task.configs))))}",
    ]
    with _submission() as jobs, composing.initialized():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.multirun(None, task, [*launcher, *own], with_log_configuration=False)
    return jobs


@contextlib.contextmanager
def _submission() -> Iterator[list[str]]:
    """The numbers of the jobs submitted inside.

    Hydra's launcher would go on to wait for one job after the other, by asking `sacct`, which not every cluster has,
    and give up at the first that failed: it is stopped where it begins to wait.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class SubmittedError(Exception):
        """All jobs are: no error, but the way out."""

    class Watcher(SlurmInfoWatcher):
        def register_job(self, job_id: str) -> None:
            jobs.append(job_id)

        def is_done(self, job_id: str, mode: str = "standard") -> bool:
            raise SubmittedError

    jobs: list[str] = []
    watcher, SlurmJob.watcher = SlurmJob.watcher, Watcher()
    logging.getLogger("submitit").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            yield jobs
    except SubmittedError:
        pass
    except (FailedJobError, FailedSubmissionError) as error:
        words = "; ".join(line.removeprefix("sbatch: error: ") for line in str(error).splitlines())
        raise ConfigError(f"sbatch refused the jobs: {words}") from None
    finally:
        SlurmJob.watcher = watcher
    if len(jobs) > 1:
        jobs.remove(jobs[0].partition("_")[0])  # of the array as a whole


@dataclass(slots=True)
class Waiting:
    """The submitting process from then on: it looks at run directories and at the queue."""

    top: Path
    names: list[str]
    jobs: list[str]
    folders: list[Path]
    over_since: dict[int, float] = field(default_factory=dict)

    def until_all_are_over(self) -> tuple[list[tuple[int, Any]], int]:
        array = self.jobs[0].partition("_")[0]
        log.info("job %s: %d run(s) in %s", array, len(self.jobs), self.top)
        progress = Progress(len(self.jobs), f"job {array}", lines=len(self.jobs), unit="run")
        waiting, done, pause = set(range(len(self.jobs))), set(), 1.0
        try:
            with _ended_like_interrupted():
                while waiting:
                    states = _states()
                    done |= {number for number in waiting if (self.folders[number] / SUMMARY).exists()}
                    waiting -= done
                    waiting -= {number for number in waiting if self._is_lost(number, states)}
                    running = sum((states or {}).get(self.jobs[number]) == "RUNNING" for number in waiting)
                    over = len(self.jobs) - len(waiting)
                    progress.update(over, {"running": running, "waiting": len(waiting) - running})
                    time.sleep(pause if waiting else 0)
                    pause = min(1.2 * pause, LONGEST_PAUSE)
        except KeyboardInterrupt:
            words = f"interrupted; the jobs go on in {self.top} (scancel {array} ends them)"
            raise LaunchError(words, 128 + signal.SIGINT) from None
        finally:
            progress.close()
        found = [(number, summary_of(self.folders[number])) for number in sorted(done)]
        return found, len(self.jobs) - len(done)

    def _is_lost(self, number: int, states: dict[str, str] | None) -> bool:
        """Whether a run has no summary and will have none; says why."""
        job, note = self.jobs[number], self.folders[number] / FAILED
        state = "" if states is None else states.get(job, GONE)
        if state not in (*OVER, GONE):
            self.over_since.pop(number, None)
            return False
        since = self.over_since.setdefault(number, time.monotonic())
        if not note.exists() and time.monotonic() < since + PATIENCE:
            return False
        if note.exists():
            why = note.read_text(encoding="utf-8").strip()
        elif state == "COMPLETED":
            why = "it left no summary here; the sweep's directory must be on a file system that all hosts share"
        else:
            why = f"ended from outside ({state})"
        file = self.top / ".submitit" / f"{job}_0_log.out"
        log.error("run %d (%s) failed as job %s: %s; log %s", number, self.names[number], job, why, file)
        return True


@contextlib.contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _states() -> dict[str, str] | None:
    """What Slurm says of each of this user's jobs, those that ended lately too; None if it does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i %T"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except subprocess.SubprocessError:
        return None
    return {job: state.strip() for job, _, state in (line.partition(" ") for line in said.splitlines())}
