"""When to save, what to resume from, and the agreement of all ranks on both."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dgt.checks import ConfigError
from dgt.config import Config
from dgt.exchange.agreement import share_trouble, told_by_main
from dgt.notices import NEVER
from dgt.training import checkpoint
from dgt.training.checkpoint import COMMIT, Commit, DamagedError, Writer
from dgt.training.session import Session
from dgt.training.state import Tree, copied
from dgt.world import Node

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


class Saver:
    """Writes checkpoints of a session when they are due; all ranks make theirs together."""

    def __init__(self, session: Session, say: Say, phase: Callable[[str], None]) -> None:
        node, settings = session.node, session.config.checkpoint
        self._session, self._settings = session, settings
        self._since = time.monotonic()
        attempt = told_by_main(node, secrets.token_hex(4), 8)
        self.directory = Path(str(session.config.run_dir)) / FOLDER
        config = json.dumps(session.config.to_dict(), sort_keys=True)
        self.writer = Writer(
            self.directory,
            node.rank,
            node.size,
            attempt,
            session.network.average_weight,
            session.facts() | environment(node) | {"config": hashlib.sha256(config.encode()).hexdigest()},
            settings.keep_last,
            settings.keep_every,
            say=say,
            phase=phase,
        )

    def ask_if_late(self) -> None:
        """Rank 0 looks at the clock; the others hear of it with the messages."""
        limit = 60 * self._settings.minutes
        if self._session.node.is_main and limit and time.monotonic() > self._since + limit:
            self._since = time.monotonic()
            self._session.node.notices.save_asked = True

    def is_due(self, iteration: int) -> bool:
        notices = self._session.node.notices
        by_count = self._settings.every and iteration and iteration % self._settings.every == 0
        return bool(by_count) or iteration >= notices.save_at

    def save(self, iteration: int) -> None:
        """Copy the state; the rest is done in the background."""
        self._since = time.monotonic()
        state = self._session.state()
        self._session.node.notices.save_at = NEVER
        self.writer.save(iteration, state)

    def save_now(self, iteration: int) -> bool:
        """Save and wait until it is complete; False if it could not be."""
        self.writer.finish()
        self.save(iteration)
        return self.writer.wait_for_commit(iteration)


def environment(node: Node) -> dict[str, str]:
    """What may change the last bits of a number, but not the run."""
    return {
        "torch version": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "device": node.device.type,
    }


def resume(session: Session, say: Say) -> tuple[int, Path | None]:
    """Continue from the last checkpoint that is whole on all ranks.

    Returns its iteration, 0 if there is none, and the metrics of the run that wrote it.
    """
    node, warm = session.node, session.config.warm_start
    if session.config.resume == "none":
        return 0, None
    source = source_of(session.config) if node.is_main else None
    commits, wrong = _candidates(source) if source is not None else ([], [])
    for words in wrong:
        say(f"checkpoint {words}; not used")
    while True:
        newest = commits.pop() if commits else None
        path = told_by_main(node, str(newest.path) if newest else "")
        if not path:
            if wrong or session.config.resume != "auto":
                raise ConfigError(f"resume={session.config.resume}: no checkpoint there is whole")
            return 0, None
        commit, trouble = None, ""
        try:
            commit = checkpoint.read_commit(Path(path))
        except DamagedError as error:
            trouble = str(error)
        damage = _everybodys_trouble(node, trouble)
        if not damage:
            assert commit is not None
            _compare(session, commit, warm, say)
            damage = _warm_start(session, commit, say) if warm else _load(session, commit)
            if not damage:
                return (0, None) if warm else (commit.step, commit.path.parents[1] / "metrics.jsonl")
        wrong = [damage]
        if node.is_main and session.config.resume == "auto":
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


def _compare(session: Session, commit: Commit, warm: bool, say: Say) -> None:
    """A changed run is an error, a changed machine a warning."""
    here = session.facts()
    changed = {name: (commit.facts.get(name, "nothing"), text) for name, text in here.items()}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    if warm:
        changed = {name: pair for name, pair in changed.items() if name == "model"}
    if changed:
        said = "; ".join(f"{name} is {then[:60]} there, {now[:60]} here" for name, (then, now) in changed.items())
        hint = "" if warm else " (warm_start=true takes its average model only)"
        raise ConfigError(f"resume={session.config.resume}: {said}{hint}")
    for name, now in environment(session.node).items():
        if commit.facts.get(name) != now and not warm:
            say(f"resume: {name} was {commit.facts.get(name)}, is {now}: the last digits may differ")


def _load(session: Session, commit: Commit) -> str:
    """Every rank its own file; says what is wrong with one, if anything is."""
    node, data, trouble = session.node, b"", ""
    try:
        data = checkpoint.read_rank(commit, node.rank)
    except DamagedError as error:
        trouble = str(error)
    damage = _everybodys_trouble(node, trouble)
    if damage:
        return damage
    state, trouble = None, ""
    try:
        state = checkpoint.parse(data, copied(session.state()), str(commit.path))
    except ConfigError as error:
        trouble = str(error)
    share_trouble(node, trouble)
    assert state is not None
    session.load(state)
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
