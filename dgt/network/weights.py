"""Node weights lambda: lambda_i > 0 is node i's share of the global loss, and sum_i lambda_i = n.

weights = dgt.weights.named("A")            # the paper's vectors
weights = dgt.weights.normalise([3, 1, 2])  # your own, scaled to sum n
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dgt.config import WeightsConfig, files
from dgt.config.checks import check_choice
from dgt.errors import ConfigError

Weights = npt.NDArray[np.float64]
MOST_BYTES = 256 * 2**20  # of a file

# The four prescribed vectors of the paper's experiments, 16, 16, 32 and 64 nodes.
PAPER: dict[str, list[float]] = {
    "A": [0.3, 0.8, 1.0, 0.9, 0.7, 1.0, 2, 2.2, 1.2, 1.4, 0.8, 0.5, 1.5, 0.6, 0.6, 0.5],
    "B": [0.4, 2.2, 1.2, 0.5, 1.0, 0.6, 1.5, 0.5, 1.0, 0.7, 1.3, 0.9, 1.4, 0.6, 1.2, 1.0],
    "C": [
        1.7, 2.5, 0.5, 0.4, 1.1, 0.4, 0.9, 0.6, 0.5, 0.6, 0.7, 2.6, 0.2, 1.7, 2.0, 0.8,
        0.5, 0.4, 0.3, 1.4, 0.2, 1.5, 0.7, 0.4, 0.4, 0.2, 4.0, 1.7, 0.9, 0.4, 1.5, 0.3,
    ],
    "D": [
        0.5, 1.2, 0.4, 2.5, 0.1, 0.7, 1.5, 0.6, 3.0, 0.2, 0.4, 0.8, 0.5, 1.1, 0.3, 2.0,
        0.7, 0.5, 0.6, 5.0, 0.2, 0.4, 0.9, 1.2, 0.1, 0.7, 0.4, 1.4, 0.6, 0.5, 2.5, 0.3,
        0.8, 0.2, 3.5, 0.6, 0.5, 0.7, 1.0, 0.4, 0.2, 1.8, 0.5, 0.6, 0.3, 0.4, 1.1, 2.2,
        0.1, 0.7, 0.5, 1.5, 0.4, 2.8, 0.2, 0.6, 1.2, 0.4, 2.0, 0.5, 0.7, 1.0, 0.3, 4.5,
    ],
}  # fmt: skip


def uniform(n: int) -> Weights:
    """lambda_i = 1: the ordinary average."""
    return np.ones(n)


def lognormal(n: int, spread: float = 1.0, seed: int = 0) -> Weights:
    """ln lambda_i normal with standard deviation `spread`, then scaled: unequal weights for any number of nodes."""
    return normalise(np.exp(spread * np.random.default_rng(seed).standard_normal(n)))


def named(name: str) -> Weights:
    """One of the paper's vectors, 'A' to 'D'."""
    check_choice("weights", name, PAPER)
    return normalise(PAPER[name])


def normalise(values: Sequence[float] | npt.NDArray[np.float64], n: int | None = None) -> Weights:
    """lambda_i = n v_i / sum_j v_j, after checking that every v_i is finite and positive."""
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"weights={values}: must be a list of numbers") from None
    if weights.ndim != 1 or weights.size == 0:
        raise ConfigError(f"weights: must be a list of at least one number, found an array of shape {weights.shape}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
    if bad.size:
        raise ConfigError(f"weights: node {bad[0]} has {weights[bad[0]]:g}; every weight must be finite and above 0")
    if n is not None and weights.size != n:
        raise ConfigError(f"weights: {weights.size} numbers for nodes={n}; give one per node")
    # divide by the largest first: sums of huge or tiny numbers would over- or underflow
    scaled = weights / weights.max()
    scaled = scaled * (scaled.size / scaled.sum())
    if not (scaled > 0).all():
        least, most = int(weights.argmin()), int(weights.argmax())
        raise ConfigError(
            f"weights: node {least} has {weights[least]:g}, too small to be told from 0 "
            f"beside node {most}, which has {weights[most]:g}"
        )
    return scaled


def from_file(path: str | Path) -> Weights:
    """Numbers separated by spaces, commas or line breaks ('#' starts a comment), or a .npy file."""
    path = Path(path)
    try:
        if path.suffix == ".npy":
            return normalise(_stored_vector(path))
        lines = (line.split("#")[0] for line in files.read_text(path, MOST_BYTES).splitlines())
        return normalise([float(word) for line in lines for word in line.replace(",", " ").split()])
    except ConfigError as error:
        raise ConfigError(f"{error} (in {path})") from None
    except OSError as error:
        raise ConfigError(f"weights.path={path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        reason = str(error).split(". ")[0]  # numpy goes on with how to load pickles all the same
        raise ConfigError(f"weights.path={path}: not a list of numbers ({reason})") from None


def _stored_vector(path: Path) -> npt.NDArray[np.float64]:
    data = files.read(path, MOST_BYTES)
    _refuse_announced(data)
    stored = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(stored, np.ndarray) or stored.dtype.kind not in "fiu":
        raise ValueError(f"found {getattr(stored, 'dtype', 'an archive of arrays')}")
    return stored


def _refuse_announced(data: bytes) -> None:
    """numpy makes room for as many numbers as a file says that it has, before it looks for them."""
    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        return
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > len(data):
        raise ValueError(f"shorter than the {math.prod(shape)} numbers that it announces")


def from_config(config: WeightsConfig, nodes: int | None, data_sizes: Sequence[int] | None = None) -> Weights:
    """The weights a config asks for; `nodes` is needed where the weights have no length of their own."""
    if config.name == "data_size":
        assert data_sizes is not None, "the problem knows its shards"
        return normalise(np.asarray(data_sizes, dtype=np.float64), nodes)
    if config.name == "uniform":
        assert nodes is not None, "decided before"
        return uniform(nodes)
    if config.name == "lognormal":
        assert nodes is not None, "decided before"
        return lognormal(nodes, config.spread, config.seed)
    if config.name == "list":
        weights = normalise(config.values or [])
    elif config.name == "file":
        weights = from_file(config.path or "")
    else:
        weights = named(config.name)
    if nodes is not None and weights.size != nodes:
        label = config.path if config.name == "file" else config.name
        raise ConfigError(
            f"nodes={nodes}: weights {label} has {weights.size} entries; leave nodes out or use nodes={weights.size}"
        )
    return weights


def own_length(config: WeightsConfig) -> int | None:
    """How many nodes these weights are for, None where they fit any number."""
    return None if config.name in ("uniform", "lognormal", "data_size") else int(from_config(config, None).size)
