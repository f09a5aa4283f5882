"""When to save, what to resume from, and the agreement of all ranks on both."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from dgt.checks import ConfigError, SharedError
from dgt.config import CheckpointConfig, Config
from dgt.exchange.agreement import share_trouble, together, told_by_main
from dgt.exchange.network import Network
from dgt.node import Node
from dgt.notices import NEVER
from dgt.training import checkpoint
from dgt.training.checkpoint import COMMIT, Commit, DamagedError, Writer
from dgt.training.session import Session
from dgt.training.state import Tree, copied

FOLDER = "checkpoints"
Say = Callable[[str], None]


def source_of(config: Config) -> Path | None:
    """The directory to resume from: a single checkpoint, or one that holds several; None to start anew."""
    if config.resume == "none":
        return None
    if config.resume == "auto":
        folder = Path(str(config.run_dir)) / FOLDER
        return folder if folder.is_dir() else None
    path = Path(config.resume)
    if (path / COMMIT).is_file():
        return path
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    if not any(folder.glob(f"*/{COMMIT}")):
        raise ConfigError(f"resume={config.resume}: no complete checkpoint there; give a run or checkpoint directory")
    return folder


class Subject(Protocol):
    """What can be saved and resumed; all ranks make theirs together."""

    node: Node
    network: Network

    def facts(self) -> dict[str, str]: ...

    def state(self) -> Tree: ...

    def load(self, state: Tree) -> None: ...


class Saver:
    """Writes checkpoints when they are due."""

    def __init__(
        self,
        subject: Subject,
        directory: Path,
        settings: CheckpointConfig,
        say: Say,
        phase: Callable[[str], None] = lambda name: None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        node = subject.node
        self._subject, self._settings = subject, settings
        self._since = time.monotonic()
        self.writer = Writer(
            directory,
            node.rank,
            node.size,
            told_by_main(node, secrets.token_hex(4), 8),
            subject.network.average_weight,
            subject.facts() | environment(node) | dict(further or {}),
            settings.keep_last,
            settings.keep_every,
            say=say,
            phase=phase,
        )

    @classmethod
    def of_session(cls, session: Session, say: Say, phase: Callable[[str], None]) -> Saver:
        """Into the run directory, as the config says."""
        config = session.config
        text = json.dumps(config.to_dict(), sort_keys=True)
        folder = Path(str(config.run_dir)) / FOLDER
        return cls(
            session, folder, config.checkpoint, say, phase, {"config": hashlib.sha256(text.encode()).hexdigest()}
        )

    def ask_if_late(self) -> None:
        """Rank 0 looks at the clock; the others hear of it with the messages."""
        limit = 60 * self._settings.minutes
        if self._subject.node.is_main and limit and time.monotonic() > self._since + limit:
            self._since = time.monotonic()
            self._subject.node.notices.save_asked = True

    def is_due(self, iteration: int) -> bool:
        notices = self._subject.node.notices
        by_count = self._settings.every and iteration and iteration % self._settings.every == 0
        return bool(by_count) or iteration >= notices.save_at

    def save(self, iteration: int) -> None:
        """Copy the state; the rest is done in the background."""
        self._since = time.monotonic()
        state = self._subject.state()
        self._subject.node.notices.save_at = NEVER
        self.writer.save(iteration, state)

    def save_now(self, iteration: int) -> bool:
        """Save and wait until it is complete; False if it could not be."""
        self.writer.finish()
        self.save(iteration)
        return self.writer.wait_for_commit(iteration, self._subject.node.miss_nobody)

    def disown(self, after: int) -> None:
        """Nobody should resume from what was saved after this step: the run was unwell by then."""
        self.writer.finish()
        for commit in checkpoint.committed(self.writer.directory)[0]:
            if commit.step > after:
                (commit.path / COMMIT).rename(commit.path / f"{COMMIT}.unsound")


def environment(node: Node) -> dict[str, str]:
    """What may change the last bits of a number, but not the run."""
    return {
        "torch version": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "device": node.device.type,
    }


def resume(session: Session, say: Say) -> tuple[int, Path | None]:
    """Continue as `config.resume` says; returns the iteration, 0 for a start, and the metrics of the run before."""
    config, warm = session.config, session.config.warm_start
    if config.resume == "none":
        return 0, None

    def use(commit: Commit) -> str:
        compare(session, commit, config.resume, say, only=("model",) if warm else None)
        return _warm_start(session, commit, say) if warm else load(session, commit)

    source = source_of(config) if session.node.is_main else None
    commit = find(session.node, source, config.resume, say, use)
    if commit is None or warm:
        return 0, None
    return commit.step, commit.path.parents[1] / "metrics.jsonl"


def find(node: Node, source: Path | None, name: str, say: Say, use: Callable[[Commit], str]) -> Commit | None:
    """The last checkpoint in rank 0's `source` that all ranks could use; `use` says what is wrong with one.

    None if there is none at all, which is fine for resume=auto only.
    """
    commits, wrong = _candidates(source) if source is not None else ([], [])
    for words in wrong:
        say(f"checkpoint {words}; not used")
    while True:
        newest = commits.pop() if commits else None
        path = told_by_main(node, str(newest.path) if newest else "")
        if not path:
            missing = node.is_main and (wrong or name != "auto")
            share_trouble(node, f"resume={name}: no checkpoint there is whole" if missing else "")
            return None
        commit, trouble = None, ""
        try:
            commit = checkpoint.read_commit(Path(path))
        except DamagedError as error:
            trouble = str(error)
        damage = _everybodys_trouble(node, trouble)
        if not damage:
            assert commit is not None
            damage = use(commit)
            if not damage:
                return commit
        wrong = [damage]
        if node.is_main and name == "auto":
            # it must not count among the last few that are kept
            (Path(path) / COMMIT).rename(Path(path) / f"{COMMIT}.damaged")
        say(f"checkpoint {Path(path).name}: {damage}; going back to the one before")


def _candidates(path: Path) -> tuple[list[Commit], list[str]]:
    if not (path / COMMIT).is_file():
        return checkpoint.committed(path)
    try:
        return [checkpoint.read_commit(path)], []
    except DamagedError as error:
        return [], [f"{path.name}: {error}"]


def _everybodys_trouble(node: Node, trouble: str) -> str:
    """The first rank's trouble, known to all; empty if there is none."""
    try:
        share_trouble(node, trouble)
    except ConfigError as error:
        return str(error)
    return ""


