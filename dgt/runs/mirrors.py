"""The sinks that were chosen besides the run's own files, each in a thread: slow or broken, they never end the run.

    mirrors = Mirrors(config.logger, run, say)
    mirrors.start(-1); mirrors.record(0, values, None); mirrors.close(seconds)

Calls are queued and made in their order. The first one that raises, be it for a full disk or a server that does not
answer, is one warning, and that sink gets no further calls.
"""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dgt.config import Config
from dgt.config.loggers import LoggerConfig
from dgt.errors import ConfigError, printable
from dgt.runs.messages import Say
from dgt.runs.sink import RunInfo, Sink

ALWAYS = ("jsonl", "progress")  # every run has these, in its own thread
MOST_WAITING = 10_000  # calls


def check_logger(config: Config) -> None:
    """Raise unless everything that was chosen is a sink, takes these settings, and has its package installed."""
    for name, kind, _ in config.logger.sinks():
        if not (isinstance(kind, type) and issubclass(kind, Sink)):
            raise ConfigError(f"logger._target_={name}: must be a class derived from dgt.runs.sink.Sink")
        if kind.package and importlib.util.find_spec(kind.package) is None:
            install = f"'dgt[{name}]'" if name in config.logger.names else kind.package
            raise ConfigError(f"logger={name}: not installed; pip install {install}")


class Mirrors:
    """All mirrors of one run; the calls of a `Sink`, made on each of them."""

    def __init__(self, logger: LoggerConfig, run: RunInfo, say: Say) -> None:
        chosen = [(name, kind, settings) for name, kind, settings in logger.sinks() if name not in ALWAYS]
        self._mirrors = [Mirror(name, kind, run, settings, say) for name, kind, settings in chosen]

    def start(self, recorded_until: int) -> None:
        self._call("start", recorded_until)

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        self._call("record", iteration, values, nodes)

    def event(self, event: Mapping[str, Any]) -> None:
        self._call("event", event)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._call("finish", summary)

    def close(self, seconds: float) -> None:
        """Wait until all calls are made, but no longer than that."""
        self._call("close")
        until = time.monotonic() + seconds
        for mirror in self._mirrors:
            mirror.wait(max(0.0, until - time.monotonic()))
        self._mirrors = []

    def _call(self, method: str, *arguments: Any) -> None:
        for mirror in self._mirrors:
            mirror.call(method, *arguments)


class Mirror:
    """One sink and the thread that calls it."""

    def __init__(self, name: str, kind: type[Sink], run: RunInfo, settings: Any, say: Say) -> None:
        self._name, self._say, self._failed = name, say, False
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(MOST_WAITING)
        self._import(kind.package)
        # a daemon: the interpreter does not wait for a server at its exit
        self._thread = threading.Thread(
            target=self._make_calls, args=(kind, run, settings), name=f"dgt-{name}", daemon=True
        )
        self._thread.start()

    def _import(self, package: str) -> None:
        """In the main thread: a process forked meanwhile would inherit the locks of a module that is half imported."""
        try:
            if package:
                importlib.import_module(package)
        except Exception as error:  # one that is installed may still be broken
            self._fail(str(error))

    def call(self, method: str, *arguments: Any) -> None:
        """Have this method called when those before it have been."""
        if not self._failed:
            try:
                self._calls.put_nowait((method, arguments))
            except queue.Full:
                self._fail(f"{MOST_WAITING} calls wait for it")

    def wait(self, seconds: float) -> None:
        """Until it is closed, or has failed."""
        if not self._failed:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._fail("does not answer")

    def _make_calls(self, kind: type[Sink], run: RunInfo, settings: Any) -> None:
        try:
            sink, method = kind(run, settings), ""
            while method != "close" and not self._failed:
                method, arguments = self._calls.get()
                getattr(sink, method)(*arguments)
        except Exception as error:  # whatever a package, a disk or a server comes up with
            self._fail(getattr(error, "strerror", None) or str(error) or type(error).__name__)

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"{self._name}: {printable(why)[:300]}; the run goes on without it")
