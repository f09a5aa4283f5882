"""Shared by all tests: ranks are started through dgt's own launcher, from one warm process per test session."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgt import forkserver, world
from dgt.data import cifar10


@pytest.fixture(scope="session", autouse=True)
def _warm_launcher() -> None:
    # forked ranks import the main module again, which is pytest here: let the warm process have it already
    forkserver.PRELOAD.append("pytest")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The full count of random trials is for `pytest -m trials`; a few of each always run."""
    if "trials" not in config.option.markexpr:
        trials = [item for item in items if item.get_closest_marker("trials")]
        config.hook.pytest_deselected(items=trials)
        items[:] = [item for item in items if item not in trials]


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Where the real CIFAR-10 is, fetched if need be."""
    cifar10.ensure(world.cache_dir())
    return world.cache_dir()
