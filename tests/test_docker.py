"""What can be said of docker/ without building it; `docker/check.sh` builds."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " ")
DEFINITION = (ROOT / "docker/dgt.def").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
COPIES = [words.split() for words in re.findall(r"^COPY (.*)", DOCKERFILE, re.MULTILINE)]


def packages(text: str, installer: str) -> set[str]:
    """What `apt-get install` or `pip install` is told to install, options left out."""
    lists = re.findall(rf"{installer} install ((?:[^&|\n])*)", text)
    return {word.strip('"') for words in lists for word in words.split() if not word.startswith("-")}


def test_the_dockerfile_lints_clean() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [linter, "--no-color", ROOT / "docker/Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_all_that_is_copied_exists_and_is_in_the_context() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {source for *sources, _ in COPIES for source in sources}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)


def test_dgt_is_copied_after_all_that_is_large() -> None:
    """A layer is made anew when one before it changes: one with all packages was, with every change of dgt."""
    torch, others, dgt = (DOCKERFILE.index(words) for words in ('"torch>=', "touch /src/README.md", "--no-deps /src"))
    first_copies = {sources[0]: DOCKERFILE.index(f"COPY {sources[0]}") for sources in COPIES}
    assert torch < first_copies.pop("pyproject.toml") < others
    assert all(others < place < dgt for place in first_copies.values())


def test_both_hosts_run_the_same_but_for_their_number() -> None:
    first, second = (COMPOSE["services"][name] for name in ("host1", "host2"))
    assert first["command"] == [second["command"][0].replace("--node-rank=1", "--node-rank=0")]
    assert "--node-rank=1" in second["command"][0]
    own = ("command", "hostname", "depends_on")
    assert {k: v for k, v in first.items() if k not in own} == {k: v for k, v in second.items() if k not in own}


def test_hosts_meet_at_the_first_on_a_network_of_their_own() -> None:
    for name, host in COMPOSE["services"].items():
        assert host["hostname"] == name
        assert f"--master-addr={next(iter(COMPOSE['services']))} " in host["command"][0]
        assert f"--nnodes={len(COMPOSE['services'])} " in host["command"][0]
        assert host["networks"] == ["between"]
    assert COMPOSE["networks"]["between"]["internal"]


def test_results_go_to_the_volume() -> None:
    assert "VOLUME /runs" in DOCKERFILE
    for host in COMPOSE["services"].values():
        assert host["volumes"] == ["runs:/runs"]
        assert "run_dir=/runs/" in host["command"][0]


def test_apptainer_installs_what_docker_installs() -> None:
    """Its %files takes a pair a line: of three files and a folder in one, the first became the second."""
    for installer in ("apt-get", "pip"):
        assert packages(DEFINITION, installer) == packages(DOCKERFILE, installer)
    section = DEFINITION[DEFINITION.index("%files") : DEFINITION.index("%post")]
    pairs = [line.split() for line in section.splitlines()[1:] if line]
    assert {source for source, _ in pairs} == {s for *sources, _ in COPIES for s in sources} - {"docker/health.sh"}
    assert all(place == f"/src/{source}" for source, place in pairs)
    (base,) = re.findall(r"^ARG BASE=(.*)", DOCKERFILE, re.MULTILINE)
    assert f"From: {base}\n" in DEFINITION


def test_pytorch_is_as_new_as_dgt_wants() -> None:
    (wanted,) = re.findall(r'"(torch>=.*)"', (ROOT / "pyproject.toml").read_text())
    assert wanted in packages(DOCKERFILE, "pip")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    ("last", "code"),
    [(None, 0), ("-1e9 0", 1), ("{now} -1e9", 0), ("{now} 1e15", 0), ("torn", 0)],
    ids=["first look", "idle", "at work", "a process has ended", "a line cut short"],
)
def test_idle_processes_are_not_healthy(tmp_path: Path, last: str | None, code: int) -> None:
    now = float(Path("/proc/uptime").read_text().split()[0]) - 10
    if last is not None:
        (tmp_path / "dgt-health").write_text(last.format(now=now) + "\n")
    done = subprocess.run(
        ["sh", ROOT / "docker/health.sh"],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert len((tmp_path / "dgt-health").read_text().split()) == 2
