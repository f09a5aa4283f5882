"""The files and lines of a run. Rank 0 writes and speaks; elsewhere the same calls do nothing."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import scipy.sparse
import torch
import yaml
from tqdm import tqdm

from dgt.checks import ConfigError, TrainingError
from dgt.config import Config
from dgt.network.record import network_record, recorded_nodes
from dgt.network.weights import Weights
from dgt.training.metrics import Metrics, NodeMetrics

ORDER = (
    "loss", "grad_norm", "distance", "accuracy", "average_accuracy", "test_loss", "average_test_loss", "consensus",
    "tracking_residual", "seconds", "evaluation_share", "bytes_sent",
)  # fmt: skip
SHOWN = ("loss", "grad_norm", "distance", "accuracy", "average_accuracy", "consensus")
RESULTS = ("metrics.jsonl", "compare.csv", "bench.json")  # one of these makes a directory a finished run
DEFAULT = "gradient_tracking"
EVALUATION_LIMIT = 0.5  # above this share of the time, say how to spend less


def claim_run_dir(config: Config) -> str:
    """The directory of a training run; the default is runs/<time>-<problem>-<weights>-<topology>-<strategy>."""
    names = [config.problem.name, config.weights.name, config.topology.name, config.strategy.name]
    label = "-".join(names + [config.algorithm.name] * (config.algorithm.name != DEFAULT))
    return claim(config.run_dir, label, go_on=config.resume == "auto" or _is_own(config.resume, config.run_dir))


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
    try:
        for counter in itertools.count(2):
            try:
                path.mkdir(parents=True, exist_ok=run_dir is not None)
                break
            except FileExistsError:
                if run_dir is not None:
                    raise
                path = default.with_name(f"{default.name}-{counter}")
        if not go_on and any((path / result).exists() for result in RESULTS):
            raise ConfigError(f"run_dir={path}: already holds a run; choose another directory, or resume=auto")
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"run_dir={path}: cannot write there ({why}); choose another directory") from None
    return str(path)


def check_logger(config: Config) -> None:
    """Raise if TensorBoard is wanted but not installed."""
    if config.logger.name == "tensorboard":
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise ConfigError("logger=tensorboard: not installed; pip install 'dgt[tensorboard]'") from None


def in_words(values: Mapping[str, float]) -> str:
    """The metrics people look at, and those of a problem of their own."""
    own = [name for name in values if name not in ORDER and name != "iteration"]
    return "  ".join(f"{name} {values[name]:.4g}" for name in [*SHOWN, *own] if name in values)


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


class Lines:
    """A file that grows line by line; what does not fit on a full disk waits for the next line."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("ab", buffering=0)
        self._unwritten = bytearray()

    def write(self, record: Mapping[str, Any]) -> None:
        """The run does not end for want of a line."""
        fitted = not self._unwritten
        self._unwritten += (json.dumps(record) + "\n").encode()
        try:
            while self._unwritten:
                del self._unwritten[: self.file.write(self._unwritten)]
        except OSError as error:
            if fitted:
                _say(f"{self.path.name}: {error.strerror}; the run goes on, and writes it later if it can")


