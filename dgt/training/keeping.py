"""The models that come out of a run: model.pt at its end, best.pt at the best evaluation so far.

    models.consider(iteration, evaluation, session)         all ranks, after every evaluation
    models.finish_with(average_of(session, iteration))      rank 0 writes it

Both are the strategy's network average. Rank 0 writes them in a thread of its own, as disks may be slow and neighbours
do not wait for ever; whatever fails there is one warning. `best.pt` says by itself which evaluation it is of, and so
survives a resume, or a rank 0 that is lost.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import torch

from dgt.config import Config
from dgt.config.checks import close_to
from dgt.config.files import read
from dgt.errors import ConfigError
from dgt.processes.agreement import share_trouble
from dgt.runs.folders import Once
from dgt.runs.layout import BEST, MODEL
from dgt.runs.measures import ALL, measure_of
from dgt.runs.messages import Say
from dgt.training.checkpoints import untrusted
from dgt.training.checkpoints.files import in_words
from dgt.training.checkpoints.models import (
    About,
    ModelState,
    about_of,
    parsed,
    read_about,
    state_of,
    with_about,
    write_model,
)
from dgt.training.checkpoints.state import random_state, restore_random_state
from dgt.training.evaluation import Evaluation
from dgt.training.session import Session

WORSE, BETTER, MISSING = range(3)
MISSED = 2  # evaluations without the metric, after which it will not come: the first may have no loss yet


def average_of(session: Session, iteration: int) -> ModelState | None:
    """The network average, its BatchNorm statistics as the problem wants them, on rank 0; None elsewhere.

    All ranks call it. The run is as it was before: the model, and the random number generators.
    """
    node, problem = session.node, session.problem
    session.optimizer.drain()
    before = random_state(node.device)
    about = {
        "iteration": iteration,
        "nodes": node.size,
        "strategy": session.config.strategy.name,
        "parameters": session.optimizer.flat.whole.numel(),
    }
    with session.network.average(problem.model, problem.recalibration()) as model:
        found = state_of(model, about) if node.is_main else None
    restore_random_state(before, node.device)
    return found


def direction(best: str) -> tuple[str, bool]:
    """accuracy, or my_metric:max: the metric, and whether higher is better; `ConfigError` where nobody knows."""
    name, colon, word = best.partition(":")
    if colon:
        if not name or word not in ("max", "min"):
            raise ConfigError(f"checkpoint.best={best}: must be METRIC, METRIC:max or METRIC:min")
        return name, word == "max"
    measure = measure_of(name)
    if not measure.better:
        close = close_to(name, [each.metric for each in ALL if each.better])
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        words = f"{hint}say which way is better, checkpoint.best={name}:max or {name}:min"
        raise ConfigError(f"checkpoint.best={best}: {words}")
    return name, measure.higher_is_better


class ModelFile:
    """A file in the run directory that newer models replace, in the background; the last one is never left out."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._warn = path, Once(say)
        self._lock = threading.Lock()
        self._next: ModelState | None = None
        self._thread: threading.Thread | None = None
        self._coming: About = {}
        self.about: About = {}
        """Of the model that is there."""

    @property
    def busy(self) -> bool:
        return self._thread is not None

    @property
    def newest(self) -> About:
        """Of the model that is there, or is just being written."""
        with self._lock:
            return self._coming if self._thread is not None else self.about

    def put(self, state: ModelState) -> None:
        """Have this written; one that waits to be written is replaced by it."""
        with self._lock:
            self._next, self._coming = state, about_of(state)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name=f"dgt-{self._path.name}", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            with self._lock:
                state, self._next = self._next, None
                if state is None:
                    self._thread = None
                    return
            try:
                write_model(self._path, state)
                self.about = about_of(state)
            except Exception as error:  # the run goes on, whatever happens here
                at = about_of(state).get("iteration")
                self._warn(
                    f"{self._path.name} of iteration {at} cannot be written ({in_words(error)}); the run goes on"
                )