def compare(subject: Subject, commit: Commit, name: str, say: Say, only: tuple[str, ...] | None = None) -> None:
    """A changed run is an error, a changed machine a warning; a warm start looks at the model only."""
    pairs = {fact: (commit.facts.get(fact, "nothing"), now) for fact, now in subject.facts().items()}
    changed = {fact: pair for fact, pair in pairs.items() if pair[0] != pair[1] and fact in (only or pairs)}
    if changed:
        said = "; ".join(f"{fact} is {then[:60]} there, {now[:60]} here" for fact, (then, now) in changed.items())
        there = commit.path.parents[1]
        hint = "" if only else f" (resume={there} warm_start=true takes its average model only)"
        raise SharedError(f"resume={name}: {said}{hint}")
    for fact, now in environment(subject.node).items():
        if commit.facts.get(fact) != now and not only:
            say(f"resume: {fact} was {commit.facts.get(fact)}, is {now}: the last digits may differ")


def load(subject: Subject, commit: Commit) -> str:
    """Every rank its own file; says what is wrong with one, if anything is."""
    node, data, trouble = subject.node, b"", ""
    try:
        data = checkpoint.read_rank(commit, node.rank)
    except DamagedError as error:
        trouble = str(error)
    damage = _everybodys_trouble(node, trouble)
    if damage:
        return damage
    subject.load(together(node, lambda: checkpoint.parse(data, copied(subject.state()), str(commit.path))))
    return ""


def _warm_start(session: Session, commit: Commit, say: Say) -> str:
    """Rank 0 averages the models of all old ranks by the shares they had; trackers start anew everywhere."""
    node, model = session.node, session.problem.model
    own, average, trouble = model.state_dict(), None, ""
    if node.is_main:
        try:
            average = _average_model(commit, copied(own))
        except (DamagedError, ConfigError) as error:
            trouble = str(error)
    damage = _everybodys_trouble(node, trouble)
    if damage:
        return damage
    with torch.no_grad():
        for name, tensor in own.items():
            value = average[name] if average is not None else torch.zeros_like(tensor, device="cpu")
            tensor.copy_(node.sum(value))
    session.optimizer.flat.read_parameters()
    said = f"{commit.world} nodes there, {node.size} here"
    say(f"warm start from the average model of iteration {commit.step} ({said}); trackers start anew on all nodes")
    return ""


def _average_model(commit: Commit, like: Tree) -> Tree:
    """sum_i pi_i theta_i, one file after the other; integers are the first node's."""
    average: Tree = {}
    for rank, file in enumerate(commit.files):
        theirs = checkpoint.parse(checkpoint.read_rank(commit, rank), {"model": like}, str(commit.path))["model"]
        for name, value in theirs.items():
            if rank == 0:
                average[name] = value * file["share"] if value.is_floating_point() else value
            elif value.is_floating_point():
                average[name].add_(value, alpha=file["share"])
    return average
