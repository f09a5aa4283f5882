"""What `dgt leave` and `dgt join` share: they ask a run under way, through its directory, and wait for its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgt.errors import ConfigError

PATIENCE = 120.0  # seconds: a process has to start, and all ranks to come to the agreed step
LOOK_SECONDS = 0.1
BETWEEN_HOLDERS = 5.0  # seconds without anybody who holds the directory: rank 0 may be another one now


def target(command: str, words: Sequence[str]) -> tuple[int | None, Path]:
    """The node, if one is named, and the run directory; raises unless a run goes on there that can be asked."""
    from dgt.runs.lock import holder

    usage = f"dgt {command}: give the node and run_dir=DIR, such as dgt {command} 3 run_dir=long"
    numbers = [word for word in words if word.isdecimal()]
    folders = [word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")]
    if len(numbers) > 1 or len(folders) != 1 or len(numbers) + 1 != len(words):
        raise ConfigError(usage)
    run_dir = Path(folders[0])
    if holder(run_dir) is None:
        raise ConfigError(f"run_dir={run_dir}: no run goes on there")
    settings = config_of(run_dir)
    if settings.get("on_peer_loss", "stop") == "stop":
        raise ConfigError(f"run_dir={run_dir}: it was started with on_peer_loss=stop, so its nodes stay as they are")
    return (int(numbers[0]) if numbers else None), run_dir


def config_of(run_dir: Path) -> dict[str, Any]:
    """What the run was started with."""
    import yaml

    from dgt.config.files import read_text
    from dgt.runs.layout import CONFIG

    try:
        found = yaml.safe_load(read_text(run_dir / CONFIG, 2**20))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"run_dir={run_dir}: its {CONFIG} cannot be read ({error})") from None
    return found if isinstance(found, dict) else {}


def members_of(run_dir: Path) -> tuple[list[int], int]:
    """Who is there now, and how many nodes the network has."""
    from dgt.config.files import parsed_json, read_text
    from dgt.runs.layout import NETWORK

    try:
        networks = parsed_json(read_text(run_dir / NETWORK, 2**28))
        return [int(name) for name in networks[-1]["nodes"]], max(int(each["size"]) for each in networks)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise ConfigError(f"run_dir={run_dir}: not known yet who is there; try again") from None


def wait_for_answer(run_dir: Path, what: str, node: int) -> None:
    """Ask, wait, and print what happened; `ConfigError` with the words of a refusal, or if there is no answer."""
    from dgt.runs import requests
    from dgt.runs.lock import holder

    requests.ask(run_dir, what, node)
    seen = time.monotonic()
    deadline = seen + PATIENCE
    while (words := requests.answer(run_dir, what, node)) is None:
        seen = time.monotonic() if holder(run_dir) is not None else seen
        over = "has ended" if time.monotonic() > seen + BETWEEN_HOLDERS else ""
        if not over and time.monotonic() > deadline:
            over = f"has not answered within {PATIENCE:g} s"
        if over:
            requests.withdraw(run_dir, what, node)
            raise ConfigError(f"run_dir={run_dir}: the run {over}")
        time.sleep(LOOK_SECONDS)
    if words:
        raise ConfigError(words)
    print(last_change(run_dir))


def last_change(run_dir: Path) -> str:
    from dgt.runs.layout import EVENTS

    lines = (run_dir / EVENTS).read_text(encoding="utf-8").splitlines()
    changes = [event for event in map(json.loads, lines) if event.get("event") == "membership"]
    return str(changes[-1]["words"]) if changes else ""
