"""A sweep on Slurm, each of its runs a job: dgt train -m hydra/launcher=slurm strategy=I,II topology=ring,grid

submitit submits the jobs as one array. A job starts the ranks of one run on its host, as `dgt train` does, in a
directory below the sweep's. The submitting process then polls those directories and `squeue` until all jobs have ended.
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
FIXED = ("stderr_to_stdout", "tasks_per_node", "nodes")  # settings that no config of a user's own may change
# parameters of submitit for any cluster; all others are Slurm's, and are passed as slurm_KEY
ANY_CLUSTER = (
    "name", "timeout_min", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "stderr_to_stdout",
)  # fmt: skip
LOGS = ".submitit"  # directory of pickled jobs and their logs
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
GONE = "no longer in the queue"
PATIENCE = 15.0  # seconds until a shared file system shows what a job has written
LONGEST_PAUSE = 15.0  # seconds between two polls of the queue
ASKED_TO_STOP = (EXIT_STOPPED, *(128 + number for number in PASSED_ON))


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides for dgt, and those of hydra/launcher; the search path for a user's own configs is in both."""
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


def checked(launcher: Sequence[str], multirun: bool) -> dict[str, Any]:
    """The settings that these overrides make; raises if they make no sense, or jobs cannot be submitted here."""
    words = next((word for word in launcher if word.startswith(composing.LAUNCHER)), launcher[0])
    if not multirun:
        raise ConfigError(f"{words}: makes every run of a sweep a job; add -m")
    try:
        importlib.import_module("submitit")
    except ImportError:
        raise ConfigError(f"{words}: not installed; pip install 'dgt[slurm]'") from None
    settings = composing.launcher(launcher)
    needed = composing.launcher([f"{composing.LAUNCHER}=slurm"])
    for name in FIXED:
        if settings.get(name) != needed[name]:
            raise ConfigError(
                f"hydra.launcher.{name}={settings.get(name)}: must be {needed[name]}, as one task starts all ranks of "
                "a run; a config of your own has defaults: [slurm]"
            )
    minutes, seconds = settings["timeout_min"], settings["signal_delay_s"]
    if 60 * minutes <= seconds:
        raise ConfigError(
            f"hydra.launcher.timeout_min={minutes}: no time to train, as ranks stop {seconds} s before the end; "
            "give more minutes, or a smaller hydra.launcher.signal_delay_s"
        )
    if shutil.which("sbatch") is None:
        raise ConfigError(f"{words}: no sbatch on the PATH; hand jobs in where Slurm is")
    return settings


def on_slurm(
    settings: Mapping[str, Any], swept: Sequence[Mapping[str, str]], configs: Sequence[Config]
) -> tuple[list[tuple[int, Any]], int]:
    """Submit a job per run, wait for all; returns (number, summary) of those that finished, and how many did not.

    settings   from `checked`
    swept      for each run the settings in which it differs from the others
    configs    for each run its config
    """
    forkserver.stop()  # no rank is started in this process
    if len({config.run_dir for config in configs}) > 1:
        raise ConfigError("run_dir: a sweep has one, with a directory for each run below; give one value")
    top = Path(claim(configs[0].run_dir, "sweep")).resolve()
    folders = [_folder(top, number, differs) for number, differs in enumerate(swept)]
    checked = [
        prepared(dataclasses.replace(config, run_dir=str(folder)), environment.placement(), "nothing").config
        for folder, config in zip(folders, configs, strict=True)
    ]
    for folder in folders:
        for old in (SUMMARY, FAILED):  # of an earlier sweep in the same directory, which is continued
            (folder / old).unlink(missing_ok=True)
    jobs = _submit(settings, Task(checked, str(Path.cwd())), top / LOGS)
    names = [" ".join(f"{key}={value}" for key, value in differs.items()) for differs in swept]
    return Waiting(top, names, jobs, folders).until_all_are_over()


def _folder(top: Path, number: int, swept: Mapping[str, str]) -> Path:
    """The run's directory: 3-strategy_II-lr_0.01 from number and `swept`, or an existing one named by the number."""
    plain = top / str(number)
    words = "-".join([str(number), *(f"{key}_{value}" for key, value in swept.items())])
    return plain if (plain / CONFIG).exists() else top / file_name(words)


@dataclass(frozen=True, slots=True)
class Task:
    """What a job runs: the run of the given number. Plain data, because submitit pickles it for the job."""

    configs: list[Config]
    cwd: str

    def checkpoint(self, number: int) -> Any:
        """What submitit runs after it has queued the job again: the same, which then resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)

    def __call__(self, number: int) -> None:
        output.ignore_write_errors()
        output.log_to_stderr(is_main=True)
        config = self.configs[number]
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
            # the exit code, by which Slurm sees that the job has failed; submitit would pickle an exception
            raise SystemExit(error.code if isinstance(error, LaunchError) else EXIT_FAILED) from None


def _train(config: Config, run_dir: Path) -> None:
    """Start the run, or resume it if this job was queued again."""
    if holds_checkpoints(run_dir):
        config = dataclasses.replace(config, resume="auto", warm_start=False)
    elif has(run_dir / METRICS):  # of this job's last start, which had no checkpoint yet
        cut(run_dir / METRICS, run_dir / METRICS, -1, run_dir / SUPERSEDED)
        (run_dir / METRICS).unlink()
    try:
        run_here(config, {}, "", "text")
    except LaunchError as stop:
        if stop.code not in ASKED_TO_STOP:
            raise
        _queue_again(stop)


def _queue_again(stop: LaunchError) -> NoReturn:
    """Raise submitit's signal in this process, after the ranks have saved: its handler requeues the job and exits."""
    from submitit import JobEnvironment

    if (_states() or {}).get(JobEnvironment().job_id) in (*OVER, "COMPLETING"):
        raise stop  # cancelled or out of time, or Slurm requeues it itself
    log.info("%s; queueing again", stop)
    try:
        signal.raise_signal(signal.Signals[f"SIG{JobEnvironment.USR_SIG}"])
    except Exception as error:
        raise LaunchError(f"{stop}; it could not be queued again ({error})", stop.code) from None
    raise AssertionError("submitit's handler exits or raises")


def _submit(settings: Mapping[str, Any], task: Task, folder: Path) -> list[str]:
    """Submit the task once per run, as one job array; returns the job ids."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    parameters = {key if key in ANY_CLUSTER else f"slurm_{key}": value for key, value in settings.items()}
    retries = parameters.pop("slurm_max_num_timeout")
    logging.getLogger("submitit").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints the errors that it raises
            executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=retries)
            executor.update_parameters(**parameters)
            return [job.job_id for job in executor.map_array(task, range(len(task.configs)))]
    except (FailedJobError, FailedSubmissionError) as error:
        words = "; ".join(line.removeprefix("sbatch: error: ") for line in str(error).splitlines())
        raise ConfigError(f"sbatch refused the jobs: {words}") from None


@dataclass(slots=True)
class Waiting:
    """The submitting process while jobs run: it polls run directories and the queue."""

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
            with _sigterm_interrupts():
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
        """Whether the job has ended without a summary; logs why."""
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
        file = self.top / LOGS / f"{job}_0_log.out"
        log.error("run %d (%s) failed as job %s: %s; log %s", number, self.names[number], job, why, file)
        return True


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, like Ctrl-C."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _states() -> dict[str, str] | None:
    """State of each of this user's jobs, recently ended ones too, by job id; None if Slurm does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i %T"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except subprocess.SubprocessError:
        return None
    return {job: state.strip() for job, _, state in (line.partition(" ") for line in listed.splitlines())}
