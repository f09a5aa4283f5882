"""Shared by all tests: ranks are started through dgt's own launcher, from one warm process per test session."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgt.data import cifar10
from dgt.launching import forkserver
from dgt.processes import environment, output


@pytest.fixture(scope="session", autouse=True)
def _warm_launcher() -> None:
    # forked ranks import the main module again, which is pytest here: let the warm process have it already
    forkserver.PRELOAD.append("pytest")


@pytest.fixture(autouse=True)
def _log_as_the_command_does() -> Iterator[None]:
    """What is logged stands on standard error, also where a test calls a function that only the command would."""
    logger = logging.getLogger("dgt")
    before = list(logger.handlers), logger.level, logger.propagate
    output.log_to_stderr(is_main=True)
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def _signals_as_usual() -> None:
    # children inherit what is ignored: shells ignore SIGINT in background jobs, the command signals as it leaves
    usual = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2), signal.SIG_DFL)
    for number, handler in {**usual, signal.SIGINT: signal.default_int_handler}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


# mostly wait: for Slurm's timers, for links that are cut, for firewalls
WAITING = ("test_slurm.py", "test_sweeps.py", "test_hosts.py", "test_ports.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The full count of random trials is for `pytest -m trials`; a few of each always run."""
    if "trials" not in config.option.markexpr:
        trials = [item for item in items if item.get_closest_marker("trials")]
        config.hook.pytest_deselected(items=trials)
        items[:] = [item for item in items if item not in trials]
    for item in items:  # two processes with `--dist loadgroup`; within each, one test after the other
        waits = item.path.name in WAITING and item.path.parent.name == "distributed"
        item.add_marker(pytest.mark.xdist_group("waiting" if waits else "computing"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Where the real CIFAR-10 is, fetched if need be."""
    cifar10.ensure(environment.cache_dir())
    return environment.cache_dir()
