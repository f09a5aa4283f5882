"""Run directories of strangers: nothing is waited for, grows without end, or is written over; and what they say is
shown, not obeyed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dgt import cli
from dgt.commands.report import pages as command
from dgt.config import files, plain_yaml
from dgt.errors import ConfigError
from dgt.network import weights
from dgt.report import aggregate, figures
from dgt.report.html import page
from dgt.report.networks import graph_of, record_of
from dgt.runs import contents
from dgt.runs import searching as runs
from dgt.runs.reader import read
from dgt.runs.searching import search
from tests.runs.test_reader import LINES, crafted

pytestmark = pytest.mark.timeout(60)
READ = ("config.yaml", "metrics.jsonl", "nodes.jsonl", "events.jsonl", "network.json", "summary.json",
        "environment.json", "failures/1/rank-00000.json")  # fmt: skip
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b]0;owned\x07\r\n=1+1"


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "socket": _socket,
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe in `failures/` was waited for, and a link to /dev/zero there was read until the memory was full."""
    for name in READ:
        run_dir = crafted(tmp_path / name.replace("/", "-"), "open")
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).unlink(missing_ok=True)
        NO_FILES[kind](run_dir / name)
        found = read(run_dir)
        assert any(name.rsplit("/", 1)[-1] in note for note in found.notes), (name, found.notes)
        assert len(page([found])) > 1000
    code = 0
    try:
        cli.main(["doctor", str(run_dir)])  # the one with a note of a rank that is none
    except SystemExit as left:
        code = int(left.code or 0)
    assert code == 1
    assert "rank-00000.json cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["weights", "topology"])
def test_a_path_that_a_config_names_is_neither_waited_for_nor_read_for_ever(key: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "many.npy").write_bytes(announcing(10**13))
    for number, path in enumerate((tmp_path / "pipe", Path("/dev/zero"), tmp_path / "many.npy")):
        run_dir = crafted(tmp_path / f"{number}", **{key: {"name": "file", "path": str(path)}})
        assert graph_of(read(run_dir)) is None
        assert len(page([read(run_dir)])) > 1000
        if key == "weights":
            with pytest.raises(ConfigError, match=re.escape(f"weights.path={path}: not a ")):
                weights.from_file(path)


def announcing(numbers: int) -> bytes:
    """A file of three numbers that announces very many: numpy makes room for all of them first."""
    memory = io.BytesIO()
    np.save(memory, np.ones(3))
    old, new = b"(3,), }", f"({numbers},), }}".encode()
    return memory.getvalue().replace(old + b" " * (len(new) - len(old)), new)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", BOMB),
        ("config.yaml", "a: &a\n  b: *a\n"),
        ("config.yaml", "a: " + "[" * 5000),
        ("config.yaml", f"a: {'1:' * 200_000}1\n"),
        ("config.yaml", f"a: 0x{'f' * 200_000}\n"),
        ("summary.json", "[" * 100_000),
        ("environment.json", '{"a":' * 700 + "1" + "}" * 700),
        ("network.json", "[" + "[]," * 2_500_000 + "[]]"),
    ],
    ids=["aliases", "itself", "deep yaml", "base 60", "base 16", "deep json", "nested json", "many lists"],
)
def test_a_small_file_that_stands_for_much_is_left_out(name: str, text: str, tmp_path: Path) -> None:
    """Nine aliases of nine aliases of ... grew without end, and so did lists of lists of nothing."""
    run_dir = crafted(tmp_path / "r")
    (run_dir / name).write_text(text)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "from dgt.runs.reader import read; from dgt.report.html import page\n"
        "run = read(sys.argv[1]); print(len(page([run])), run.notes)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(run_dir)], capture_output=True, text=True, timeout=50,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"{name} is damaged: left out" in ended.stdout


def test_aliases_that_are_few_are_followed() -> None:
    assert plain_yaml.parsed("a: &a [1, 2]\nb: *a\nc: {<<: {d: *a}}\n") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": [1, 2]},
    }
    assert plain_yaml.parsed("a: 1_000\nb: 1.5e+3\nc: 99999999999999999999\n") == {"a": 1000, "b": 1500.0, "c": 1e20}


