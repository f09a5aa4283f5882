"""`dgt export` on checkpoints that are whole, damaged or hostile, and beside files that are there already."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dgt.commands.export import COMMAND
from dgt.errors import ConfigError
from dgt.runs.layout import CHECKPOINTS, EXPORTS, MODEL
from dgt.training.checkpoints.files import COMMIT, Writer, read_commit
from dgt.training.checkpoints.models import about_of, parsed, state_of
from tests.training.test_checkpoint import Hostile, recommit
from tests.training.test_untrusted import HOSTILE, saved

pytestmark = pytest.mark.timeout(60)

SHARES = (0.1, 0.2, 0.7)
FACTS = {"world": "3 nodes", "strategy": "II", "model": "12 of torch.float32: 4x3:float32"}


def net(value: float) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4))
    for tensor in made.state_dict().values():
        tensor.fill_(int(value))
    return made


def run_with(folder: Path, *steps: int, with_model: bool = True, **facts: str) -> Path:
    """A run whose node i has the number step + i everywhere; model.pt in the checkpoints has -step instead."""
    writers = [
        Writer(folder / CHECKPOINTS, rank, 3, "abcd1234", SHARES[rank], FACTS | facts, keep_last=9, patience=5)
        for rank in range(3)
    ]
    for step in steps:
        model = state_of(net(-step), {"iteration": step}) if with_model else None
        for rank, writer in enumerate(writers):
            state = {"model": net(step + rank).state_dict(), "losses": [0.5]}
            writer.save(step, state, model if rank == 0 else None)
        for writer in writers:
            assert writer.wait_for_commit(step)
            writer.finish()
    return folder


def export(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    """The line it prints, and the file that it names."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.set_defaults(overrides=[])
    COMMAND.add_arguments(parser)
    COMMAND.run(parser.parse_args(words))
    (line,) = capsys.readouterr().out.splitlines()
    path = Path(line.partition(": ")[0])
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return line, load_file(path)
    return line, torch.load(path, weights_only=True)


def value_of(state: dict[str, Any]) -> float:
    values = {float(tensor.flatten()[0]) for tensor in state.values() if tensor.is_floating_point()}
    assert len(values) == 1, values
    net(0).load_state_dict(state)
    return values.pop()


def test_the_last_checkpoint_or_that_of_an_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with(tmp_path / "r", 10, 20)
    line, state = export(capsys, str(run))
    assert line == (
        f"{run}/exports/model-20.pt: the network average of 3 nodes at iteration 20 of {run}, 12 parameters"
    )
    assert value_of(state) == -20
    assert about_of(state) == {"iteration": 20, "nodes": 3, "strategy": "II"}
    line, state = export(capsys, str(run), "--checkpoint", "10", "--node", "2", "--format", "safetensors")
    assert line.startswith(f"{run}/exports/node-2-10.safetensors: the model of node 2 at iteration 10 of ")
    assert value_of(state) == 12
    line, state = export(capsys, str(run / CHECKPOINTS / "000000000010-abcd1234"), "--output", str(tmp_path))
    assert line.startswith(f"{tmp_path}/model-10.pt: ")


@pytest.mark.parametrize("lost", ["never written", "damaged", "removed"])
def test_the_average_is_put_together_where_the_checkpoint_has_none(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path / "r", 10, with_model=lost != "never written")
    for file in run.rglob(MODEL):
        file.unlink() if lost == "removed" else file.write_bytes(b"x" * file.stat().st_size)
    line, state = export(capsys, str(run))
    assert "the network average of 3 nodes (put together from their states) at iteration 10" in line
    assert value_of(state) == pytest.approx(0.1 * 10 + 0.2 * 11 + 0.7 * 12)
    assert int(state["1.num_batches_tracked"]) == 10, "an integer is the first node's"


def test_nodes_keep_their_names_when_some_are_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with(tmp_path / "r", 10, world="5 nodes", members="0 2 4")
    _, state = export(capsys, str(run), "--node", "4")
    assert value_of(state) == 12
    with pytest.raises(ConfigError, match=r"^--node=1: no such node; the checkpoint .* has the nodes 0, 2, 4$"):
        export(capsys, str(run), "--node", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "3"], "--node=3: no such node; the checkpoint of iteration 20 has the nodes 0, 1, 2"),
        (["--node", "-1"], "--node=-1: no such node"),
        (["--checkpoint", "15"], "--checkpoint=15: no checkpoint of that iteration in .*; allowed: 10, 20"),
        (["--output", "missing/a.pt"], "missing/a.pt: cannot write there"),
    ],
)
def test_what_is_not_there_is_named(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path / "r", 10, 20)
    with pytest.raises(ConfigError, match=f"^{said}"):
        export(capsys, str(run), *words)
    assert not (run / EXPORTS).exists()


def test_only_runs_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no such directory; give a run directory"):
        export(capsys, str(tmp_path / "r"))
    with pytest.raises(ConfigError, match=r"no complete checkpoint and no model\.pt there"):
        export(capsys, str(tmp_path))
    with pytest.raises(ConfigError, match=r"--node=1: .* holds no complete checkpoint"):
        export(capsys, str(tmp_path), "--node", "1")
    os.mkfifo(tmp_path / MODEL)
    with pytest.raises(ConfigError, match="cannot be read"):
        export(capsys, str(tmp_path))


