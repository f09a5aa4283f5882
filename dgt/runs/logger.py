"""The files and lines of a run. Rank 0 writes and speaks; elsewhere the same calls do nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import scipy.sparse
import torch
import yaml
from tqdm import tqdm

from dgt.config import Config
from dgt.config.checks import check_name
from dgt.config.files import appending, parsed_json, read_text, write
from dgt.errors import ConfigError, TrainingError
from dgt.network.weights import Weights
from dgt.runs.folders import has, holds_checkpoints
from dgt.runs.layout import (
    CONFIG,
    ENVIRONMENT,
    EVENTS,
    METRICS,
    NETWORK,
    NODES,
    PROBE_PREFIX,
    RESULTS,
    SUMMARY,
    SUPERSEDED,
    TENSORBOARD,
)
from dgt.runs.lines import Lines, Tail, cut
from dgt.runs.lock import RunLock
from dgt.runs.measures import BYTES_SENT, EVALUATION_SHARE, SHOWN, Metrics, NodeMetrics, in_words, recorded
from dgt.runs.naming import label_of
from dgt.runs.record import network_record, recorded_nodes

MOST_NETWORKS = 256 * 2**20  # bytes of network.json that are read
EVALUATION_LIMIT = 0.5  # above this share of the time, say how to spend less


def claim_run_dir(config: Config, swept: Mapping[str, str] | None = None) -> str:
    """The directory of a training run; the default is runs/<time>-<problem>-<weights>-<topology>-<strategy>-<swept>."""
    return claim(config.run_dir, label_of(config, swept or {}), goes_on(config))


def goes_on(config: Config) -> bool:
    """Whether this run continues what its directory holds; a warm start is another run."""
    return config.resume == "auto" or (not config.warm_start and _is_own(config.resume, config.run_dir))


def _is_own(resume: str, run_dir: str | None) -> bool:
    """Whether a run is resumed in its own directory."""
    if resume == "none" or run_dir is None:
        return False
    source = Path(resume).resolve()
    return Path(run_dir).resolve() in (source, source.parent, source.parent.parent)


def claim(run_dir: str | None, label: str, go_on: bool = False) -> str:
    """Make a directory for results and return it; one that holds results is written to only to go on with them.

    The default is runs/<time>-<label>, with a counter if that is taken.
    """
    default = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{label}"
    path = Path(run_dir or default)
    check_name("run_dir", str(path))
    try:
        for counter in itertools.count(2):
            try:
                path.mkdir(parents=True, exist_ok=run_dir is not None)
                break
            except FileExistsError:
                if run_dir is not None:
                    raise
                path = default.with_name(f"{default.name}-{counter}")
        if not go_on:
            refuse_results(path)
        probe = path / f"{PROBE_PREFIX}{secrets.token_hex(8)}"  # a name that no other start has
        probe.touch(exist_ok=False)
        probe.unlink(missing_ok=True)
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"run_dir={path}: cannot write there ({why}); choose another directory") from None
    return str(path)


def refuse_results(path: Path) -> None:
    """A run that begins needs a directory without the results and checkpoints of another."""
    if any(has(path / result) for result in RESULTS) or holds_checkpoints(path):
        raise ConfigError(f"run_dir={path}: already holds a run; choose another directory, or resume=auto")


def check_logger(config: Config) -> None:
    """Raise if TensorBoard is wanted but not installed."""
    if config.logger.name == "tensorboard":
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise ConfigError("logger=tensorboard: not installed; pip install 'dgt[tensorboard]'") from None


class Progress:
    """A bar on a terminal, a few plain lines elsewhere, nothing on ranks that do not speak; on standard error."""

    def __init__(
        self, total: int, label: str, speaks: bool = True, lines: int = 10, unit: str = "iteration", first: int = 0
    ) -> None:
        shows_bar = speaks and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=label, unit="it", leave=False, initial=first) if shows_bar else None
        self._speaks, self._label, self._total, self._unit = speaks, label, total, unit
        self._every = max(total / lines, 1.0)
        self._next_line = float(first) if lines > 1 else self._every

    def update(self, done: int, values: Mapping[str, float]) -> None:
        text = in_words(values)
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._speaks and (done >= self._next_line or done == self._total):
            self._next_line += self._every
            print(f"{self._label}  {self._unit} {done}/{self._total}  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class RunLogger:
    """Writes the files of one run, and shows its progress.

    config.yaml, environment.json   what was asked for, and where it runs
    network.json                    weights, degrees, edges and mixing rows; anew when nodes are lost
    metrics.jsonl, nodes.jsonl      the network's metrics, and those of every node, one line per evaluation
    metrics.superseded.jsonl        lines of metrics.jsonl that were measured anew after a resume
    events.jsonl                    nodes that were lost, a stop that was asked for
    summary.json                    at the end
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
    ) -> None:
        self.path = Path(config.run_dir or "")
        self._config, self._nodes, self._speaks, self._simulated = config, nodes, speaks, simulated
        self._about, self._lock = {"start": start, "command": command}, lock
        self._tail = Tail(SHOWN, config.iterations)
        self._warned: set[str] = set()
        self._facts: Mapping[str, Any] | None = None
        self._networks: list[dict[str, Any]] = []
        self._recorded: Any = slice(None)
        self._board: Any = None
        self._started = time.time()

    def start(
        self, first: int, history: Path | None = None, last_kept: int | None = None, under_way: bool = False
    ) -> None:
        """Open the files; a run that goes on from iteration `first` keeps what was measured, there too if not said.

        What was measured later than that is measured anew; its lines stay in `SUPERSEDED`. Where nothing can be written
        a run does not begin, and one that is `under_way` goes on.
        """
        if not self._speaks:
            return
        config = self._config
        assert config.run_dir, "decided before the ranks start"
        if self._lock is not None:
            self._lock.take_over()  # from a rank 0 that was lost; this one may hold it already
        metrics, nodes = self.path / METRICS, self.path / NODES
        if last_kept is None:
            last_kept = first if first else -1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            source = (metrics if has(metrics) or history is None else history).parent
            self._tail.read(source / METRICS, last_kept)
            self._networks = _networks_until(last_kept, source / NETWORK)
            self._write_config()
            cut(source / METRICS, metrics, last_kept, self.path / SUPERSEDED if source == self.path else None)
            cut(source / nodes.name, nodes, last_kept)
        except OSError as error:
            if not under_way:
                raise TrainingError(f"run_dir={self.path}: cannot write there ({error.strerror})") from None
            self._say_once(f"run_dir={self.path}: {error.strerror}; the run goes on, and writes it later if it can")
        self._metrics, self._of_nodes = Lines(metrics, _say, self._made_again), Lines(nodes, _say, self._made_again)
        self._metrics.flush()
        self._of_nodes.flush()
        if config.logger.name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            with self._board_may_fail():
                self._board = SummaryWriter(str(self.path / TENSORBOARD), purge_step=first + 1 if first else None)
        label = f"{config.weights.name} {config.topology.name} {config.strategy.name}"
        self._progress = Progress(config.iterations, label, first=first)

    def _write_config(self) -> None:
        write(self.path / CONFIG, yaml.safe_dump(self._config.to_dict(), sort_keys=False))

    def _made_again(self) -> None:
        """Somebody has removed the run directory, or some of its files: write all that is known anew."""
        self._say_once(f"run_dir={self.path}: removed while the run goes on; its files are written again")
        with contextlib.suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            self._write_config()
        self.environment(self._facts)
        if self._networks:
            self._write_json(NETWORK, self._networks)

    def _say_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            _say(words)

    def environment(self, facts: Mapping[str, Any] | None) -> None:
        """Where the run takes place: versions, hosts, devices."""
        self._facts = facts
        if self._speaks and facts is not None:
            self._write_json(ENVIRONMENT, {**facts, **self._about})

    def network(
        self, iteration: int, weights: Weights, W: scipy.sparse.csr_array | None, members: list[int] | None = None
    ) -> None:
        """From this iteration on, nodes of these weights mix by W; `members` are their names where some were lost."""
        if not self._speaks or W is None:
            return
        record = network_record(iteration, weights, W, members)
        self._recorded = recorded_nodes(weights)
        before = [network for network in self._networks if network["iteration"] < iteration]
        unchanged = before and {**before[-1], "iteration": iteration} == json.loads(json.dumps(record))
        self._networks = before if unchanged else [*before, record]
        self._write_json(NETWORK, self._networks)

    def _write_json(self, name: str, value: Any) -> None:
        try:
            write(self.path / name, json.dumps(value) + "\n")
        except OSError as error:
            self._say_once(f"{name}: {error.strerror}; the run goes on without it")

    def go_on(self, first: int, words: str, members: list[int], speaks: bool) -> None:
        """The network has changed: tell it, note it in events.jsonl; a new rank 0 takes over the files.

        What was measured at iteration `first` with those who are lost is measured anew.
        """
        self._nodes = len(members)
        if speaks:
            if self._speaks:
                self.close()
            self._take_files(first, last_kept=first - 1)
            self.membership(first, words, members)

    def membership(self, iteration: int, words: str, members: list[int]) -> None:
        """Say and note who makes up the network from this iteration on."""
        if self._speaks:
            _say(words)
            self._event({"iteration": iteration, "event": "membership", "members": members, "words": words})

    def take_over(self, iteration: int) -> None:
        """Write what is left to write after the last evaluation, in place of a rank 0 that is lost."""
        if not self._speaks:
            self._take_files(iteration, last_kept=iteration)

    def _take_files(self, first: int, last_kept: int) -> None:
        self._speaks = True
        self.start(first, last_kept=last_kept, under_way=True)

    def stopped(self, iteration: int, words: str) -> None:
        """The run was asked to stop: close the files of a run that is to go on later."""
        self.close()
        if self._speaks:
            self._event({"iteration": iteration, "event": "stopped", "start": self._about["start"], "words": words})

    def _event(self, event: dict[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with appending(self.path / EVENTS) as file:
                file.write((json.dumps(event) + "\n").encode())
        except OSError as error:
            _say(f"{EVENTS}: {error.strerror}")

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
        self._tail.add({"iteration": iteration, **values})
        self._metrics.write(self._tail.last)
        if nodes is not None:
            short = {name: [float(f"{value:.6g}") for value in each[self._recorded]] for name, each in nodes.items()}
            self._of_nodes.write({"iteration": iteration, **short})
        with self._board_may_fail():
            for name, value in values.items() if self._board is not None else ():
                self._board.add_scalar(name, value, iteration)
        self._progress.update(iteration, values)

    def close(self) -> None:
        """Close the files."""
        if not self._speaks:
            return
        self._progress.close()
        self._metrics.close()
        self._of_nodes.close()
        with self._board_may_fail():
            if self._board is not None:
                self._board.close()

    @contextlib.contextmanager
    def _board_may_fail(self) -> Iterator[None]:
        """TensorBoard's own thread fails on a full disk, and raises that at the next call, every time."""
        try:
            yield
        except OSError as error:
            self._board = None
            _say(f"tensorboard: {error.strerror or error}; the run goes on without it")

    def finish(self, show: str = "text") -> dict[str, Any]:
        """Close the files, write summary.json, show it as text, json or nothing, and return it."""
        self.close()
        if not self._speaks:
            return {}
        config = self._config
        summary = {
            "run_dir": str(self.path),
            "nodes": self._nodes,
            "strategy": config.strategy.name,
            "topology": config.topology.name,
            "weights": config.weights.name,
            "algorithm": config.algorithm.name,
            "problem": config.problem.name,
            "seed": config.seed,
            "lr": config.lr,
            "iterations": config.iterations,
            "final": self._tail.last,
            "last_fifth": self._tail.means(),
            "wall_seconds": round(time.time() - self._started, 3),
            "torch": torch.__version__,
            **({"simulated": True} if self._simulated else {}),
        }
        text = json.dumps(summary, indent=2)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(self.path / SUMMARY, text + "\n")
        except OSError as error:
            _say(f"{SUMMARY}: {error.strerror}")
        if show == "text":
            final = self._tail.last
            text = f"iteration {final['iteration']}  {in_words(final)}\nrun directory  {self.path}"
        if show != "nothing":
            print(text, flush=True)
        share = self._tail.last[EVALUATION_SHARE.metric]
        if share > EVALUATION_LIMIT and hasattr(config.problem, "test_samples"):
            hint = "a larger eval_every or fewer problem.test_samples is quicker"
            print(f"evaluations took {share:.0%} of the time; {hint}", file=sys.stderr, flush=True)
        return summary


def _say(words: str) -> None:
    print(f"dgt: {words}", file=sys.stderr, flush=True)


def _networks_until(iteration: int, path: Path) -> list[dict[str, Any]]:
    try:
        found = parsed_json(read_text(path, MOST_NETWORKS))
        return [network for network in found if network["iteration"] <= iteration]
    except (OSError, ValueError, KeyError, TypeError):
        return []