def test_of_what_is_too_large_the_beginning_is_shown_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = crafted(tmp_path / "r")
    for bound, value in (("MOST_LINES", 150), ("MOST_LINE_VALUES", 8), ("MOST_LINE", 20)):
        with monkeypatch.context() as patch:
            patch.setattr(contents, bound, value)
            run = read(run_dir)
            kept = 0 if bound == "MOST_LINE" else 2
            assert run.records == LINES[:kept], bound
            assert f"metrics.jsonl is too large: only the first {kept} lines are read" in run.notes
    (run_dir / "metrics.jsonl").write_text(json.dumps({"iteration": 0} | {f"m{k}": k for k in range(5000)}) + "\n")
    run = read(run_dir)
    assert len(run.metrics) == contents.MOST_METRICS - 1
    assert "5001 different metrics: only the first 200 are shown" in run.notes
    with (run_dir / "config.yaml").open("r+b") as file:
        file.truncate(2**40)  # takes no room on the disk
    assert any("config.yaml cannot be read (1099511627776 bytes" in note for note in read(run_dir).notes)


def test_too_many_folders_and_links_in_a_circle_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crafted(tmp_path / "a")
    (tmp_path / "latest").symlink_to("a")
    (tmp_path / "up").symlink_to(".")
    assert [path.name for path in search([tmp_path])[0]] == ["a"]
    crafted(tmp_path / "b")
    monkeypatch.setattr(runs, "MOST_RUNS", 1)
    with pytest.raises(ConfigError, match="more than 1 runs in there; name a part of them"):
        search([tmp_path])
    monkeypatch.setattr(runs, "MOST_FOLDERS", 2)
    with pytest.raises(ConfigError, match="more than 2 files to look through; name a run directory"):
        search([tmp_path])


def test_a_config_cannot_make_the_reader_draw_for_ever(tmp_path: Path) -> None:
    sections = {"name": "erdos_renyi", "probability": 1e-9, "tries": 10**15}
    run = read(crafted(tmp_path / "a", nodes=100, weights={"name": "uniform"}, topology=sections))
    assert record_of(run, 300) is None
    run = read(crafted(tmp_path / "b", nodes=10**13, weights={"name": "lognormal"}))
    assert graph_of(run) is None


def test_comparisons_of_strangers_are_bounded_too(tmp_path: Path) -> None:
    """A cell of more than 128 KB was a traceback, and so was an iteration of 4,000 digits."""
    head = "weights,topology,strategy,seed,iteration,loss\n"
    for name, text in {
        "long": head + f"A,ring,I,0,0,{'1' * 200_000}\n",
        "huge": head + f"A,ring,I,0,{'9' * 4000},1\nA,ring,I,0,5,1\n",
        "bomb": head + "A,ring,I,0,5,1\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "compare.csv").write_text(text)
        (tmp_path / name / "config.yaml").write_text(BOMB)
    with pytest.raises(ConfigError, match="not a table that dgt compare wrote"):
        command.runs_in([str(tmp_path / "long")])
    assert [run.records for run in command.runs_in([str(tmp_path / "huge")])] == [[{"iteration": 5, "loss": 1.0}]]
    assert len(command.runs_in([str(tmp_path / "bomb")])) == 1
    (tmp_path / "huge" / "compare.csv").unlink()
    os.mkfifo(tmp_path / "huge" / "compare.csv")
    with pytest.raises(ConfigError, match=r"compare\.csv: not a file"):
        command.runs_in([str(tmp_path / "huge")])


@pytest.mark.heavy
def test_nothing_is_written_through_links_and_nothing_into_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger's `table.csv -> ~/.bashrc` was written through; `dgt report runs` left four names where one was."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    here, folder = tmp_path / "here", tmp_path / "here" / "runs"
    for name in "ab":
        crafted(folder / name, seed=ord(name), weights={"name": "list", "values": [1, 2, 3, 4]})
    (folder / "figures" / "column").mkdir(parents=True)
    for name in ("report.html", "table.csv", "table.md", "figures/loss.pdf", "figures/grad_norm.png"):
        (folder / name).symlink_to(precious)
    monkeypatch.chdir(here)
    monkeypatch.setattr(figures.style, "FORMATS", ("png",))
    cli.main(["report", "runs", "--json"])
    written = [Path(name) for name in json.loads(capsys.readouterr().out)]
    assert {path.name for path in written} >= {"report.html", "table.csv", "table.md", "grad_norm.png"}
    assert all(path.parts[0] == "runs" and path.is_file() and not path.is_symlink() for path in written)
    assert precious.read_text() == "precious"
    assert os.listdir(here) == ["runs"]
    assert not list(folder.rglob(".*")), "no drafts are left"
    cli.main(["report", "runs/a", "runs/b", "--json"])
    assert sorted(os.listdir(here)) == ["report", "runs"]
    capsys.readouterr()

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "a" / "figures").symlink_to(elsewhere)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "runs/a"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "figures is a link" in said
    assert "choose another file" in said
    assert not list(elsewhere.iterdir())