def test_a_file_that_is_there_stays_unless_force_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, mine, link = run_with(tmp_path / "r", 10), tmp_path / "mine", tmp_path / "link.pt"
    first, _ = export(capsys, str(run))
    assert export(capsys, str(run))[0] == f"{first}; it was there already", "the same bytes"
    mine.write_text("a poem")
    link.symlink_to(mine)
    for path in (mine, link):
        with pytest.raises(ConfigError, match="there is another file; --force replaces it"):
            export(capsys, str(run), "--output", str(path))
    export(capsys, str(run), "--output", str(link), "--force")
    assert mine.read_text() == "a poem", "the link is replaced, not what it leads to"
    assert not link.is_symlink()
    (tmp_path / "elsewhere").mkdir()
    for file in (run / EXPORTS).iterdir():
        file.unlink()
    (run / EXPORTS).rmdir()
    (run / EXPORTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="exports is a link"):
        export(capsys, str(run))


def tampered(run: Path, file: str, data: bytes) -> None:
    """Another file, and a COMMIT that vouches for it."""
    (path,) = (run / CHECKPOINTS).iterdir()
    if file != MODEL:
        recommit(path, int(file), data)
        return
    (path / MODEL).write_bytes(data)
    record = json.loads((path / COMMIT).read_bytes().split(b"\n")[0])
    record["model"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    text = json.dumps(record, sort_keys=True).encode()
    (path / COMMIT).write_bytes(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")
    assert read_commit(path).model is not None


@pytest.mark.parametrize("file", [MODEL, "1"])
def test_nothing_in_a_file_of_a_stranger_is_run_or_believed(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, proof = run_with(tmp_path / "r", 10), tmp_path / "proof"
    one = torch.zeros(100_000)
    bad: dict[str, Any] = {
        "runs": Hostile(proof),
        "expanded": {"w": torch.ones(1).expand(10**11)},
        "the same memory many times": {f"w{k}": one.view(-1) for k in range(1000)},
        "no names": {1: torch.ones(3)},
        "no tensors": [1, 2],
        "sparse": {"w": torch.eye(3).to_sparse()},
    }
    words = [str(run)] if file == MODEL else [str(run), "--node", file]
    for name, value in bad.items():
        tampered(run, file, saved(value if file == MODEL else {"model": value}))
        with pytest.raises(ConfigError, match="refused, "):
            export(capsys, *words)
        assert not (run / EXPORTS).exists(), name
    for name, (make, _) in HOSTILE.items():
        tampered(run, file, make())
        with pytest.raises(ConfigError, match="refused, "):
            export(capsys, *words)
        assert not (run / EXPORTS).exists(), name
    assert not proof.exists()


def test_models_of_different_shapes_are_not_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with(tmp_path / "r", 10, with_model=False)
    tampered(run, "1", saved({"model": torch.nn.Linear(3, 3).state_dict()}))
    with pytest.raises(ConfigError, match="the models of ranks 0 and 1 differ"):
        export(capsys, str(run))


@pytest.mark.parametrize("change", [{"model": "abc"}, {"model": {}}, {"model": {"sha256": "a", "bytes": -1}}])
def test_a_record_that_says_nonsense_of_its_model_is_damaged(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path / "r", 10)
    (path,) = (run / CHECKPOINTS).iterdir()
    record = json.loads((path / COMMIT).read_bytes().split(b"\n")[0]) | change
    text = json.dumps(record, sort_keys=True).encode()
    (path / COMMIT).write_bytes(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")
    with pytest.raises(ConfigError, match="no checkpoint there is whole"):
        export(capsys, str(run))


def test_what_modules_keep_besides_tensors_comes_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Counting(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"seen": 3}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    memory = io.BytesIO()
    torch.save(state_of(Counting(2, 2), {"iteration": 4}), memory)
    (tmp_path / MODEL).write_bytes(memory.getvalue())
    _, state = export(capsys, str(tmp_path))
    loaded = Counting(2, 2)
    loaded.load_state_dict(state)
    assert loaded.seen == 3
    with pytest.raises(ConfigError, match="_extra_state is no tensor, which this format cannot hold"):
        export(capsys, str(tmp_path), "--format", "safetensors")


def test_torch_alone_opens_it_as_an_ordinary_state_dict(tmp_path: Path) -> None:
    memory = io.BytesIO()
    torch.save(state_of(net(3), {"iteration": 4}), memory)
    (tmp_path / "m.pt").write_bytes(memory.getvalue())
    program = (
        "import sys, torch; sys.modules['dgt'] = None\n"
        "m = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4))\n"
        "print(m.load_state_dict(torch.load('m.pt', weights_only=True)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "<All keys matched successfully>\n", done.stderr
    assert about_of(parsed(memory.getvalue(), "there")) == {"iteration": 4}
