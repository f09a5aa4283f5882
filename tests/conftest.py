"""Shared by all tests: ranks are started through dgt's own launcher, from one warm process per test session."""

from __future__ import annotations

import pytest

from dgt import launch


@pytest.fixture(scope="session", autouse=True)
def _warm_launcher() -> None:
    # forked ranks import the main module again, which is pytest here: let the warm process have it already
    launch.PRELOAD.append("pytest")
