"""What ranks decide through the store, one answer for all; and the network of some of its nodes."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dgt import reference
from dgt.errors import ConfigError, PeerError, TrainingError
from dgt.network import graphs
from dgt.network.members import among, row_among
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import normalise
from dgt.processes import regroup
from dgt.processes.regroup import BROKEN, Members, Question, Standing
from dgt.training.checkpoints.files import Commit, Writer, committed
from dgt.training.checkpoints.returning import members_of

FOUR = [0, 1, 2, 3]


def on_threads(do: Callable[[int], object], names: list[int]) -> dict[int, Any]:
    """What every node got, or the words of its error."""
    found: dict[int, Any] = {}

    def come(name: int) -> None:
        try:
            found[name] = do(name)
        except (TrainingError, PeerError) as error:
            found[name] = str(error)

    threads = [threading.Thread(target=come, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def decide(
    store: dist.Store,
    names: list[int],
    lost: set[int],
    patience: float = 10,
    generation: int = 0,
    heard: int = -1,
    waiting: dict[int, int] | None = None,
    **said: dict[str, Any],
) -> dict[int, Any]:
    """Nodes of a network of four meet again at iterations 40, 41, ...; one may have heard of a stop, others wait to be
    taken in, and `node_2` says more than its iteration."""
    more = {int(name.removeprefix("node_")): words for name, words in said.items()}
    return on_threads(
        lambda name: regroup.agree_on_members(
            store, generation, dict.fromkeys(FOUR, 0), name, Standing(40 + name, name == heard, **more.get(name, {})),
            lambda: lost, patience, lambda: waiting or {},
        ),
        names,
    )  # fmt: skip


def agreed_on(members: list[int], iteration: int, stop: bool = False, **more: Any) -> Members:
    """A decision without newcomers."""
    plain = {"attempts": [0] * len(members), "before": [[name, 0] for name in FOUR]}
    return Members(members, iteration, stop, **(plain | more))


@pytest.mark.parametrize("heard", [-1, 2])
def test_those_who_are_left_agree(heard: int) -> None:
    agreed = agreed_on([0, 2, 3], 43, stop=heard == 2)
    assert decide(dist.HashStore(), [0, 2, 3], lost={1}, heard=heard) == dict.fromkeys([0, 2, 3], agreed)


def test_any_number_goes_on_where_the_launcher_knows_that_the_others_are_dead() -> None:
    assert decide(dist.HashStore(), [3], lost={0, 1, 2}) == {3: agreed_on([3], 43)}


def test_without_a_launcher_that_knows_time_decides_and_who_is_late_is_out() -> None:
    store = dist.HashStore()
    assert decide(store, [0, 2], lost=set(), patience=1.0) == dict.fromkeys([0, 2], agreed_on([0, 2], 42))
    assert decide(store, [3], lost=set(), patience=1.0) == {3: "node 3 came too late: the others went on without it"}


def test_a_part_without_the_majority_does_not_go_on_and_neither_does_who_comes_later() -> None:
    store = dist.HashStore()
    words = "after a loss 2 of 4 nodes found each other (1, 3): without the majority they do not go on"
    refused = decide(store, [1, 3], lost=set(), patience=0.5) | decide(store, [0, 2], lost=set(), patience=0.5)
    assert len(set(refused.values())) == 1
    assert refused[0].startswith(words)


@pytest.mark.parametrize("nodes", range(1, 8))
def test_of_two_parts_at_most_one_may_go_on(nodes: int) -> None:
    living = list(range(3, 3 + nodes))
    for size in range(nodes + 1):
        for part in itertools.combinations(living, size):
            rest = [node for node in living if node not in part]
            assert not (regroup.may_go_on(part, living) and regroup.may_go_on(rest, living))
    assert regroup.may_go_on(living, living)


def test_who_died_after_it_had_come_is_not_counted() -> None:
    store = dist.HashStore()
    store.set("reunion-0/there/1", json.dumps({"iteration": 99}))
    assert decide(store, [0, 2, 3], lost={1}) == dict.fromkeys([0, 2, 3], agreed_on([0, 2, 3], 43))


def test_the_same_nodes_can_meet_again_more_than_once() -> None:
    """Connections may break though everybody is there: a decision must not be taken for the next one."""
    store = dist.HashStore()
    assert decide(store, FOUR, lost=set())[0] == agreed_on(FOUR, 43)
    assert decide(store, [0, 1, 2], lost={3}, generation=1)[0] == agreed_on([0, 1, 2], 42)


def test_who_waits_is_taken_in_by_those_who_are_left() -> None:
    """Also in place of one that is lost just now, and who has no parameters yet is new until it has."""
    found = decide(dist.HashStore(), [0, 2, 3], lost={1}, waiting={1: 2, 5: 1}, node_3={"is_new": True})
    assert found[0] == found[3] == agreed_on([0, 1, 2, 3, 5], 43, attempts=[0, 2, 0, 0, 1], new=[1, 3, 5])


def test_a_newcomer_waits_for_the_decision_that_has_its_own_attempt() -> None:
    store = dist.HashStore()
    decide(store, FOUR, lost=set(), waiting={4: 1})
    decide(store, [0, 2, 3], lost={1}, generation=1, waiting={4: 2})
    assert regroup.wait_to_be_taken_in(store, 4, 2)[0] == 1
    assert regroup.wait_to_be_taken_in(store, 4, 1)[0] == 0


def test_nobody_goes_on_without_one_that_has_the_parameters() -> None:
    new = {"is_new": True}
    words = decide(dist.HashStore(), [2, 3], lost={0, 1}, node_2=new, node_3=new)[2]
    assert words.startswith("all nodes that knew the parameters are lost")


def test_who_leaves_on_purpose_is_told_so_and_all_at_once_is_a_stop() -> None:
    found = decide(dist.HashStore(), FOUR, lost=set(), node_2={"leaving": [2]})
    assert found == dict.fromkeys(FOUR, agreed_on([0, 1, 3], 43, leaving=[2]))
    everybody = {f"node_{name}": {"leaving": [name]} for name in FOUR}
    assert decide(dist.HashStore(), FOUR, lost=set(), **everybody)[0] == agreed_on(FOUR, 43, stop=True)


def test_an_alarm_keeps_everybody_from_going_on() -> None:
    store = dist.HashStore()
    store.set(regroup.ALARM, "the loss is 1e9")
    assert decide(store, [0, 2, 3], lost={1}) == dict.fromkeys([0, 2, 3], "the loss is 1e9")


def test_nobody_connects_to_a_node_that_died_after_the_decision() -> None:
    store, lost = dist.HashStore(), set[int]()
    threading.Timer(0.3, lambda: lost.add(3)).start()
    words = on_threads(lambda name: regroup.wait_until_ready(store, 1, FOUR, name, lambda: lost, 20), [0, 1, 2])
    assert words == {name: f"node {name}: node 3 is gone" for name in (0, 1, 2)}


def test_of_several_answers_the_first_counts_for_all() -> None:
    store = dist.HashStore()

    def answer(name: int) -> str:
        return Question(store, "end", FOUR, name, set, 10).propose(f"said by {name}")

    assert len(set(on_threads(answer, FOUR).values())) == 1


def test_the_lowest_node_that_is_there_answers() -> None:
    store = dist.HashStore()

    def conclude(name: int) -> str:
        return Question(store, "end", FOUR, name, lambda: {0}, 10).answer_by_lowest(lambda: f"said by {name}")

    assert on_threads(conclude, [1, 2, 3]) == dict.fromkeys([1, 2, 3], "said by 1")


def test_the_first_node_leaves_last_whatever_its_name() -> None:
    """The store may be in its process. After the loss of node 0 nobody waited, and the others were left without it."""
    store, gone = dist.HashStore(), []

    def leave(name: int) -> str:
        time.sleep(0.0 if name == 1 else 0.3)
        Question(store, "end", [1, 2, 3], name, set, 10).acknowledge()
        gone.append(name)
        return ""

    on_threads(leave, [1, 2, 3])
    assert gone[-1] == 1


def test_a_silent_node_is_missed_only_where_it_is_needed() -> None:
    """No launcher tells, but its life sign stands still; the others wait just as long, and are not missed."""
    for needed, answer in ((True, f"{BROKEN}node 3 is gone"), (False, "")):
        store = dist.HashStore()

        def wait(name: int, store: dist.Store = store, needed: bool = needed) -> str:
            since, question = time.monotonic(), Question(store, "end", FOUR, name, set, 0.4)
            return question.wait(lambda: time.monotonic() > since + 1.5, lambda node: needed)

        assert on_threads(wait, [0, 1, 2]) == dict.fromkeys([0, 1, 2], answer)


def test_a_store_that_is_gone_is_told_in_one_line() -> None:
    class Gone(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Broken pipe\nException raised from ...")

    with pytest.raises(TrainingError, match=r"^node 2: the store is gone, .* \(Broken pipe\); .* resume=auto"):
        Question(Gone(), "end", FOUR, 2, set, 1).answer()


@pytest.mark.parametrize("name", ["I", "II"])
def test_the_network_of_some_nodes_is_the_twins_whatever_the_order_of_losses(name: str) -> None:
    graph, weights, kept = graphs.exponential(6), normalise([1, 2, 3, 4, 5, 6]), [0, 2, 4, 5]
    W = reference.without(mixing_matrix(graph, strategy(name, weights).mixing_weights, 0.3), kept).toarray()
    between, left = among(graph, weights, kept)
    assert left.sum() == pytest.approx(4)
    for rank, node in enumerate(kept):
        row = row_among(graph, weights, name, 0.3, kept, node)
        assert sorted(row.neighbours) == sorted(between[rank])
        dense = np.zeros(4)
        dense[rank] = row.own
        dense[list(row.neighbours)] = list(row.neighbours.values())
        assert np.allclose(dense, W[rank], atol=1e-15)


def test_in_the_twin_who_returns_starts_from_the_average() -> None:
    theta = np.array([[1.0, 2.0], [3.0, 4.0]])
    back = reference.with_returned(theta, [0, 2], np.array([0.25, 0.75]), 3)
    assert back.tolist() == [[1.0, 2.0], [2.5, 3.5], [3.0, 4.0]]


@pytest.mark.parametrize("text", ["0 1", "0 1 1", "2 1 0", "0 1 9", "0 -1 2", "a b c", ""])
def test_a_checkpoint_that_names_other_nodes_than_it_has_is_refused(text: str, tmp_path: Path) -> None:
    commit = Commit(tmp_path / "c", 10, 3, {"members": text}, [{}] * 3, 0.0)
    with pytest.raises(ConfigError, match="it has 3 files for the nodes"):
        members_of(commit, 6)


def writers(folder: Path, attempt: str, world: int, say: Callable[[str], None]) -> list[Writer]:
    return [Writer(folder, rank, world, attempt, 0.5, {}, say=say) for rank in range(world)]


def test_what_all_had_written_is_committed_though_one_is_lost(tmp_path: Path) -> None:
    before, after = writers(tmp_path, "before", 3, print), writers(tmp_path, "after", 2, print)
    for old, new in zip(before, after, strict=False):
        new.follow(old, frozenset({2}))
    for writer in before[::-1]:  # rank 0 last: it looks for the others' files once, as one of them is lost
        writer.save(10, {"x": torch.zeros(3)})
        writer.finish()
    assert [commit.step for commit in committed(tmp_path)[0]] == [10]


def test_nobody_waits_for_the_file_of_a_lost_rank(tmp_path: Path) -> None:
    """Rank 0 waited ten minutes, and then blamed the file system."""
    said: list[str] = []
    before, after = writers(tmp_path, "before", 3, said.append), writers(tmp_path, "after", 2, said.append)
    for writer in before[:2]:
        writer.save(10, {"x": torch.zeros(3)})
    for old, new in zip(before, after, strict=False):
        new.follow(old, frozenset({2}))
        new.save(20, {"x": torch.zeros(3)})
    assert [writer.wait_for_commit(20) for writer in after] == [True, True]
    assert [commit.step for commit in committed(tmp_path)[0]] == [20]
    assert not said
