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

from dgt.config import CheckpointConfig
from dgt.errors import PeerError, SharedError
from dgt.exchange.network import Network
from dgt.processes.agreement import broadcast_text, together
from dgt.processes.node import Node
from dgt.processes.notices import NEVER
from dgt.processes.regroup import BROKEN, Question
from dgt.runs.folders import COMMIT, FOLDER, MARKER, UNSOUND
from dgt.runs.layout import METRICS
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints.files import Commit, Writer, in_words
from dgt.training.checkpoints.finding import Say, evidence_in, find, read_by_all, source_of
from dgt.training.checkpoints.returning import average_model, check_members, rejoin
from dgt.training.checkpoints.state import Tree, copied
from dgt.training.session import MEMBERS, Session

SAVED, UNSAVED = "saved", "not saved"
# facts that older checkpoints lack
BEFORE = {
    "schedule": "constant", "clip": "None", "precision": "full", "algorithm.momentum": "0.0",
    "algorithm.nesterov": "False", "algorithm.base": "None", "algorithm.base_options": "None",
    "algorithm.base_form": "mixed", checkpoint.RANKS_PER_NODE: "1",
}  # fmt: skip


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
        marker: Path | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        node = subject.node
        self._say, self._guard = say, guard  # raises where nothing may be saved any more
        self._subject, self._settings, self._members = subject, settings, list(node.world.members)
        self._since, self._asked = time.monotonic(), 0
        self.writer = Writer(
            directory,
            node.world.rank,
            node.world.size,
            broadcast_text(node, secrets.token_hex(4), 8),
            subject.network.average_weight / node.local.size,
            subject.facts() | environment(node) | dict(further or {}),
            settings.keep_last,
            settings.keep_every,
            say=say,
            phase=phase,
            marker=marker,
        )

    @classmethod
    def of_session(
        cls,
        session: Session,
        say: Say,
        phase: Callable[[str], None],
        guard: Callable[[], None],
        before: Saver | None = None,
    ) -> Saver:
        """Into the run directory, as the config says; `before` is the saver of the network before a loss."""
        config = session.config
        text = json.dumps(config.to_dict(), sort_keys=True)
        run_dir, further = Path(str(config.run_dir)), {"config": hashlib.sha256(text.encode()).hexdigest()}
        saver = cls(session, run_dir / FOLDER, config.checkpoint, say, phase, further, run_dir / MARKER, guard)
        if before is not None:
            saver._follow(before)
        return saver

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

    def save(self, iteration: int, model: Tree | None = None) -> None:
        """Copy the state; the rest is done in the background. `model` is the network average, on rank 0."""
        self._guard()
        self._since = time.monotonic()
        state = self._subject.state()
        self._subject.node.notices.save_at = NEVER
        self.writer.save(iteration, state, model)

    def save_now(self, iteration: int) -> bool:
        """Save and wait until it is complete; False if it could not be. All ranks come to the same conclusion."""
        self._asked += 1
        question = self._subject.node.ask(f"saved-{self.writer.attempt}-{self._asked}")
        return self.conclude(question, iteration) == SAVED

    def conclude(
        self,
        question: Question,
        iteration: int,
        write_down: Callable[[str], str] = lambda answer: answer,
        model: Tree | None = None,
        then: Callable[[Question], str] = lambda question: "",
    ) -> str:
        """Save; the answer, which all ranks get, is whether the checkpoint is complete: `SAVED` or `UNSAVED`.

        The rank that answers passes it through `write_down` first. A rank that is lost before its part is written
        raises `PeerError` on all of them; afterwards it is not needed any more, unless it is rank 0, which commits.

        `model` as for `save`; `then` is called when the checkpoint is complete, or cannot be, and returns the answer if
        it finds one meanwhile.
        """
        writer, members = self.writer, question.members

        def is_needed(member: int) -> bool:
            return member == members[0] or not writer.has_part_of(members.index(member), iteration)

        def find() -> str:
            return write_down(SAVED if writer.outcome(iteration) else UNSAVED)

        answer = question.wait(lambda: not writer.busy, is_needed)
        if not answer:
            self.save(iteration, model)
            answer = question.wait(lambda: writer.outcome(iteration) is not None, is_needed) or then(question)
        answer = answer or question.answer_by_lowest(find)
        if answer.startswith(BROKEN):
            raise PeerError(f"node {question.own}: {answer.removeprefix(BROKEN)}")
        writer.finish()  # others see this rank's file a moment before it is done with it
        return answer

    def _follow(self, other: Saver) -> None:
        """Take over from the saver of a network that has lost some of its ranks."""
        self._since = other._since
        gone = (rank for rank, name in enumerate(other._members) if name not in self._members)
        self.writer.follow(other.writer, frozenset(gone))

    def disown(self, after: int) -> None:
        """Nobody should resume from what was saved after this step: the run was unwell by then."""
        self.writer.finish()
        try:
            for commit in checkpoint.committed(self.writer.directory)[0]:
                if commit.step > after:
                    (commit.path / COMMIT).rename(commit.path / UNSOUND)
        except OSError as error:  # why the run ends is more important
            self._say(f"checkpoints after iteration {after} cannot be marked as unsound: {in_words(error)}")


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
    if config.resume == "none" or session.node.is_new:
        return 0, None

    def use(commit: Commit) -> str:
        some = MEMBERS in commit.facts and commit.nodes == session.node.size and session.is_whole
        hint = f"; nodes=COUNT says of how many nodes these {commit.nodes} are left" if some else ""
        compare(session, commit, config.resume, say, ("model",) if warm else None, hint)
        if warm:
            return _warm_start(session, commit, say)
        there = check_members(session, commit, config.resume)
        return load(session, commit, say) if there == session.node.members else rejoin(session, commit, there, say)

    source = source_of(config) if session.node.is_main else None
    commit = find(session.node, source, config.resume, say, use, lambda: evidence_in(config))
    if commit is None or warm:
        return 0, None
    return commit.step, commit.path.parents[1] / METRICS