class Models:
    """Both files of a run, on every rank; rank 0 alone writes."""

    def __init__(self, config: Config, say: Say) -> None:
        self._run_dir, self._say = Path(str(config.run_dir)), say
        self._setting = config.checkpoint.best
        self._metric, self._higher = direction(self._setting) if self._setting else ("", False)
        self._last, self._best = ModelFile(self._run_dir / MODEL, say), ModelFile(self._run_dir / BEST, say)
        self._missed = 0

    def start(self, first: int, history: Path | None = None) -> None:
        """Rank 0, before it considers anything: go on from the best model so far of a run that goes on from `first`.

        `history` is the metrics.jsonl of the run that is continued. A run that begins at 0 has no best model yet.
        """
        if not self._setting or not first:
            return
        try:
            if history is not None and history.parent.resolve() != self._run_dir.resolve():
                self._take_along(history.parent / BEST, first)
            about = read_about(self._run_dir / BEST)
        except OSError as error:
            self._say(f"{BEST} cannot be read ({in_words(error)}): the best evaluation is looked for anew")
            return
        if about and about.get("metric") != self._metric:
            self._say(f"{BEST} was kept by {about.get('metric')}: the best by {self._metric} is looked for anew")
        elif self._is_value(about.get("value")):
            self._best.about = about

    def _take_along(self, path: Path, first: int) -> None:
        """Another run's, unless it is of an evaluation that this one has not come to."""
        about = read_about(path)
        if isinstance(about.get("iteration"), int) and about["iteration"] <= first:
            state = parsed(read(path, untrusted.most_bytes()), str(path))
            write_model(self._run_dir / BEST, with_about(state, about))

    def consider(self, iteration: int, evaluation: Evaluation | None, session: Session) -> None:
        """Keep the average if this evaluation is the best so far; all ranks call it, rank 0 with the evaluation."""
        if not self._setting:
            return
        node = session.node
        verdict = self._verdict(evaluation) if node.is_main and evaluation is not None else WORSE
        verdict = int(node.world.all_reduce(torch.tensor(verdict)))
        if verdict == MISSING:
            share_trouble(node, self._no_such(evaluation))
        if verdict != BETTER:
            return
        state = average_of(session, iteration)
        if state is not None and evaluation is not None:
            value = float(evaluation.metrics[self._metric][0])
            self._best.put(with_about(state, about_of(state) | {"metric": self._metric, "value": value}))

    def _verdict(self, evaluation: Evaluation) -> int:
        found = evaluation.metrics.get(self._metric)
        if found is None:
            self._missed += 1
            return MISSING if self._missed == MISSED and not self._best.newest else WORSE
        value, best = float(found[0]), self._best.newest.get("value")
        if not self._is_value(value):
            return WORSE
        return BETTER if best is None or (value > best if self._higher else value < best) else WORSE

    def _no_such(self, evaluation: Evaluation | None) -> str:
        if evaluation is None:
            return ""
        return f"checkpoint.best={self._setting}: this run measures {', '.join(sorted(evaluation.metrics))}"

    @staticmethod
    def _is_value(value: Any) -> bool:
        return isinstance(value, int | float) and math.isfinite(value)

    def finish_with(self, state: ModelState | None) -> None:
        """The run ends with this model; nothing is written where there is none."""
        if state is not None:
            self._last.put(state)

    def copy_last(self, path: Path) -> None:
        """The model of a checkpoint is that of the run: in place of a rank 0 that is lost."""
        try:
            write_model(self._run_dir / MODEL, parsed(read(path, untrusted.most_bytes()), str(path)))
        except (OSError, ConfigError) as error:
            self._say(f"{MODEL} cannot be written ({in_words(error)})")

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return self._last.busy or self._best.busy

    def summary(self) -> dict[str, Any]:
        """What summary.json says about the best model."""
        if not self._setting:
            return {}
        about = self._best.about or read_about(self._run_dir / BEST)
        return {"best": {name: about.get(name) for name in ("metric", "iteration", "value")} if about else None}
