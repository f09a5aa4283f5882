"""Random schedules of faults: which signals which nodes of a run get, at which iterations, and how the run has to end.

`DGT_SEED=17 DGT_SCHEDULES=1 pytest -m trials tests/distributed/test_lost_nodes.py -s` repeats one of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

import dgt
from dgt.errors import EXIT_STOPPED, LaunchError
from dgt.network import graphs
from tests.distributed.problems import Noisy
from tests.distributed.runs import commits, metrics, train

ITERATIONS = 120
TIMEOUT = 20.0  # of the run; nobody is stopped for that long
START, BOUND = 180.0, 3 * TIMEOUT  # seconds to begin, and without a step from then on, on a busy machine


class Watched(Noisy):
    """As `Noisy`; tells its process and its iteration to whoever looks into the folder."""

    def __init__(self, context: dgt.ProblemContext, folder: str, pause: float = 0.004, width: int = 16) -> None:
        super().__init__(context, pause, width)
        faulthandler.register(signal.SIGUSR2)  # where it is, for a schedule that hangs
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._at = os.open(Path(folder) / f"{context.node}", os.O_CREAT | os.O_RDWR, 0o600)
        self._tell(0)

    def backward(self, iteration: int) -> float:
        self._tell(iteration)
        return super().backward(iteration)

    def _tell(self, iteration: int) -> None:
        os.pwrite(self._at, struct.pack("<qq", os.getpid(), iteration), 0)


def progress(folder: Path) -> dict[int, tuple[int, int]]:
    """Process and iteration of every node that has begun."""
    found = {}
    for path in folder.glob("[0-9]*"):
        data = path.read_bytes()
        if len(data) == 16:
            found[int(path.name)] = struct.unpack("<qq", data)
    return found


@dataclass(frozen=True)
class Fault:
    """One signal to one node, when a node has come this far, or later if nobody moves; STOP is followed by CONT."""

    iteration: int
    node: int
    name: str
    seconds: float = 0.0
    """How long a stopped node stays so."""

    def __str__(self) -> str:
        rest = f" for {self.seconds:.2f} s" if self.name == "STOP" else ""
        return f"{self.name} {self.node} at {self.iteration}{rest}"


@dataclass(frozen=True)
class Schedule:
    """A run and its faults, drawn from a seed."""

    seed: int
    nodes: int
    transport: str
    on_peer_loss: str
    width: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        said = "; ".join(map(str, self.faults))
        settings = f"transport={self.transport} on_peer_loss={self.on_peer_loss} width={self.width}"
        return f"seed {self.seed}: {self.nodes} nodes, {settings}: {said}"

    @property
    def iterations(self) -> int:
        """Who is to come back needs its time."""
        return 5 * ITERATIONS if self.on_peer_loss == "replace" else ITERATIONS

    @property
    def killed(self) -> set[int]:
        return {fault.node for fault in self.faults if fault.name == "KILL"}

    @property
    def asked(self) -> set[int]:
        """Nodes that are asked to stop."""
        return {fault.node for fault in self.faults if fault.name == "TERM"}


def drawn(seed: int) -> Schedule:
    """One to four faults; those who are left are a majority, and connected."""
    draw = random.Random(seed)
    while True:
        nodes = draw.randint(4, 7)
        faults, at, living = [], draw.randrange(5, 50), list(range(nodes))
        for _ in range(draw.randint(1, 4)):
            name, node = draw.choice(["KILL", "KILL", "STOP", "STOP", "TERM"]), draw.choice(living)
            faults.append(Fault(at, node, name, draw.choice([0.05, 0.3, 1.0])))
            living = [other for other in living if other != node or name != "KILL"]
            at += draw.choice([0, 0, 1, 3, 12])
        way = draw.choice(["messages", "messages", "auto"])
        schedule = Schedule(
            seed, nodes, way, draw.choice(["continue", "replace", "stop"]), draw.choice([16, 4000]), tuple(faults)
        )
        left = [node for node in range(nodes) if node not in schedule.killed]
        connected = nx.is_connected(graphs.exponential(nodes).subgraph(left)) if left else False
        if connected and 2 * len(left) > nodes:
            return schedule


@dataclass
class Outcome:
    """How a run ended."""

    code: int = 0
    words: str = ""
    said: str = ""
    """Standard error of the launcher and of all ranks."""
    struck: list[str] = field(default_factory=list)
    hung: bool = False


def play(schedule: Schedule, folder: Path, stderr: Callable[[], str]) -> Outcome:
    """Run it on real ranks; `stderr` gives what was printed since it was last called."""
    outcome, over = Outcome(), threading.Event()
    striking = threading.Thread(target=Striker(schedule, folder / "at", outcome, over).run)
    stderr()
    striking.start()
    try:
        train(
            folder / "run", "problem=custom", "problem._target_=tests.distributed.schedules.Watched",
            f"problem.folder={folder / 'at'}", f"problem.width={schedule.width}", f"nodes={schedule.nodes}",
            "weights=uniform", "topology=exponential", f"iterations={schedule.iterations}", "eval_every=10", "lr=0.05",
            "replace.pause=0",
            f"transport={schedule.transport}", f"on_peer_loss={schedule.on_peer_loss}", f"timeout={TIMEOUT}",
        )  # fmt: skip
    except LaunchError as error:
        outcome.code, outcome.words = error.code, str(error)
    finally:
        over.set()
        striking.join()
    outcome.said = stderr()
    return outcome


class Striker:
    """Sends the signals of a schedule, and ends all ranks if none makes a step for longer than it may."""

    def __init__(self, schedule: Schedule, folder: Path, outcome: Outcome, over: threading.Event) -> None:
        self._schedule, self._folder, self._outcome, self._over = schedule, folder, outcome, over
        self._waking: list[tuple[float, int]] = []
        self._furthest, self._moved = -1, time.monotonic()

    def run(self) -> None:
        for fault in self._schedule.faults:
            while self._goes_on() and not self._is_due(fault):
                time.sleep(0.002)
            if not self._over.is_set() and not self._outcome.hung:
                self._strike(fault)
        while self._goes_on():
            self._over.wait(0.005)

    def _is_due(self, fault: Fault) -> bool:
        """At its iteration; earlier if nobody moves because one of them is stopped."""
        stuck = bool(self._waking) and time.monotonic() > self._moved + 0.4
        return len(progress(self._folder)) == self._schedule.nodes and (self._furthest >= fault.iteration or stuck)

    def _strike(self, fault: Fault) -> None:
        pid = progress(self._folder)[fault.node][0]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{fault.name}"])
            self._outcome.struck.append(str(fault))
            if fault.name == "STOP":
                self._waking.append((time.monotonic() + fault.seconds, pid))

    def _goes_on(self) -> bool:
        """Wake those who have slept enough; False once the run is over, or hangs."""
        for when, pid in [pair for pair in self._waking if time.monotonic() > pair[0]]:
            self._waking.remove((when, pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        there = progress(self._folder)
        now = max((iteration for _, iteration in there.values()), default=-1)
        if now > self._furthest:
            self._furthest, self._moved = now, time.monotonic()
        if time.monotonic() > self._moved + (BOUND if len(there) == self._schedule.nodes else START):
            self._end_all()
        return not self._over.is_set() and not self._outcome.hung

    def _end_all(self) -> None:
        self._outcome.hung = True
        for number in (signal.SIGUSR2, signal.SIGKILL):  # first everybody says where it is
            for pid, _ in progress(self._folder).values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._over.wait(1)


def wrong(schedule: Schedule, outcome: Outcome, folder: Path) -> list[str]:
    """What is not as it has to be; empty if all is well."""
    return list(_wrong(schedule, outcome, folder / "run"))


def _wrong(schedule: Schedule, outcome: Outcome, run: Path) -> Iterator[str]:
    if outcome.hung:
        yield f"nobody made a step for {BOUND:g} s"
        return
    if "Traceback" in outcome.said or re.search(r"terminate called|what\(\):", outcome.said):
        yield "a traceback"
    if len(outcome.struck) < len(schedule.faults) and outcome.code == 0:
        yield "the run was over before its faults"
    killed, asked = schedule.killed, schedule.asked - schedule.killed
    if schedule.on_peer_loss == "stop" and killed:
        if outcome.code == EXIT_STOPPED and schedule.asked:
            yield from _saved_wrong(outcome, run)
        elif outcome.code != 1:
            yield f"exit code {outcome.code} in place of 1"
        elif not re.search(
            "|".join(rf"rank {node} was killed \(SIGKILL\)|r {node} is gone" for node in killed), outcome.words
        ):
            yield "no killed rank named"
        return
    named = {int(rank) for rank in re.findall(r"rank (\d+) was killed", outcome.said)}
    if named != killed and not schedule.asked:
        yield f"ranks {sorted(named)} named as killed"
    if re.search(r"rank \d+ left|came too late", outcome.said + outcome.words):
        yield "a healthy node was lost"
    if asked or (schedule.asked and outcome.code == EXIT_STOPPED):
        if outcome.code != EXIT_STOPPED:
            yield f"exit code {outcome.code} in place of {EXIT_STOPPED}"
        else:
            yield from _saved_wrong(outcome, run)
        return
    if outcome.code:
        yield f"exit code {outcome.code} in place of 0"
        return
    if metrics(run)[-1]["iteration"] != schedule.iterations:
        yield f"metrics end at iteration {metrics(run)[-1]['iteration']}"
    back = schedule.nodes if schedule.on_peer_loss == "replace" else schedule.nodes - len(killed)
    if not schedule.nodes - len(killed) <= commits(run)[-1].world <= back:
        yield f"{commits(run)[-1].world} nodes in the last checkpoint"
    events = run / "events.jsonl"
    if killed and events.exists():
        found = [json.loads(line) for line in events.read_text().splitlines()]
        members = [event["members"] for event in found if event["event"] == "membership"][-1]
        left = {node for node in range(schedule.nodes) if node not in killed}
        if not left <= set(members) or (schedule.on_peer_loss != "replace" and left != set(members)):
            yield f"members {members} went on"


def _saved_wrong(outcome: Outcome, run: Path) -> Iterator[str]:
    said = re.search(r"stopped (?:by SIGTERM )?at iteration (\d+)", outcome.words)
    if said is None:
        yield "not said to have stopped"
    elif not commits(run) or commits(run)[-1].step != int(said[1]):
        yield "no checkpoint of the iteration it stopped at"