def compare(
    subject: Subject, commit: Commit, name: str, say: Say, only: tuple[str, ...] | None = None, hint: str = ""
) -> None:
    """A changed run is an error, a changed machine a warning; a warm start looks at the model only.

    Which nodes are there may differ: `returning.py`.
    """
    facts = subject.facts()
    facts.pop(MEMBERS, None)
    pairs = {fact: (commit.facts.get(fact, BEFORE.get(fact, "nothing")), now) for fact, now in facts.items()}
    changed = {fact: pair for fact, pair in pairs.items() if pair[0] != pair[1] and fact in (only or pairs)}
    if changed:
        said = "; ".join(f"{fact} is {then[:60]} there, {now[:60]} here" for fact, (then, now) in changed.items())
        there = commit.path.parents[1]
        hint = hint or ("" if only else f" (resume={there} warm_start=true takes its average model only)")
        raise SharedError(f"resume={name}: {said}{hint}")
    for fact, now in environment(subject.node).items():
        if commit.facts.get(fact) != now and not only:
            say(f"resume: {fact} was {commit.facts.get(fact)}, is {now}: the last digits may differ")


def load(subject: Subject, commit: Commit, say: Say) -> str:
    """Every rank its own file; says what is wrong with one, if anything is."""
    node, where = subject.node, f"checkpoint {commit.path}"
    data, damage = read_by_all(node, lambda: checkpoint.read_rank(commit, node.world.rank), where, say)
    if data is None or damage:
        return damage
    subject.load(together(node, lambda: checkpoint.parse(data, copied(subject.state()), str(commit.path))))
    return ""


def _warm_start(session: Session, commit: Commit, say: Say) -> str:
    """Rank 0 averages the models of all old ranks by the shares they had; trackers start anew everywhere."""
    node, model = session.node, session.problem.model
    own = model.state_dict()
    average, damage = read_by_all(
        node, lambda: average_model(commit, copied(own)) if node.is_main else None, f"checkpoint {commit.path}", say
    )
    if damage:
        return damage
    with torch.no_grad():
        for name, tensor in own.items():
            value = average[name] if average is not None else torch.zeros_like(tensor, device="cpu")
            tensor.copy_(node.world.all_reduce(value))
    session.optimizer.flat.follow()
    said = f"{commit.nodes} nodes there, {node.size} here"
    say(f"warm start from the average model of iteration {commit.step} ({said}); trackers start anew on all nodes")
    return ""