@pytest.mark.heavy
def test_words_of_strangers_are_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the page they end no script, on the terminal they move no cursor, and they name no file elsewhere."""
    run_dir = crafted(
        tmp_path / "theirs" / "r\x1b[2J",
        "open",
        problem={"name": "../../" + HOSTILE},
        weights={"name": HOSTILE},
        extra=HOSTILE,
    )
    (run_dir / "config.yaml").write_text(
        yaml.safe_dump(yaml.safe_load((run_dir / "config.yaml").read_text()) | {HOSTILE: 1})
    )
    (run_dir / "metrics.jsonl").write_text(json.dumps({"iteration": 0, "loss": 1.0, HOSTILE: 2.0}) + "\n")
    (run_dir / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    (run_dir / "events.jsonl").write_text(json.dumps({"iteration": 0, "words": HOSTILE}) + "\n")
    (run_dir / "failures" / "1").mkdir(parents=True)
    note = {
        "rank": 0,
        "kind": HOSTILE,
        "reason": HOSTILE,
        "code": 1,
        "time": 5.0,
        "host": HOSTILE,
        "traceback": HOSTILE,
    }
    (run_dir / "failures" / "1" / "rank-00000.json").write_text(json.dumps(note))
    cli.main(["report", str(tmp_path / "theirs"), "--json"])
    written = json.loads(capsys.readouterr().out)
    text = (tmp_path / "theirs" / "report.html").read_text()
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script")
    assert "onerror=alert(1)" in text, "it is shown"
    assert all(str(Path(name).resolve()).startswith(str(tmp_path / "theirs")) for name in written)
    cli.main(["report", str(tmp_path / "theirs")])
    said = capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["doctor", str(run_dir)])
    told = capsys.readouterr()
    for spoken in (said.out, said.err, told.out, told.err):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", spoken), spoken


def test_settings_of_strangers_reach_neither_terminal_nor_file_raw(tmp_path: Path) -> None:
    """The keys and values by which runs differ were printed as they were; half a character was a traceback."""
    for name, topology in (("a", "\x1b]0;owned\x07"), ("b", "half \ud800"), ("c", "turned \u202e")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(json.dumps({"topology": topology, "odd\x1b[2J": name}))
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "loss": 2.0}\n')
    words = aggregate.write([read(tmp_path / name) for name in "abc"], tmp_path / "out")
    assert "owned" in words
    assert all(line.isprintable() for line in words.splitlines())


def test_a_log_of_the_kernel_in_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """/proc/kmsg says that it is a regular file, and has nothing to read until the kernel speaks."""
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss": 2.0}\n')
    (tmp_path / "config.yaml").write_text("a: 1")
    real = files.opened

    @contextlib.contextmanager
    def silent(path: Path, most: int | None = None) -> Iterator[Any]:
        with real(path, most) as file:
            yield types.SimpleNamespace(read=lambda size: None) if path.name == "config.yaml" else file

    monkeypatch.setattr(files, "opened", silent)
    assert "config.yaml cannot be read (not a file): left out" in read(tmp_path).notes
