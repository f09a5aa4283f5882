"""Bad input of every kind: one line that names what is wrong and what is allowed, exit code 2, all ranks, at once."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgt.__main__ import main
from dgt.launching import forkserver, launch
from tests.distributed.ranks import DGT, TORCHRUN, command

pytestmark = pytest.mark.timeout(120)

PROBLEMS = """
import dgt

class Other:
    def __init__(self, context): ...

class Idle(dgt.Problem):
    def __init__(self, context): ...

class Fine(dgt.Problem):
    def __init__(self, context, width=3): ...
    def backward(self, iteration): ...

def number(context):
    return 3
"""


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


FILES = {
    "empty": b"",
    "words": b"one two three\n",
    "binary": b"\xff\xfe\x00\x81" * 9,
    "short": b"too short",
    "nan": b"1 nan 2\n",
    "three": b"1\n2, 3\n",
    "pieces": b"0 1\n2 3\n",
    "loop": b"0 1\n1 1\n",
    "far": b"0 1\n1 4\n",
    "negative": b"0 1\n1 -2\n",
    "fraction": b"0 1\n1 2.5\n",
    "path3": b"0 1\n1 2\n",
    "empty.npy": b"",
    "objects.npy": npy(np.array([1, "a", None], dtype=object)),
    "pickle.npy": pickle.dumps([1, 2]),
    "square.npy": npy(np.ones((2, 2))),
    "complex.npy": npy(np.array([1j, 1])),
    "bad_problems.py": PROBLEMS.encode(),
    "bad_syntax.py": b"class (\n",
    "bad_start.py": b"\n1 / 0\n",
    "full/metrics.jsonl": b"{}\n",
    "damaged/checkpoints/00000010-abcd1234/COMMIT": b"{}\nnothing\n",
}

FOUR = ["nodes=4", "weights=uniform"]
TEXT, IMAGES = [*FOUR, "problem=text"], [*FOUR, "problem=cifar10"]


def weights(path: str) -> list[str]:
    return ["weights=file", f"weights.path={path}"]


def edges(path: str) -> list[str]:
    return [*FOUR, "topology=file", f"topology.path={path}"]


def custom(target: str, *arguments: str) -> list[str]:
    return [*FOUR, "problem=custom", f"problem._target_={target}", *arguments]


no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

# what is typed, and how the line goes on after "dgt: error: "
BAD = [
    # typos and types
    (["topology=rnig"], "topology=rnig: did you mean ring? allowed: complete, "),
    (["topolgy=ring"], "topolgy: no such key; did you mean topology?"),
    (["topology.radius=1"], "topology.radius: topology=ring has no such key; it has no settings"),
    (["problem.name=text"], "problem.name=text: choose with problem=NAME; did you mean text? allowed: cifar10, "),
    (["lr=fast"], "lr=fast: must be a number"),
    (["lr=-1"], "lr=-1.0: must be above 0"),
    (["lr=inf"], "lr=inf: must be finite and above 0"),
    (["nodes=2.5"], "nodes=2.5: must be a whole number"),
    (["nodes=3000000000"], "nodes=3000000000: must be at least 1 and at most 1e+07"),
    (["iterations=99999999999x"], "iterations=99999999999x: must be a whole number"),
    (["checkpoint.best=acuracy"], "checkpoint.best=acuracy: did you mean accuracy? say which way is better, "),
    (["checkpoint.best=slope:up"], "checkpoint.best=slope:up: must be METRIC, METRIC:max or METRIC:min"),
    (["overlap=maybe"], "overlap=maybe: must be true or false"),
    (["timeout=1e300"], "timeout=1e+300: must be above 0 and at most 1e+09"),
    (["backend=glo"], "backend=glo: did you mean gloo? allowed: auto, gloo, nccl"),
    (["seed=0", "lr={"], "lr={: cannot read this (no viable alternative at input '{'); special characters need "),
    (["run_dir="], "run_dir=: must not be empty"),
    # weights
    (["weights=[1,-1]"], "weights: node 1 has -1; every weight must be finite and above 0"),
    (["weights=[1,0]"], "weights: node 1 has 0; every weight must be finite and above 0"),
    (["weights=[nan,1]"], "weights: node 0 has nan; every weight must be finite and above 0"),
    (["weights=[1,inf]"], "weights: node 1 has inf; every weight must be finite and above 0"),
    (["weights=[1,x]"], "weights.values=x: must be a number"),
    (["weights=[]"], "weights: must be a list of at least one number, found an array of shape (0,)"),
    (["weights=[1e-320,1e300]"], "weights: node 0 has 9.99989e-321, too small to be told from 0 beside node 1, "),
    (["nodes=8", "weights=A"], "nodes=8: weights A has 16 entries; leave nodes out or use nodes=16"),
    ([*weights("three"), "nodes=4"], "nodes=4: weights three has 3 entries; leave nodes out or use nodes=3"),
    (weights("empty"), "weights: must be a list of at least one number, found an array of shape (0,) (in empty)"),
    (weights("words"), "weights.path=words: not a list of numbers (could not convert string to float: 'one')"),
    (weights("binary"), "weights.path=binary: not a list of numbers ('utf-8' codec "),
    (weights("nan"), "weights: node 1 has nan; every weight must be finite and above 0 (in nan)"),
    (weights("missing"), "weights.path=missing: No such file or directory"),
    (["weights=empty.npy"], "weights.path=empty.npy: not a list of numbers (No data left in file)"),
    (["weights=objects.npy"], "weights.path=objects.npy: not a list of numbers (Object arrays cannot be loaded "),
    (["weights=pickle.npy"], "weights.path=pickle.npy: not a list of numbers (This file contains pickled "),
    (["weights=square.npy"], "weights: must be a list of at least one number, found an array of shape (2, 2) (in "),
    (["weights=complex.npy"], "weights.path=complex.npy: not a list of numbers (found complex128)"),
    # graphs
    (edges("pieces"), "topology.path=pieces: not connected (2 pieces of 4 nodes); no path joins node 0 and node 2"),
    (edges("path3"), "topology.path=path3: not connected (2 pieces of 4 nodes); no path joins node 0 and node 3"),
    (edges("loop"), "topology.path=loop, line 2: '1 1' must join two different nodes from 0 to 3"),
    (edges("far"), "topology.path=far, line 2: '1 4' must join two different nodes from 0 to 3"),
    (edges("negative"), "topology.path=negative, line 2: '1 -2' is not an edge 'i j'"),
    (edges("fraction"), "topology.path=fraction, line 2: '1 2.5' is not an edge 'i j'"),
    (edges("empty"), "topology.path=empty: there is no edge in it; give one 'i j' per line"),
    (edges("missing"), "topology.path=missing: No such file or directory"),
    (
        ["topology=geometric", "topology.radius=0.001"],
        "geometric with topology.radius=0.001, nodes=16: no connected graph in 1000 draws (topology.tries); ",
    ),
    (["topology=tailored", "topology.avg_degree=16"], "topology.avg_degree=16.0: must be at least 1 and at most 15"),
    # data
    ([*IMAGES, "problem.root=words/data"], "cifar10: cannot store it in words/data (Not a directory); root=DIR "),
    ([*IMAGES, "problem.root=words"], "cifar10: cannot store it in words (Not a directory); root=DIR "),
    ([*IMAGES, "problem.sizes=[1,2,3]"], "problem.sizes: 3 numbers for 4 nodes; give one per node"),
    ([*IMAGES, "problem.test_samples=0"], "problem.test_samples=0: must be at least 1 and at most 10000"),
    ([*IMAGES, "problem.test_samples=10001"], "problem.test_samples=10001: must be at least 1 and at most 10000"),
    ([*TEXT, "problem.path=missing"], "problem.path=missing: cannot read this text ([Errno 2] No such file "),
    ([*TEXT, "problem.path=binary"], "problem.path=binary: cannot read this text ('utf-8' codec "),
    ([*TEXT, "problem.path=short"], "problem.path=short: 9 characters are too few to learn and test on; at least 11"),
    # problems of one's own
    (custom("nowhere.Mine"), "problem._target_=nowhere.Mine: cannot import it (No module named 'nowhere')"),
    (
        custom("bad_problems.Mine"),
        "problem._target_=bad_problems.Mine: cannot import it (module 'bad_problems' has no ",
    ),
    (custom("bad_syntax.Mine"), "problem._target_=bad_syntax.Mine: cannot import it (invalid syntax (bad_syntax.py, "),
    (
        custom("bad_start.Mine"),
        "problem._target_=bad_start.Mine: cannot import it (ZeroDivisionError: division by zero",
    ),
    (
        custom("bad_problems.Other"),
        "problem._target_=bad_problems.Other: must be a class derived from dgt.Problem, or ",
    ),
    (custom("bad_problems.Idle"), "problem._target_=bad_problems.Idle: give it the method backward"),
    (
        custom("bad_problems.Fine", "problem.widht=4"),
        "problem._target_=bad_problems.Fine: got an unexpected keyword argument 'widht'; "
        "its arguments beside the context: width",
    ),
    (
        custom("bad_problems.Fine", "problem.width={_target_:nowhere.Mine}"),
        "problem._target_=nowhere.Mine: cannot import it (No module named 'nowhere')",
    ),
    # run directory
    (["run_dir=full"], "run_dir=full: already holds a run; choose another directory, or resume=auto"),
    (["run_dir=words"], "run_dir=words: cannot write there (Not a directory); choose another directory"),
    (["run_dir=/proc/run"], "run_dir=/proc/run: cannot write there (No such file or directory); choose another"),
    # checkpoints, faults
    (["resume=auto"], "resume=auto: say which run, run_dir=DIR"),
    (["resume=missing"], "resume=missing: no complete checkpoint there; give a run or checkpoint directory"),
    (["resume=full"], "resume=full: no complete checkpoint there; give a run or checkpoint directory"),
    (["warm_start=true"], "warm_start=true: say from where, resume=DIR (resume=none here)"),
    (["checkpoint.every=-1"], "checkpoint.every=-1: must be at least 0"),
    (["checkpoint.evry=1"], "checkpoint.evry: no such key; did you mean "),
    (["on_peer_loss=ignore"], "on_peer_loss=ignore: allowed: stop, continue"),
    (["chaos=kil"], "chaos=kil: did you mean kill"),
    (["chaos=kill", "chaos.phase=lunch"], "chaos.phase=lunch: allowed: step, copy, write, rename, commit, prune"),
    (["chaos=kill", "chaos.rank=16"], "chaos.rank=16: must be at least 0 and at most 15"),
    (["chaos=pause", "chaos.damage=flip"], "chaos.damage: chaos=pause has no such key; allowed: chaos.rank, "),
    # steps and their end
    (["schedule=cosin"], "schedule=cosin: did you mean cosine? allowed: constant, cosine, custom, linear, onecycle, "),
    (["schedule=cosine", "schedule.warmup=300"], "schedule.warmup=300: must be below iterations=300"),
    (["schedule.floor=0.1"], "schedule.floor: schedule=constant has no such key; "),
    ([*TEXT, "epochs=1", "schedule.warmup=99999"], "schedule.warmup=99999: must be below iterations="),
    (["clip=0"], "clip=0.0: must be above 0"),
    ([*TEXT, "clip=1", "bucket_mb=1"], "clip=1: with bucket_mb=1 gradients leave during backward, before their norm "),
    ([*TEXT, "precision=half"], "precision=half: allowed: full, bf16, fp16"),
    ([*TEXT, "precision=fp16"], "precision=fp16: small gradients vanish in it without a loss scaler, which dgt train "),
    ([*TEXT, "precision=bf16", "dtype=float64"], "precision=bf16: torch.autocast leaves dtype=float64 alone; leave "),
    (["precision=bf16"], "precision=bf16: problem=least_squares has no forward pass to make in it; leave it out"),
    (["epochs=2"], "epochs=2: problem=least_squares does not say how long an epoch is; give iterations"),
    ([*TEXT, "epochs=2", "iterations=9"], "iterations=9: epochs=2 says how many; give one of them"),
    (["stop.when=acuracy>0.5"], "stop.when=acuracy: did you mean accuracy? allowed: grad_norm, "),
    (["stop.when=loss<few"], "stop.when=loss<few: give METRIC>NUMBER, METRIC<NUMBER or METRIC, such as accuracy>0.6"),
    (["stop.when=accuracy>0.5", "nodes=2"], "stop.when=accuracy>0.5: not measured here; there are loss, grad_norm, "),
    (["crc=sometimes"], "crc=sometimes: must be true or false"),
    ([*FOUR, "resume=damaged"], "resume=damaged: no checkpoint there is whole"),
    # found by ranks
    pytest.param([*FOUR, "backend=nccl"], "backend=nccl: rank 0 has no GPU; use backend=gloo or ", marks=no_gpu),
    pytest.param([*FOUR, "device=cuda"], "device=cuda: rank 0 has no GPU; use device=cpu", marks=no_gpu),
    (custom("bad_problems.number"), "problem._target_=bad_problems.number: made int, must make a dgt.Problem"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))  # and everything that the search for problems adds is undone
    return tmp_path


@pytest.mark.parametrize(("overrides", "words"), BAD, ids=lambda value: value[-1] if isinstance(value, list) else "")
def test_bad_input_is_one_line_and_exit_code_2(files: Path, dgt_here, overrides: list[str], words: str) -> None:
    said = dgt_here("train", *overrides)
    assert said.stderr.startswith(f"dgt: error: {words}")
    assert said.stderr.count("\n") == 1
    assert (said.code, said.stdout) == (2, "")
    assert (files / "full" / "metrics.jsonl").read_bytes() == FILES["full/metrics.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: COMMAND; see dgt --help"),
        (["trian"], "argument COMMAND: invalid choice: 'trian' (choose from "),
        (["train", "--fast"], "--fast: no such option"),
        (["run", "-n", "two", "x.py"], "argument -n: invalid int value: 'two'; see dgt run --help"),
        (["run", "-n", "2", "missing.py"], "missing.py: no such file"),
        (["run", "-n", "0", "x.py"], "-n=0: must be at least 1"),
        (["compare", "warm_start=true"], "warm_start: for dgt train only; dgt compare runs every cell from its start"),
        (["compare", "resume=."], "resume=.: dgt compare goes on in its own directory only, with resume=auto"),
        (["bench", "topology=rnig"], "topology=rnig: did you mean ring? allowed: "),
        (["train", "seeds=3"], "seeds: the seeds of dgt compare; here a run has one, seed=0, and -m seed=0,1,2 makes "),
        (["simulate", "seeds=3"], "seeds: the seeds of dgt compare; here a run has one"),
        (["compare", "checkpoint.every=3"], "checkpoint.every: for dgt train only; dgt compare runs every cell from "),
        (["compare", "stop.when=loss<1"], "stop.when: not for dgt compare, where all cells make the same number of "),
        (["simulate", "precision=bf16"], "precision=bf16: for the ranks of dgt train; dgt simulate has none"),
        (["plan", "schedule=cosine"], "schedule=cosine: dgt plan predicts so many iterations of the same step, "),
        (["compare", "seeds=two"], "seeds=two: must be a count above 0 or a list of different seeds"),
        (["compare", "seeds=0"], "seeds=0: must be at least 1"),
        (["compare", "lr=0.01,0.02"], "lr=0.01,0.02: dgt compare varies weights and topology; give one lr"),
        (["compare", "strategy=I"], "strategy: dgt compare runs both"),
        (["gaps", "weights=A"], "weights: the table is the paper's"),
    ],
)
def test_all_commands_refuse_what_they_cannot_do(dgt_here, arguments: list[str], words: str) -> None:
    said = dgt_here(*arguments)
    assert said.stderr.startswith(f"dgt: error: {words}")
    assert said.stderr.count("\n") == 1
    assert (said.code, said.stdout) == (2, "")


@pytest.mark.parametrize("rank", ["one", "2"])
def test_a_rank_that_is_none_speaks_for_itself(dgt_here, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """Only rank 0 used to speak, and such a process is not rank 0: it left without a word."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = dgt_here("train")
    assert re.match(rf"dgt: error: the launcher's environment is incomplete or wrong: .*{rank}.*\n$", said.stderr)
    assert said.code == 2


