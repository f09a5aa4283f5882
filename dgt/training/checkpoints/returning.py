"""Resuming a run that has lost nodes: with those that were left, or with all of them again.

    torchrun --nproc-per-node 5 -m dgt train weights=[1,2,3,4,5,6] run_dir=r resume=auto    # the five that were left
    dgt train weights=[1,2,3,4,5,6] run_dir=r resume=auto                                   # all six

A checkpoint names the nodes it has. As many ranks as those continue bit by bit, rank i as the i-th of them. As many as
the whole network has: whoever is in the checkpoint continues from its own model, those that return start from the
network's average of it, lambda is that of the whole network again, and all trackers start anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dgt.errors import ConfigError, SharedError
from dgt.processes.agreement import broadcast_text, together
from dgt.processes.node import Node
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints.files import Commit
from dgt.training.checkpoints.finding import Say, read_by_all
from dgt.training.checkpoints.state import Tree, copied, seed_generators
from dgt.training.session import MEMBERS, Session
from dgt.training.setup import in_ranks, world_in_words


def members_of(commit: Commit, nodes: int) -> list[int]:
    """The nodes that a checkpoint of a network of so many nodes has; all of them unless it says otherwise."""
    text = commit.facts.get(MEMBERS)
    members = list(range(nodes)) if text is None else [int(word) for word in text.split() if word.isdecimal()]
    if members != sorted(set(members)) or not set(members) <= set(range(nodes)) or len(members) != commit.nodes:
        raise ConfigError(
            f"checkpoint {commit.path.name}: it has {commit.world} files for the nodes {text or members} of {nodes}"
        )
    return members


def settle_members(node: Node, nodes: int, last: Callable[[], Commit | None], name: str, say: Say) -> None:
    """Where a launcher started fewer ranks than the network has nodes: be those that the last checkpoint has.

    `last` finds what rank 0 would resume from, and is asked again while that cannot be read. All ranks call it.
    """
    if node.size == nodes or node.is_new:
        return

    def look() -> str:
        return " ".join(map(str, _left(node, nodes, last()))) if node.is_main else ""

    members, _ = read_by_all(node, look, f"resume={name}", say)
    node.members = [int(word) for word in broadcast_text(node, members or "").split()]


def _left(node: Node, nodes: int, last: Commit | None) -> list[int]:
    ranks = node.local.size
    words = f"{world_in_words(node.size, ranks)}: this network has {nodes} nodes"
    if last is None:
        raise ConfigError(f"{words}; start {in_ranks(nodes, ranks)}")
    members = members_of(last, nodes)
    if len(members) != node.size:
        left = (
            f", or {len(members) * ranks} to go on with the nodes of the last checkpoint"
            if len(members) < nodes
            else ""
        )
        raise ConfigError(f"{words}; start {in_ranks(nodes, ranks)}{left}")
    return members


def check_members(session: Session, commit: Commit, name: str) -> list[int]:
    """The nodes of the checkpoint, if the ranks that are there can continue it."""
    nodes, here = int(session.whole[1].size), session.node.members
    there = together(session.node, lambda: members_of(commit, nodes))
    if there != here and not session.is_whole:
        said = f"the checkpoint of iteration {commit.step} has {_named(there)}, the ranks here are {_named(here)}"
        raise SharedError(f"resume={name}: {said}; start {nodes} ranks, or {len(there)}")
    return there


def rejoin(session: Session, commit: Commit, there: Sequence[int], say: Say) -> str:
    """All nodes continue a checkpoint that has some of them; says what is wrong with a file, if anything is."""
    node, template = session.node, copied(session.state())

    def read() -> Tree:
        if node.name not in there:
            return average_model(commit, template["model"])
        data = checkpoint.read_rank(commit, there.index(node.name) * node.local.size + node.local.rank)
        return Tree(checkpoint.parse(data, template, str(commit.path)))

    state, damage = read_by_all(node, read, f"checkpoint {commit.path}", say)
    if state is None or damage:
        return damage
    if node.name in there:
        session.load(state, trackers=False)
    else:
        session.problem.model.load_state_dict(state)
        session.optimizer.flat.follow()
        stream = commit.step * node.world.size + node.name * node.local.size + node.local.rank + 1
        seed_generators(session.seeds[0], stream)  # not those of its first start again
    session.optimizer.iteration = commit.step
    back = [name for name in node.members if name not in there]
    many = len(back) > 1
    session.returned = (
        f"node{'s' * many} {', '.join(map(str, back))} return{'s' * (not many)} at iteration {commit.step} from the "
        f"average of the {len(there)} that were left; {node.size} nodes go on, trackers start anew"
    )
    return ""


def average_model(commit: Commit, like: Tree) -> Tree:
    """sum_i pi_i theta_i, one file after the other; integers are the first node's."""
    average: Tree = {}
    for rank, file in enumerate(commit.files):
        theirs = checkpoint.parse(checkpoint.read_rank(commit, rank), {"model": like}, str(commit.path))["model"]
        for name, value in theirs.items():
            if rank == 0:
                average[name] = value * file["share"] if value.is_floating_point() else value
            elif value.is_floating_point():
                average[name].add_(value, alpha=file["share"])
    return average


def _named(members: Sequence[int]) -> str:
    return f"the nodes {', '.join(map(str, members))}"
