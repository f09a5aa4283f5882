"""Which lr? Short trials of the run that is asked for, on its own ranks: `lr=auto`, and `dgt plan ... lr=find`.

    trial(lr, steps)    so many iterations from the start of the run, with its schedule drawn together to that length
                        -> 1/n sum_i lambda_i (node i's mean loss over the last fifth of them), infinite if it diverged

First the lr goes up by factors of 4, from far below the usual one until a trial gets clearly worse. Then, in longer
trials, by factors of 2 from below the best of these. The suggestion is the largest lr that gains at most `SLACK` less
than the best one: short trials favour small steps, whose noise they have no time to average. Least squares are judged
by their gradient norm, in trials as long as the run.

Every trial begins at the same parameters, with the same data in the same order, so that their losses differ by little
but the lr. The ranks see the same losses, and so decide alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from dgt import algorithms, problems
from dgt.config import AUTO, Config
from dgt.errors import ConfigError, TrainingError
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.processes.agreement import agree, broadcast_text
from dgt.processes.node import Node
from dgt.runs.measures import GRADIENT
from dgt.runs.sinks.progress import Progress
from dgt.training import schedules
from dgt.training.checkpoints.finding import last_commit, read_by_all
from dgt.training.checkpoints.state import Tree, copied
from dgt.training.evaluation import evaluate
from dgt.training.schedules import Schedule
from dgt.training.session import IntervalLoss, Session, run_facts
from dgt.training.setup import connect, final_graph, make_problem
from dgt.training.stepping import Stepping

STEPS = 40  # of a trial at first
SHARE, MOST_STEPS = 0.25, 200  # then a share of the run's iterations, up to so many
QUADRATIC_STEPS = 1000  # of least squares, which cost next to nothing
LATE = 0.8  # share of a trial after which its losses count
COARSE, FINE = 4.0, 2.0
BELOW = 256.0  # the first trial is as far below the usual lr
MOST = 30  # trials
WORSE = 0.3  # share of the best trial's gain that another must lack to be clearly worse
SLACK = 0.2  # the same of the suggestion
PATIENCE = 4  # trials in a row without one that is better
FLAT = 0.01  # relative difference below which losses are the same


@dataclass(frozen=True, slots=True)
class Trial:
    """One lr and where it led in so many iterations; `loss` is infinite where the trial diverged."""

    lr: float
    steps: int
    loss: float


@dataclass(frozen=True, slots=True)
class Found:
    """The lr that is suggested, and the trials in the order in which they were made."""

    lr: float
    trials: list[Trial]


def with_lr(config: Config, node: Node, weights: Weights, drawn: Topology, say: Callable[[str], None]) -> Config:
    """The config with the lr that trials suggest, where it says lr=auto; a run that goes on keeps the lr it had.

    All ranks call it.
    """
    if config.lr != AUTO:
        return config

    def before() -> str:
        commit = last_commit(config) if node.is_main else None
        return "" if commit is None else commit.facts.get("lr", "")

    known, _ = read_by_all(node, before, f"resume={config.resume}", say)
    told = broadcast_text(node, known or "")
    if told:
        return dataclasses.replace(config, lr=float(told))
    found = find(config, node, weights, drawn)
    if node.is_main:
        say(f"lr=auto: {found.lr:.3g}, after {len(found.trials)} trials")
    return dataclasses.replace(config, lr=found.lr)


def find(config: Config, node: Node, weights: Weights, drawn: Topology) -> Found:
    """Trials around what is usual, until it is known which lr is best; all ranks call it, and get the same."""
    agree(node, run_facts(config, [config.seed]))
    if config.iterations < 1:
        return Found(config.usual_lr, [])
    rehearsal = Rehearsal(config, node, weights, drawn)
    progress = Progress(MOST, "lr", speaks=node.is_main, lines=1, unit="trial")
    try:
        return Search(rehearsal, lambda made: progress.update(len(made), {"lr": made[-1].lr})).run(config.usual_lr)
    finally:
        progress.close()
        rehearsal.close()


class Runs(Protocol):
    """What `Search` tries: the losses of runs, which depend on lr and on how long they are."""

    lengths: tuple[int, int]
    """Iterations of the first trials, and of those that decide."""
    before: float
    """The loss before the first step, once there has been one."""
    whole: bool
    """Whether a long trial is as good as the run itself: then the best lr is that with the lowest loss."""

    def loss(self, lr: float, steps: int) -> float: ...


class Search:
    """Trials of some runs; `look` sees them after each."""

    def __init__(self, runs: Runs, look: Callable[[list[Trial]], None] = lambda made: None) -> None:
        self._runs, self._look, self._made = runs, look, list[Trial]()

    def run(self, usual: float) -> Found:
        """The suggestion; `usual` is an lr of the right size, as far as that is known."""
        short, long = self._runs.lengths
        best = self._climb(usual / BELOW, COARSE, short)
        while best.lr == min(trial.lr for trial in self._made) and len(self._made) < MOST:  # even the first: too large
            lower = self._trial(best.lr / COARSE, short)
            if lower.loss >= best.loss and math.isfinite(best.loss):
                break
            best = lower
        if not math.isfinite(best.loss):
            raise TrainingError(f"lr=auto: every trial diverged, down to lr={best.lr:.3g}; is the data sound?")
        best = self._climb(best.lr / FINE, FINE, long)
        return Found(best.lr if self._runs.whole else self._largest_good(best), self._made)

    def _trial(self, lr: float, steps: int) -> Trial:
        """One trial, or what it was if it was made before."""
        for trial in self._made:
            if (trial.lr, trial.steps) == (lr, steps):
                return trial
        self._made.append(Trial(lr, steps, self._runs.loss(lr, steps)))
        self._look(self._made)
        return self._made[-1]

    def _climb(self, lr: float, factor: float, steps: int) -> Trial:
        """The best from this lr upwards; ends where one is clearly worse than the best, or `PATIENCE` no better."""
        best, no_better = self._trial(lr, steps), 0
        while no_better < PATIENCE and len(self._made) < MOST:
            lr *= factor
            trial = self._trial(lr, steps)
            if trial.loss < best.loss:
                best, no_better = trial, 0
            else:
                no_better += 1
            if self._lack(trial, best) > WORSE:
                break
        return best

    def _lack(self, trial: Trial, best: Trial) -> float:
        """How much less it gains than the best, as a share of what that gains; infinite where there is no gain."""
        if trial.loss <= best.loss:
            return 0.0
        before = self._runs.before
        gain = before - best.loss
        if gain <= FLAT * abs(before):
            return math.inf if trial.loss > before + FLAT * abs(before) else 0.0
        return (trial.loss - best.loss) / gain

    def _largest_good(self, best: Trial) -> float:
        """The lr above the best one at which a trial would lack `SLACK`: between two trials, along log lr."""
        below, lack_below = best, 0.0
        larger = [trial for trial in self._made if trial.steps == best.steps and trial.lr > best.lr]
        for trial in sorted(larger, key=lambda one: one.lr):
            lack = self._lack(trial, best)
            if lack > SLACK:
                return below.lr * (trial.lr / below.lr) ** ((SLACK - lack_below) / (lack - lack_below))
            below, lack_below = trial, max(lack, lack_below)
        return below.lr


class Rehearsal:
    """The run in question, whose first steps each loss makes anew. All ranks make it, and call it alike."""

    def __init__(self, config: Config, node: Node, weights: Weights, drawn: Topology) -> None:
        usual = dataclasses.replace(config, lr=config.usual_lr)
        graph = final_graph(usual, node, weights, drawn)
        network = connect(usual, node, weights, graph)
        problem = make_problem(usual, node, weights, [usual.seed])
        optimizer = algorithms.from_config(usual, problem.parameters(), problem.model, network)
        optimizer.sends_non_finite = True
        self._session = Session(usual, weights, graph, network, problem, optimizer, [usual.seed])
        self._start: Tree = copied(self._session.state())
        self._quadratic = problems.class_of(config).is_quadratic
        short = min(config.iterations, QUADRATIC_STEPS if self._quadratic else STEPS)
        self.lengths = short, max(short, min(round(SHARE * config.iterations), MOST_STEPS))
        self.whole = self._quadratic or short == config.iterations
        self.before = math.nan

    def loss(self, lr: float, steps: int) -> float:
        """1/n sum_i lambda_i (node i's mean loss over the last of the steps); infinite if it diverged."""
        session = self._session
        session.load(copied(self._start))
        for group in session.optimizer.param_groups:
            if group["lr"] == session.config.lr:  # a group may have an lr of its own, which stays
                group["lr"] = lr
        shortened = Shortened(schedules.of(session.config), steps)
        device = session.node.device
        session.stepping = Stepping(session.config, session.problem, session.optimizer, device, shortened)
        losses = session.losses = TrialLosses(session.node.name)
        late = []
        for step in range(steps):
            session.step(step)
            if losses.last is None and not self._quadratic:
                name = session.config.problem.name
                raise ConfigError(f"lr=auto: problem={name} returns no loss to judge trials by; give a number")
            loss = self._evaluated() if losses.last is None else self._mean(losses.last)
            if math.isnan(self.before):
                self.before = loss
            if not math.isfinite(loss):
                return math.inf
            if step >= int(LATE * steps):
                late.append(loss)
        return math.fsum(late) / len(late)

    def _mean(self, loss: float) -> float:
        everybody = self._session.node.world
        share = self._session.network.weight / everybody.size
        return float(everybody.all_reduce(torch.tensor(share * loss, dtype=torch.float64)))

    def _evaluated(self) -> float:
        found = evaluate(self._session.problem, self._session.optimizer)
        mine = 0.0 if found is None else float(found.metrics[GRADIENT.metric][0])
        return float(self._session.node.world.all_reduce(torch.tensor(mine, dtype=torch.float64)))

    def close(self) -> None:
        """The ranks part as at the end of a run."""
        self._session.optimizer.drain()


class Shortened(Schedule):
    """A schedule drawn together to fewer iterations."""

    def __init__(self, whole: Schedule, iterations: int) -> None:
        self._whole, self.iterations = whole, iterations

    def _at(self, t: int) -> int:
        return t * self._whole.iterations // self.iterations

    def share(self, t: int) -> float:
        return self._whole.share(self._at(t))

    def share_after(self, t: int, iterations: int) -> float:
        raise NotImplementedError("share says all")

    def momentum(self, t: int) -> float | None:
        return self._whole.momentum(self._at(t))


class TrialLosses(IntervalLoss):
    """The last loss; one that is not a number ends the trial on all ranks, not the run."""

    last: float | None = None

    def add(self, loss: float | None, iteration: int) -> None:
        self.last = loss
