"""A directory for the results of a run: how it is called, that one may write there, and that it holds no others."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from dgt.config import Config
from dgt.config.checks import check_name
from dgt.errors import ConfigError
from dgt.runs.folders import has, holds_checkpoints
from dgt.runs.layout import PROBE_PREFIX, RESULTS
from dgt.runs.naming import label_of


def claim_run_dir(config: Config, swept: Mapping[str, str] | None = None) -> str:
    """The directory of a training run; the default is runs/<time>-<problem>-<weights>-<topology>-<strategy>-<swept>."""
    return claim(config.run_dir, label_of(config, swept or {}), goes_on(config))


def goes_on(config: Config) -> bool:
    """Whether this run continues what its directory holds; a warm start is another run."""
    return config.resume == "auto" or (not config.warm_start and _is_own(config.resume, config.run_dir))


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
    check_name("run_dir", str(path))
    try:
        for counter in itertools.count(2):
            try:
                path.mkdir(parents=True, exist_ok=run_dir is not None)
                break
            except FileExistsError:
                if run_dir is not None:
                    raise
                path = default.with_name(f"{default.name}-{counter}")
        if not go_on:
            refuse_results(path)
        probe = path / f"{PROBE_PREFIX}{secrets.token_hex(8)}"  # a name that no other start has
        probe.touch(exist_ok=False)
        probe.unlink(missing_ok=True)
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"run_dir={path}: cannot write there ({why}); choose another directory") from None
    return str(path)


def refuse_results(path: Path) -> None:
    """A run that begins needs a directory without the results and checkpoints of another."""
    if any(has(path / result) for result in RESULTS) or holds_checkpoints(path):
        raise ConfigError(f"run_dir={path}: already holds a run; choose another directory, or resume=auto")
