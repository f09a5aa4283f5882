"""`dgt export RUN`: the trained model of a run as a file that needs no dgt."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dgt.commands.base import Command
from dgt.errors import ConfigError, DamagedError

if TYPE_CHECKING:  # torch is imported when the command runs
    from dgt.training.exporting import Found

log = logging.getLogger(__name__)

ABOUT = """RUN is a run directory, or one of its checkpoints. The last checkpoint counts, and without --node the network
average: as the run put it together, or from the nodes' states where it did not. The file is a state_dict
that torch.load(..., weights_only=True) opens without dgt."""


def run(options: argparse.Namespace) -> None:
    """Find the model, write it, and say in a line what was written."""
    from dgt.training import exporting

    if options.overrides:
        raise ConfigError(f"{options.overrides[0]}: dgt export takes one run and options; see dgt export --help")
    kind = options.format or (exporting.SAFETENSORS if options.output.endswith(".safetensors") else exporting.PT)
    try:
        found = _found(Path(options.run), options.node, options.checkpoint)
        data = exporting.as_bytes(found, kind)
    except DamagedError as error:
        raise ConfigError(f"{options.run}: {error}; --checkpoint=ITERATION takes another one") from None
    except OSError as error:
        raise ConfigError(f"{options.run}: cannot be read ({error.strerror or error})") from None
    path = _place(options, f"{found.name}.{kind}")
    is_new = _write(path, data, options)
    print(f"{path}: {_words(found, options.run)}" + "; it was there already" * (not is_new))


def _found(run: Path, node: int | None, iteration: int | None) -> Found:
    from dgt.training import exporting

    if not run.is_dir():
        what = "a file" if run.exists() else "no such directory"
        raise ConfigError(f"{run}: {what}; give a run directory")
    commit = exporting.find_commit(run, iteration, log.info)
    if commit is None and node is not None:
        raise ConfigError(f"--node={node}: {run} holds no complete checkpoint, only these have the models of nodes")
    if commit is None:
        return exporting.without_checkpoints(run)
    return exporting.of_average(commit, log.info) if node is None else exporting.of_node(commit, node)


def _place(options: argparse.Namespace, name: str) -> Path:
    """What was named, or a file in the run directory."""
    from dgt.runs import layout
    from dgt.runs.folders import COMMIT, has

    if options.output:
        path = Path(options.output)
        return path / name if path.is_dir() else path
    run = Path(options.run)
    if has(run / COMMIT):  # a single checkpoint, which nobody adds files to
        run = run.absolute().parent
    if run.absolute().name == layout.CHECKPOINTS:
        run = run.absolute().parent
    return run / layout.EXPORTS / name


def _write(path: Path, data: bytes, options: argparse.Namespace) -> bool:
    """Whether something was written: not where the same is there already; another file stays, without --force."""
    from dgt.config import files

    try:
        if path.is_symlink() or path.exists():
            if _holds(path, data):
                return False
            if not options.force:
                raise ConfigError(
                    f"{path}: there is another file; --force replaces it, --output=FILE names another one"
                )
        if not options.output:
            files.make_folder(path.parent, path.parents[1])
        files.write(path, data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write there ({error.strerror}); --output=FILE names another one") from None
    return True


def _holds(path: Path, data: bytes) -> bool:
    from dgt.config import files

    try:
        return files.read(path, len(data)) == data
    except OSError:  # larger, or no file at all
        return False


def _words(found: Found, run: str) -> str:
    from dgt.training import exporting

    count = exporting.tensors(found)
    numbers = f"{count} tensors" if found.parameters is None else f"{found.parameters:,} parameters"
    at = "" if found.iteration is None else f" at iteration {found.iteration}"
    return f"{found.words}{at} of {run}, {numbers}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--node", type=int, metavar="K", help="node K's own model in place of the network average")
    parser.add_argument("--checkpoint", type=int, metavar="ITERATION", help="of this iteration, not the last one")
    kinds = "pt (torch), or safetensors (pip install 'dgt[safetensors]'); else as the name of --output ends"
    parser.add_argument("--format", choices=["pt", "safetensors"], help=kinds)
    parser.add_argument("--output", default="", metavar="FILE", help="where to write; else in RUN/exports")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


COMMAND = Command(
    name="export",
    help="write a run's trained model to a file that needs no dgt",
    example="dgt export runs/first --format safetensors",
    run=run,
    settings=ABOUT.splitlines,
    order=9,
    add_arguments=add_arguments,
    takes="",
    computes_alone=True,
    writes_results=True,
)