class RunLogger:
    """Writes the files of one run, and shows its progress.

    config.yaml, environment.json   what was asked for, and where it runs
    network.json                    weights, degrees, edges and mixing rows; anew when nodes are lost
    metrics.jsonl, nodes.jsonl      the network's metrics, and those of every node, one line per evaluation
    events.jsonl                    nodes that were lost, a stop that was asked for
    summary.json                    at the end
    """

    def __init__(
        self, config: Config, nodes: int, speaks: bool, start: str = "", command: str = "", simulated: bool = False
    ) -> None:
        self.path = Path(config.run_dir or "")
        self._config, self._nodes, self._speaks, self._simulated = config, nodes, speaks, simulated
        self._about = {"start": start, "command": command}
        self._records: list[dict[str, Any]] = []
        self._networks: list[dict[str, Any]] = []
        self._recorded: Any = slice(None)
        self._board: Any = None
        self._started = time.time()

    def start(self, first: int, history: Path | None = None, last_kept: int | None = None) -> None:
        """Open the files; a run that goes on from iteration `first` keeps what was measured, there too if not said."""
        if not self._speaks:
            return
        config = self._config
        assert config.run_dir, "decided before the ranks start"
        metrics = self.path / "metrics.jsonl"
        if last_kept is None:
            last_kept = first if first else -1
        source = (metrics if metrics.exists() or history is None else history).parent
        self._records = records_until(last_kept, source / "metrics.jsonl")
        self._networks = _networks_until(last_kept, source / "network.json")
        of_nodes = records_until(last_kept, source / "nodes.jsonl")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _replace(self.path / "config.yaml", yaml.safe_dump(config.to_dict(), sort_keys=False))
            _replace(metrics, "".join(json.dumps(record) + "\n" for record in self._records))
            _replace(self.path / "nodes.jsonl", "".join(json.dumps(record) + "\n" for record in of_nodes))
        except OSError as error:
            raise TrainingError(f"run_dir={self.path}: cannot write there ({error.strerror})") from None
        self._metrics, self._of_nodes = Lines(metrics), Lines(self.path / "nodes.jsonl")
        if config.logger.name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.path / "tensorboard"), purge_step=first + 1 if first else None)
        label = f"{config.weights.name} {config.topology.name} {config.strategy.name}"
        self._progress = Progress(config.iterations, label, first=first)

    def environment(self, facts: Mapping[str, Any] | None) -> None:
        """Where the run takes place: versions, hosts, devices."""
        if self._speaks and facts is not None:
            self._write_json("environment.json", {**facts, **self._about})

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
        self._write_json("network.json", self._networks)

    def _write_json(self, name: str, value: Any) -> None:
        try:
            _replace(self.path / name, json.dumps(value) + "\n")
        except OSError as error:
            _say(f"{name}: {error.strerror}; the run goes on without it")

    def go_on(self, first: int, words: str, members: list[int], speaks: bool) -> None:
        """The network has changed: tell it, note it in events.jsonl; a new rank 0 takes over the files.

        What was measured at iteration `first` with those who are lost is measured anew.
        """
        self._nodes = len(members)
        if speaks:
            if self._speaks:
                self.close()
            self._speaks = True
            self.start(first, last_kept=first - 1)
            _say(words)
            self._event({"iteration": first, "event": "membership", "members": members, "words": words})

    def stopped(self, iteration: int, words: str) -> None:
        """The run was asked to stop: close the files of a run that is to go on later."""
        self.close()
        if self._speaks:
            self._event({"iteration": iteration, "event": "stopped", "start": self._about["start"], "words": words})

    def _event(self, event: dict[str, Any]) -> None:
        try:
            with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
        except OSError as error:
            _say(f"events.jsonl: {error.strerror}")

    def record(self, iteration: int, metrics: Metrics, nodes: NodeMetrics | None = None) -> None:
        """One evaluation: metrics of the network, [copies] each, and of every node, [nodes] each."""
        if not self._speaks:
            return
        known = [name for name in ORDER if name in metrics]
        values = {name: float(metrics[name][0]) for name in [*known, *sorted(metrics.keys() - set(known))]}
        values["bytes_sent"] = int(values["bytes_sent"])
        self._records.append({"iteration": iteration, **values})
        self._metrics.write(self._records[-1])
        if nodes is not None:
            short = {name: [float(f"{value:.6g}") for value in each[self._recorded]] for name, each in nodes.items()}
            self._of_nodes.write({"iteration": iteration, **short})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, iteration)
        self._progress.update(iteration, values)

    def close(self) -> None:
        """Close the files."""
        if not self._speaks:
            return
        self._progress.close()
        self._metrics.file.close()
        self._of_nodes.file.close()
        if self._board is not None:
            self._board.close()

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
            "final": self._records[-1],
            "last_fifth": last_fifth(self._records),
            "wall_seconds": round(time.time() - self._started, 3),
            "torch": torch.__version__,
            **({"simulated": True} if self._simulated else {}),
        }
        text = json.dumps(summary, indent=2)
        try:
            _replace(self.path / "summary.json", text + "\n")
        except OSError as error:
            _say(f"summary.json: {error.strerror}")
        if show == "text":
            final = self._records[-1]
            text = f"iteration {final['iteration']}  {in_words(final)}\nrun directory  {self.path}"
        if show != "nothing":
            print(text, flush=True)
        share = self._records[-1]["evaluation_share"]
        if share > EVALUATION_LIMIT and hasattr(config.problem, "test_samples"):
            hint = "a larger eval_every or fewer problem.test_samples is quicker"
            print(f"evaluations took {share:.0%} of the time; {hint}", file=sys.stderr, flush=True)
        return summary


def _say(words: str) -> None:
    print(f"dgt: {words}", file=sys.stderr, flush=True)


def _replace(path: Path, text: str) -> None:
    """All of it or nothing: what was there before stays until then."""
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def records_until(iteration: int, path: Path) -> list[dict[str, Any]]:
    """What was measured up to that iteration; half a line at the end of a run that crashed is left out."""
    found = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return [record for record in found if record["iteration"] <= iteration]


def _networks_until(iteration: int, path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [network for network in found if network["iteration"] <= iteration]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def last_fifth(records: list[dict[str, Any]]) -> dict[str, float]:
    """Mean of each metric over the last fifth of the iterations."""
    start = 0.8 * records[-1]["iteration"]
    late = [record for record in records if record["iteration"] >= start]
    names = [name for name in SHOWN if all(name in record for record in late)]
    return {name: math.fsum(record[name] for record in late) / len(late) for name in names}
