"""One reason among the notes of many ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dgt.errors import ConfigError, PeerError, TrainingError
from dgt.processes import failures
from dgt.processes.failures import Failure


def note(rank: int, kind: str, reason: str, time: float, second_hand: bool = False) -> Failure:
    return Failure(rank, kind, reason, 1, time, "host1", second_hand=second_hand)


MISSED = note(0, "PeerError", "node 0: another rank is gone", 1.0, second_hand=True)
NEIGHBOUR = note(2, "PeerError", "node 2: neighbour 1 is gone", 2.0)
CAUSE = note(1, "TrainingError", "node 1: the gradient is not finite", 3.0)
LATER = note(3, "ValueError", "bad", 4.0)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ([MISSED, NEIGHBOUR, CAUSE, LATER], CAUSE),  # absence is never the cause where somebody knows better
        ([MISSED, NEIGHBOUR], NEIGHBOUR),  # a neighbour knows who it is
        ([MISSED], MISSED),
        ([LATER, CAUSE], CAUSE),
    ],
)
def test_the_reason_behind_the_others(found: list[Failure], first: Failure) -> None:
    assert failures.root_cause(found) == first


def test_a_rank_that_only_followed_comes_last() -> None:
    followed = note(0, "Stopped", "stopped, as another rank was asked to", 1.0, second_hand=True)
    asked = note(1, "Stopped", "stopped by SIGTERM", 2.0)
    assert failures.root_cause([followed, asked]) == asked


def test_fields_and_not_words_say_who_knows_which_peer_is_missing() -> None:
    direct = Failure.of(2, PeerError("x", peers=[1]))
    indirect = Failure.of(0, PeerError("neighbour, neighbour"))
    assert (direct.second_hand, indirect.second_hand) == (False, True)
    assert failures.root_cause([indirect, direct]) == direct


def test_notes_of_an_older_version_are_read(tmp_path: Path) -> None:
    """They have no field for it: the earliest is the root cause."""
    old = {"rank": 2, "kind": "PeerError", "reason": "node 2: neighbour 1 is gone", "code": 1, "time": 2.0}
    (tmp_path / "rank-00002.json").write_text(json.dumps(old))
    assert failures.notes(tmp_path) == [Failure(2, "PeerError", "node 2: neighbour 1 is gone", 1, 2.0)]


def test_expected_errors_are_a_line_and_others_have_a_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        unexpected = Failure.of(3, error)
    assert unexpected.line == "rank 3: ValueError: two lines"
    assert "test_failures.py" in unexpected.traceback
    assert Failure.of(0, TrainingError("why")).traceback == ""
    assert [Failure.of(0, error).code for error in (ConfigError("x"), TrainingError("x"))] == [2, 1]


def test_notes_survive_and_the_last_start_of_a_run_counts(tmp_path: Path) -> None:
    CAUSE.write(tmp_path / "failures" / "20260101-000000")
    NEIGHBOUR.write(tmp_path / "failures" / "20260102-000000")
    MISSED.write(tmp_path / "failures" / "20260102-000000")
    assert failures.of_run(tmp_path) == [MISSED, NEIGHBOUR]
    assert failures.lines(tmp_path)[-1] == "first: node 2: neighbour 1 is gone"
    (tmp_path / "summary.json").touch()
    assert failures.lines(tmp_path) == ["the run finished"]
    os.utime(tmp_path / "summary.json", (0, 0))
    assert failures.of_run(tmp_path) == [MISSED, NEIGHBOUR], "it was made longer, and failed"


@pytest.mark.parametrize("content", [b'{"rank": 1, "ki', b"[1]", b"\xff\x00"])
def test_a_note_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, content: bytes) -> None:
    CAUSE.write(tmp_path / "failures" / "1")
    (tmp_path / "failures" / "1" / "rank-00000.json").write_bytes(content)
    assert "rank-00000.json cannot be read (damaged)" in failures.lines(tmp_path)[0]
    assert failures.lines(tmp_path)[-1] == f"first: {CAUSE.reason}"


def test_a_run_without_notes_was_ended_from_outside(tmp_path: Path) -> None:
    assert "ended from outside" in failures.lines(tmp_path)[0]


def test_a_full_disk_does_not_hide_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="why"), failures.noted(tmp_path / "file" / "below", 0):
        raise TrainingError("why")


def test_torchrun_is_told_the_cause_before_what_followed_in_the_same_second(tmp_path: Path) -> None:
    for each in (CAUSE, note(2, PeerError.__name__, "node 2: neighbour 1 is gone", 3.4)):
        each.write_for_torchrun(tmp_path / str(each.rank))
    told = {rank: json.loads((tmp_path / str(rank)).read_text())["message"] for rank in (1, 2)}
    assert told[1]["message"] == CAUSE.reason
    assert int(told[1]["extraInfo"]["timestamp"]) < int(told[2]["extraInfo"]["timestamp"])
