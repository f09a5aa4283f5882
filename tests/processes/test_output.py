"""The log of the command: its lines on standard error, on which ranks, and what a library user can do with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from dgt.processes import output

DGT = logging.getLogger("dgt")
LOG = logging.getLogger("dgt.processes.somewhere")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    before = DGT.handlers[:], DGT.level, DGT.propagate
    DGT.handlers[:], DGT.propagate = [], True
    yield
    DGT.handlers[:], DGT.propagate = before[0], before[2]
    DGT.setLevel(before[1])


def log_one_of_each() -> None:
    LOG.info("notice")
    LOG.error("broken")
    LOG.warning("mine", extra=output.EVERY_RANK)
    LOG.error("Traceback ...\n", extra=output.VERBATIM)


def test_rank_0_prints_all_and_other_ranks_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    output.log_to_stderr(is_main=True)
    log_one_of_each()
    assert capsys.readouterr().err == "dgt: notice\ndgt: error: broken\ndgt: mine\nTraceback ...\n\n"
    output.rank_changed(is_main=False)
    log_one_of_each()
    assert capsys.readouterr().err == "dgt: error: broken\ndgt: mine\nTraceback ...\n\n"
    assert len(DGT.handlers) == 1


def test_a_library_user_decides_without_the_command(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    output.rank_changed(is_main=True)
    with caplog.at_level(logging.INFO, "dgt"):
        LOG.info("notice")
    assert (caplog.messages, capsys.readouterr().err) == (["notice"], "")


def test_a_standard_error_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    output.log_to_stderr(is_main=True)
    for stream in (Broken(), None):
        monkeypatch.setattr("sys.stderr", stream)
        LOG.error("nobody reads this")
