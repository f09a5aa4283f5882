"""A trained model out of a run directory, in one process: the network average, or one node's own model.

    found = of_average(commit)                 # as the run put it together, else from the nodes' states
    found = of_node(commit, 3)
    as_bytes(found, "safetensors")

The directory may be somebody else's: checksums are compared, nothing is run, and what is written is made anew from
tensors (`checkpoints/untrusted.py`).
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dgt.config.files import parsed_json, read, read_text
from dgt.errors import ConfigError, DamagedError
from dgt.runs.folders import COMMIT, FOLDER, has
from dgt.runs.layout import MODEL, SUMMARY
from dgt.training.checkpoints import untrusted
from dgt.training.checkpoints.files import Commit, committed, read_commit, read_model, read_rank
from dgt.training.checkpoints.finding import Say
from dgt.training.checkpoints.models import ModelState, about_of, parsed, tensors_in, with_about
from dgt.training.checkpoints.returning import members_of
from dgt.training.checkpoints.state import mismatch

PT, SAFETENSORS = "pt", "safetensors"
FORMATS = (PT, SAFETENSORS)
MOST_SUMMARY = 2**20  # bytes
MOST_NAMED = 12  # nodes or iterations in an error


@dataclass(frozen=True, slots=True)
class Found:
    """A model, and in words which: 'the network average of 4 nodes'."""

    state: ModelState
    words: str
    name: str
    """Of its file, if no other is named."""
    iteration: int | None
    parameters: int | None
    """That are trained; None where nobody says."""


def find_commit(run: Path, iteration: int | None, say: Say) -> Commit | None:
    """The last whole checkpoint of a run, or that of an iteration; None if the run keeps none.

    run   a run directory, its `checkpoints/`, or a single checkpoint
    """
    if has(run / COMMIT):
        commits = [read_commit(run)]
    else:
        commits, wrong = committed(run / FOLDER if has(run / FOLDER) else run)
        for words in wrong:
            say(f"checkpoint {words}; not used")
        if wrong and not commits:
            raise ConfigError(f"{run}: no checkpoint there is whole")
    if iteration is None:
        return commits[-1] if commits else None
    those = [commit for commit in commits if commit.step == iteration]
    if not those:
        known = _listed(sorted({commit.step for commit in commits})) or "none"
        raise ConfigError(f"--checkpoint={iteration}: no checkpoint of that iteration in {run}; allowed: {known}")
    return those[-1]


def of_average(commit: Commit, say: Say) -> Found:
    """The network average of a checkpoint: the file of it, or where there is none sum_i pi_i theta_i."""
    words = f"the network average of {commit.nodes} nodes"
    try:
        data = read_model(commit)
    except (DamagedError, FileNotFoundError) as error:
        say(f"checkpoint {commit.path.name}: {error}")
        data = None
    if data is None:
        state, words = _averaged(commit), f"{words} (put together from their states)"
    else:
        state = parsed(data, str(commit.path / MODEL))
    about = {**about_of(state), "iteration": commit.step, "nodes": commit.nodes, **_chosen(commit)}
    return Found(with_about(state, about), words, f"model-{commit.step}", commit.step, _parameters(commit))


def of_node(commit: Commit, node: int) -> Found:
    """One node's own model, with its own BatchNorm statistics."""
    members = members_of(commit, _nodes(commit))
    if node not in members:
        have = f"the checkpoint of iteration {commit.step} has the nodes {_listed(members)}"
        raise ConfigError(f"--node={node}: no such node; {have}")
    state = _state_of(commit, members.index(node) * (commit.world // commit.nodes))  # its first rank's
    about = {"iteration": commit.step, "node": node, **_chosen(commit)}
    name = f"node-{node}-{commit.step}"
    return Found(with_about(state, about), f"the model of node {node}", name, commit.step, _parameters(commit))


def without_checkpoints(run: Path) -> Found:
    """A run that keeps no checkpoints has its last average model only."""
    try:
        data = read(run / MODEL, untrusted.most_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{run}: no complete checkpoint and no {MODEL} there; give a run directory") from None
    state = parsed(data, str(run / MODEL))
    about = about_of(state)
    iteration, nodes = about.get("iteration", _last_iteration(run)), about.get("nodes")
    words = "the network average" + f" of {nodes} nodes" * isinstance(nodes, int)
    parameters = about.get("parameters")
    return Found(
        state,
        words,
        "model" if iteration is None else f"model-{iteration}",
        iteration,
        parameters if isinstance(parameters, int) else None,
    )


def as_bytes(found: Found, kind: str) -> bytes:
    """As a file of this format: the same model, the same bytes."""
    if kind == PT:
        memory = io.BytesIO()
        torch.save(found.state, memory)
        return memory.getvalue()
    try:
        from safetensors.torch import save
    except ImportError:
        raise ConfigError("--format=safetensors: not installed; pip install 'dgt[safetensors]'") from None
    odd = next((name for name, value in found.state.items() if not isinstance(value, torch.Tensor)), None)
    if odd is not None:
        raise ConfigError(f"--format=safetensors: {odd} is no tensor, which this format cannot hold; --format=pt can")
    # the format has no place for tensors that share memory
    tensors = {name: tensor.clone() for name, tensor in found.state.items()}
    return bytes(save(tensors, {name: str(value) for name, value in about_of(found.state).items()}))


def _state_of(commit: Commit, rank: int) -> ModelState:
    where = str(commit.path / f"rank-{rank:05d}.pt")
    return parsed(read_rank(commit, rank), where, "model")


def _averaged(commit: Commit) -> ModelState:
    """sum_i pi_i theta_i, one file after the other; integers, and what is no tensor, are the first node's."""
    if not commit.files:
        raise ConfigError(f"{commit.path}: refused, a checkpoint of no nodes")
    first = _state_of(commit, 0)
    total = OrderedDict((name, _wide(value) * commit.files[0]["share"]) for name, value in _floating(first))
    for rank in range(1, commit.world):
        state = _state_of(commit, rank)
        wrong = mismatch(_tensors(first), _tensors(state))
        if wrong:
            raise ConfigError(f"{commit.path}: refused, the models of ranks 0 and {rank} differ: {wrong}")
        for name, value in _floating(state):
            total[name].add_(_wide(value), alpha=commit.files[rank]["share"])
    for name, value in total.items():
        first[name] = value.to(first[name].dtype)
    return first


def _tensors(state: ModelState) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _floating(state: ModelState) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in _tensors(state).items() if value.is_floating_point()]


def _wide(value: torch.Tensor) -> torch.Tensor:
    """16 bits are too few to add up in."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _nodes(commit: Commit) -> int:
    """Of the whole network, of which some may be lost: 'world' is '4 nodes'."""
    word = commit.facts.get("world", "").partition(" ")[0]
    return int(word) if word.isdecimal() and len(word) < 9 else commit.nodes


def _parameters(commit: Commit) -> int | None:
    """'model' is '83126 of torch.float32: 64x3:float32 ...'."""
    word = commit.facts.get("model", "").partition(" ")[0]
    return int(word) if word.isdecimal() and len(word) < 18 else None


def _chosen(commit: Commit) -> dict[str, str]:
    return {"strategy": commit.facts["strategy"]} if commit.facts.get("strategy") in ("I", "II") else {}


def _last_iteration(run: Path) -> int | None:
    """As its summary says, if it has one."""
    try:
        found = parsed_json(read_text(run / SUMMARY, MOST_SUMMARY))["final"]["iteration"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _listed(numbers: Sequence[int]) -> str:
    """0, 1, 2 or, of many, the ends."""
    if len(numbers) <= MOST_NAMED:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:3]))}, ..., {numbers[-1]}"


def tensors(found: Found) -> int:
    """How many there are."""
    return sum(1 for _ in tensors_in(found.state))
