"""All figures of a set of runs, the paper's among them: PDF, SVG and PNG for a page's width and for a column's.

figures.write(runs, Path("report/figures"))

grad_norm_16, _32, _64   weighted gradient norm, a figure per network size      loss, accuracy   models trained on data
distance                 distance to the optimum                                loss_accuracy_A  both, per weights
adjacency                the tailored graphs                                    gaps             the spectral-gap table
column/                  the curves again, a figure per weights, one column wide
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dgt.config import files
from dgt.network.gaps import gap_table
from dgt.network.weights import PAPER
from dgt.report import curves, gaps, matrices, style
from dgt.report.networks import nodes_of
from dgt.runs import measures
from dgt.runs.measures import ACCURACY, GRADIENT, LOSS
from dgt.runs.run import Run, is_number, problems_of

log = logging.getLogger(__name__)
MOST_FIGURES = 500  # about ten minutes of drawing
Job = tuple[str, Callable[[], list[Path]]]  # name of the figure, and the function that draws it


def write(
    runs: Sequence[Run], directory: str | Path, advance: Callable[[int, int, str], None] | None = None
) -> list[Path]:
    """Draw everything these runs allow; `advance(done, of, name)` is called after every figure.

    A figure that cannot be drawn is logged, and the others are drawn all the same.
    """
    directory = Path(directory)
    jobs = plan(runs, directory)
    for folder in folders(runs, directory):
        files.make_folder(folder, below=directory.parent)
    if len(jobs) > MOST_FIGURES:
        log.warning("%d figures: only the first %d are drawn; name fewer runs", len(jobs), MOST_FIGURES)
        jobs = jobs[:MOST_FIGURES]
    written = []
    for number, (name, draw) in enumerate(jobs):
        try:
            with warnings.catch_warnings():  # matplotlib warns about missing glyphs and numbers too large for an axis
                warnings.simplefilter("ignore")
                written += draw()
        except OSError:  # a disk error: no other figure could be written either
            raise
        except Exception as error:
            log.warning("figure %s could not be drawn: %s", name, " ".join(str(error).split()))
        if advance is not None:
            advance(number + 1, len(jobs), name)
    return written


def plan(runs: Sequence[Run], directory: Path) -> list[Job]:
    """The figures to draw; if runs have different problems, each problem has its own folder."""
    runs = [run for run in runs if run.records]
    jobs = []
    for name, folder in _by_problem(runs, directory).items():
        jobs += _of_problem([run for run in runs if run.choice("problem") == name], folder)
    return jobs + _of_networks(runs, directory)


def folders(runs: Sequence[Run], directory: Path) -> list[Path]:
    """The folders of these figures."""
    own = _by_problem([run for run in runs if run.records], directory).values()
    return [directory, *own, *(folder / "column" for folder in own)]


def _by_problem(runs: Sequence[Run], directory: Path) -> dict[str, Path]:
    names = problems_of(runs)
    return {name: directory / _file_name(name) if len(names) > 1 else directory for name in names}


def _file_name(words: str) -> str:
    """A name from a config as part of a file name: without path separators, and not too long."""
    return re.sub(r"[^\w.-]", "_", words).lstrip(".")[:60] or "_"


def _of_problem(runs: list[Run], folder: Path) -> list[Job]:
    shown = measures.drawn(name for run in runs for name in run.metrics)
    jobs = []
    for measure in shown:
        sizes = list(dict.fromkeys(nodes_of(run) for run in runs))
        if measure is GRADIENT and len(sizes) > 1:  # a figure per network size, as in the paper
            for size in sizes:
                part = [run for run in runs if nodes_of(run) == size]
                jobs.append(_curves(part, [measure], folder / f"{measure.metric}_{size or 'other'}"))
        else:
            jobs.append(_curves(runs, [measure], folder / measure.metric))
    for weights in dict.fromkeys(run.choice("weights") for run in runs):
        part = [run for run in runs if run.choice("weights") == weights]
        if LOSS in shown and ACCURACY in shown:
            jobs.append(_curves(part, [LOSS, ACCURACY], folder / f"loss_accuracy_{_file_name(weights)}"))
        for measure in shown:
            stem = folder / "column" / f"{measure.metric}_{_file_name(weights)}"
            jobs.append(_curves(part, [measure], stem, style.COLUMN))
    return jobs


def _curves(runs: list[Run], shown: list[measures.Measure], stem: Path, width: float = style.PAGE) -> Job:
    return stem.name, lambda: curves.write_several(runs, shown, stem, width)


def _of_networks(runs: list[Run], directory: Path) -> list[Job]:
    """The tailored graphs that were used; the paper's table if its weights were."""
    jobs: list[Job] = []
    if any(run.choice("topology") == "tailored" for run in runs):
        jobs.append(("adjacency", lambda: matrices.write(matrices.of_runs(runs), directory / "adjacency")))
    if any(run.choice("weights") in PAPER for run in runs):
        jobs.append(("gaps", lambda: gaps.write(_gaps(runs), directory)))
    return jobs


def _gaps(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The paper's table with the laziness and the tailored graphs of these runs."""
    told = [run.config.get("laziness") for run in runs]
    laziness = next((value for value in told if is_number(value) and 0 < value < 1), 0.3)
    topologies = [run.config.get("topology") for run in runs if run.choice("topology") == "tailored"]
    seeds = [topology.get("seed", 0) for topology in topologies if isinstance(topology, dict)]
    return gap_table(laziness, next((seed for seed in seeds if isinstance(seed, int) and seed >= 0), 0))
