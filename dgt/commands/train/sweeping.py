"""The runs of a sweep, for `dgt train -m` and `dgt simulate -m`: what they are, and the table at their end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from dgt.config import Config
from dgt.config import compose as composing
from dgt.config.checks import check_range
from dgt.errors import ConfigError
from dgt.report import sweep as sweep_report
from dgt.report.tables import table


def runs_of(
    options: argparse.Namespace, overrides: list[str], below_one_directory: bool = False
) -> tuple[list[list[str]], list[dict[str, str]], list[Config]]:
    """The runs of a sweep, what they differ in, and their configs; all mistakes are found before the first starts."""
    runs = composing.expand(overrides) if options.multirun else [overrides]
    swept = composing.swept(overrides) if options.multirun else [{}]
    if options.only is not None:
        if not options.multirun:
            raise ConfigError(f"--only={options.only}: picks one run of a sweep; add -m")
        check_range("--only", options.only, 0, len(runs) - 1)
        runs, swept = [runs[options.only]], [swept[options.only]]
    configs = [composing.compose(overrides) for overrides in runs]
    if len(configs) > 1 and any(config.run_dir for config in configs) and not below_one_directory:
        raise ConfigError("run_dir: each run of a sweep has its own; leave it out")
    return runs, swept, configs


def show(options: argparse.Namespace, summaries: list[dict[str, Any]], swept: Sequence[dict[str, str]]) -> None:
    """Print a line per run: its name, the swept settings, metrics over its last fifth, its directory."""
    rows = [(summary, named) for summary, named in zip(summaries, swept, strict=True) if summary]
    if not options.multirun or not (rows or options.json):
        return
    if options.json:
        print(json.dumps([{**summary, "swept": named} for summary, named in rows], indent=2))
    else:
        print(table([sweep_report.row(summary, named) for summary, named in rows]))
