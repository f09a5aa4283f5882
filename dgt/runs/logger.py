"""The writer of a run: rank 0 has its files, its progress and its mirrors; elsewhere the same calls do nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scipy.sparse

from dgt.config import Config
from dgt.errors import TrainingError
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.runs import summary as summaries
from dgt.runs.facts import Facts
from dgt.runs.layout import METRICS
from dgt.runs.lines import Tail
from dgt.runs.lock import RunLock
from dgt.runs.measures import BYTES_SENT, SHOWN, Metrics, NodeMetrics, recorded
from dgt.runs.messages import say
from dgt.runs.mirrors import Mirrors
from dgt.runs.sink import RunInfo
from dgt.runs.sinks.jsonl import Jsonl
from dgt.runs.sinks.progress import ProgressOfRun

LONGEST_WAIT = 30.0  # seconds for mirrors at the end; less where ranks give up on each other earlier


class RunLogger:
    """Writes one run: what it is (`Facts`), what it measures (the sinks), and how it ended.

    config     of the run; its `run_dir` was claimed before
    nodes      how many there are
    speaks     whether this is rank 0
    start      names this start of the run; `command` is what the user typed
    simulated  whether there are no ranks at all
    lock       this process's claim to the directory
    since      when the run was started, if that is not now
    """

    def __init__(
        self,
        config: Config,
        nodes: int,
        speaks: bool,
        start: str = "",
        command: str = "",
        simulated: bool = False,
        lock: RunLock | None = None,
        since: float | None = None,
    ) -> None:
        self.path = Path(config.run_dir or "")
        self._config, self._nodes, self._speaks, self._simulated = config, nodes, speaks, simulated
        self._about, self._lock = {"start": start, "command": command}, lock
        self._tail = Tail(SHOWN, config.iterations)
        self._warned: set[str] = set()
        self._facts = Facts(self.path, config.to_dict(), self._say_once)
        self._started = time.time() if since is None else since

    def start(
        self, first: int, history: Path | None = None, last_kept: int | None = None, under_way: bool = False
    ) -> None:
        """Open the files; a run that goes on from iteration `first` keeps what was measured, there too if not said.

        `history` is the metrics.jsonl of the run that is continued. Where nothing can be written a run does not begin,
        and one that is `under_way` goes on.
        """
        if not self._speaks:
            return
        assert self._config.run_dir, "decided before the ranks start"
        if self._lock is not None:
            self._lock.take_over()  # from a rank 0 that was lost; this one may hold it already
        if last_kept is None:
            last_kept = first if first else -1
        self._open_sinks(history)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            source = self._jsonl.source
            self._tail.read(source / METRICS, last_kept)
            self._facts.start(source, last_kept)
            self._jsonl.start(last_kept)
        except OSError as error:
            if not under_way:
                raise TrainingError(f"run_dir={self.path}: cannot write there ({error.strerror})") from None
            self._say_once(f"run_dir={self.path}: {error.strerror}; the run goes on, and writes it later if it can")
        self._jsonl.flush()
        self._progress.start(last_kept)
        self._mirrors = Mirrors(self._config.logger, self._run, say)
        self._mirrors.start(last_kept)
        if first and not under_way:
            self._event({"iteration": first, "event": "resumed", "words": f"resumed at iteration {first}"})

    def _open_sinks(self, history: Path | None) -> None:
        config = self._config
        label = f"{config.weights.name} {config.topology.name} {config.strategy.name}"
        before = None if history is None else history.parent
        self._run = RunInfo(self.path, config.to_dict(), label, config.iterations, history=before)
        self._jsonl = Jsonl(self._run, Jsonl.Settings(), self._made_again)
        self._progress = ProgressOfRun(self._run, ProgressOfRun.Settings())

    def _made_again(self) -> None:
        """Somebody has removed the run directory, or some of its files: write all that is known anew."""
        self._say_once(f"run_dir={self.path}: removed while the run goes on; its files are written again")
        self._facts.write_again()

    def _say_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            say(words)

    def environment(self, facts: Mapping[str, Any] | None) -> None:
        """Where the run takes place: versions, hosts, devices; None on ranks that do not know."""
        if self._speaks and facts is not None:
            self._facts.environment({**facts, **self._about})

    def network(
        self,
        iteration: int,
        weights: Weights,
        W: scipy.sparse.csr_array | None,
        members: list[int] | None = None,
        graph: Topology | None = None,
    ) -> None:
        """From this iteration on, nodes of these weights mix by W; `members` are their names where some were lost.

        On a schedule, `graph`, W is the mean of its exchanges.
        """
        if self._speaks and W is not None:
            self._facts.network(iteration, weights, W, members, graph)

    def pause(self) -> None:
        """Before the network changes: close the files, which another rank 0 may open then."""
        self.close()
        self._speaks = False

    def go_on(self, first: int, words: str, members: list[int], weights: Weights, speaks: bool) -> None:
        """The network has changed: tell it, note it in events.jsonl; a new rank 0 takes over the files.

        What was measured at iteration `first` with those who are lost is measured anew.
        """
        self._nodes = len(members)
        if speaks:
            self._take_files(first, last_kept=first - 1)
            self.membership(first, words, members, weights)
        elif self._lock is not None:
            self._lock.release()

    def membership(self, iteration: int, words: str, members: list[int], weights: Weights) -> None:
        """Say and note who makes up the network from this iteration on, and of which weights: the objective."""
        if self._speaks:
            say(words)
            event = {"iteration": iteration, "event": "membership", "members": members, "weights": weights.tolist()}
            self._event({**event, "words": words})

    def take_over(self, iteration: int) -> None:
        """Write what is left to write after the last evaluation, in place of a rank 0 that is lost."""
        if not self._speaks:
            self._take_files(iteration, last_kept=iteration)

    def _take_files(self, first: int, last_kept: int) -> None:
        self._speaks = True
        self.start(first, last_kept=last_kept, under_way=True)

    def stopped(self, iteration: int, words: str) -> None:
        """The run was asked to stop: close the files of a run that is to go on later."""
        if self._speaks:
            self._event({"iteration": iteration, "event": "stopped", "start": self._about["start"], "words": words})
        self.close()

    def _event(self, event: dict[str, Any]) -> None:
        self._jsonl.event(event)
        self._mirrors.event(event)

    def check(self) -> None:
        """Raise if another run has taken the directory."""
        if self._speaks and self._lock is not None:
            self._lock.check()

    def record(self, iteration: int, metrics: Metrics, nodes: NodeMetrics | None = None) -> None:
        """One evaluation: metrics of the network, [copies] each, and of every node, [nodes] each."""
        if not self._speaks:
            return
        self.check()
        values = {name: float(value[0]) for name, value in recorded(metrics).items()}
        values[BYTES_SENT.metric] = int(values[BYTES_SENT.metric])
        of_nodes = None if nodes is None else self._facts.of_nodes(nodes)
        self._tail.add({"iteration": iteration, **values})
        for sink in (self._jsonl, self._progress, self._mirrors):
            sink.record(iteration, values, of_nodes)

    def close(self) -> None:
        """Close the files; mirrors that are slow are waited for, within bounds."""
        if self._speaks:
            self._progress.close()
            self._jsonl.close()
            self._mirrors.close(min(LONGEST_WAIT, self._config.timeout / 2))

    def finish(self, show: str = "text", early: str = "", more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Close the files, write summary.json with `more` in it, show it as text, json or nothing, and return it.

        early  why the run has finished before its last iteration, if it has
        """
        if not self._speaks:
            return {}
        if early:
            say(early)
            self._event({"iteration": self._tail.last["iteration"], "event": "stopped_early", "words": early})
            self._jsonl.flush()
            self._tail = self._tail.ended(self.path / METRICS)
        seconds = time.time() - self._started
        summary = summaries.summary_of(
            self._config, self.path, self._nodes, self._tail, seconds, simulated=self._simulated, early=early
        ) | dict(more or {})
        self._progress.close()
        self._jsonl.finish(summary)
        self._mirrors.finish(summary)
        self.close()
        summaries.show(summary, show)
        summaries.advise(self._config, self._tail.last)
        return summary