def test_no_room_for_semaphores_is_told_in_one_line(dgt_here, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a full /dev/shm, 30 lines of traceback used to end in multiprocessing."""

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(launch, "elastic_launch", full)
    said = dgt_here("train", "weights=[1,2]", "topology=ring")
    assert re.match(
        r"dgt: error: cannot start ranks \(No space left on device\); they need .*/dev/shm.*\n$", said.stderr
    )
    assert said.code == 1


def test_no_place_for_temporary_files_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that is read-only throughout."""

    def nowhere() -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(forkserver, "start", nowhere)
    monkeypatch.setattr(sys, "argv", ["dgt", "train"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == (
        "dgt: error: cannot start ranks (No usable temporary directory found in ['/tmp'])\n"
    )


def test_a_launcher_without_an_address_is_told_in_one_line(tmp_path: Path) -> None:
    done = command([*DGT, "train", "nodes=1", "weights=uniform"], tmp_path, RANK="0", WORLD_SIZE="1")
    assert re.match(r"dgt: error: the launcher's environment is incomplete .* MASTER_ADDR .*\n$", done.stderr)
    assert done.returncode == 2


def test_a_rendezvous_host_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29500"}
    done = command([*DGT, "train"], tmp_path, **told)
    words = "MASTER_ADDR=no-such-host.invalid: no such host; give a name or address that all hosts know"
    assert (done.returncode, done.stderr) == (2, f"dgt: error: {words}\n")


@pytest.mark.parametrize(
    ("ranks", "arguments", "words"),
    [
        (2, ["compare"], "dgt compare starts its own ranks, for every network size; run it outside torchrun"),
        (3, ["train", "weights=A"], "world size 3: this network has 16 nodes; start 16 ranks, one per node"),
        (
            2,
            ["train", "weights=uniform", "problem=custom", "problem._target_=bad_problems.number"],
            "problem._target_=bad_problems.number: made int, must make a dgt.Problem",
        ),
    ],
)
def test_bad_input_under_torchrun_is_said_once_and_ends_all_ranks(
    files: Path, ranks: int, arguments: list[str], words: str
) -> None:
    launcher = [*TORCHRUN, "--nproc-per-node", str(ranks), "-m", "dgt"]
    done = command([*launcher, *arguments], files, 100, CUDA_VISIBLE_DEVICES="")  # nobody waits 300 s for a rank
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("dgt: ")]
    assert said.startswith(f"dgt: error: {words}")
    assert re.findall(r"exitcode +: (-?\d+)", done.stderr) == ["2"] * ranks
    assert not re.search(r'File ".*/dgt/', done.stderr), "no traceback of ours"
