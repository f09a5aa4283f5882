"""A tiny character-level language model: `dgt train problem=text`, or `experiment=text`.

Every node holds its own stretch of the text, as long as its weight says; the last tenth is the test text of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgt.config.checks import check_range
from dgt.config.settings import setting
from dgt.data.batches import WINDOW, generator
from dgt.data.partition import shard_sizes
from dgt.errors import ConfigError
from dgt.models.transformer import CharTransformer
from dgt.network.weights import Weights
from dgt.problems.base import ProblemContext
from dgt.problems.supervised import Batch, SupervisedProblem

# The Constitution of the United States with its amendments, in the public domain.
SHIPPED = Path(__file__).parents[1] / "data" / "constitution.txt"
TEST_SHARE = 0.1
TEST_BATCH = 64


class CharacterModel(SupervisedProblem):
    """Predict the next character from the ones before it."""

    usual_lr = 0.3

    @dataclass(slots=True, kw_only=True)
    class Settings:
        path: str | None = setting(None, "a text file (UTF-8); null: the one that comes with dgt")
        context: int = setting(64, "characters the model looks back", low=1)
        layers: int = setting(2, "transformer blocks", low=1)
        heads: int = setting(2, "attention heads", low=1)
        width: int = setting(64, "numbers per character, a multiple of heads")
        batch: int = setting(16, "pieces of text per node and iteration", low=1)
        weight_decay: float = setting(0.0, "on the weights of linear layers only", low=0)
        sizes: list[float] | None = setting(
            None, "shares of the text, one per node; null: in proportion to the weights", low=0, open_low=True
        )

        def check(self) -> None:
            check_range("problem.width", self.width, self.heads)
            if self.width % self.heads:
                raise ConfigError(f"problem.width={self.width}: must be a multiple of problem.heads={self.heads}")

    @classmethod
    def check_settings(cls, settings: Settings, weights: Weights) -> None:
        """Every node needs a character and the one after it."""
        train, _, _ = read(settings.path)
        sizes = shard_sizes(len(train), weights, settings.sizes)
        if sizes.min() < 2:
            raise ConfigError(f"partition: node {sizes.argmin()} would get a single character; use fewer nodes")

    @classmethod
    def shard_sizes(cls, settings: Settings, nodes: int, seed: int) -> list[int]:
        """Characters: `problem.sizes`, or the same for all."""
        train, _, _ = read(settings.path)
        return shard_sizes(len(train), np.ones(nodes), settings.sizes).tolist()

    @classmethod
    def steps_per_epoch(cls, settings: Settings, nodes: int) -> float:
        """A sample is a piece of `context` characters."""
        train, _, _ = read(settings.path)
        return len(train) / (nodes * settings.batch * settings.context)

    def __init__(self, context: ProblemContext, /, **settings: Any) -> None:
        config = self.Settings(**settings)
        train, test, symbols = read(config.path)
        sizes = shard_sizes(len(train), context.weights, config.sizes)
        end = int(np.cumsum(sizes)[context.node])
        self.stretch = train[end - int(sizes[context.node]) : end]
        self._test_text = test
        self._config, self._context, self.weight_decay = config, context, config.weight_decay
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)  # the same start on every node
            model = CharTransformer(symbols, config.context, config.layers, config.heads, config.width)
        self.model = model.to(context.device, context.dtype)
        context.part_of(np.empty(config.batch))  # whether the batch can be divided
        self._windows = list(range(0, len(test) - 1, config.context))

    def batch(self, iteration: int) -> Batch:
        # a stretch shorter than the context is a window of its own
        length = min(self._config.context, len(self.stretch) - 1)
        draw = generator(self._context.seed, WINDOW, self._context.node, iteration)
        starts = draw.integers(0, len(self.stretch) - length, size=self._config.batch)
        return self._pieces(self.stretch, self._context.part_of(starts), length)

    @property
    def test_targets(self) -> int:
        return len(self._test_text) - 1

    def test_batches(self, part: int, parts: int) -> Iterator[Batch]:
        windows = self._windows[part::parts]
        for length in sorted({self._length(start) for start in windows}):
            starts = [start for start in windows if self._length(start) == length]
            for first in range(0, len(starts), TEST_BATCH):
                yield self._pieces(self._test_text, np.array(starts[first : first + TEST_BATCH]), length)

    def _length(self, start: int) -> int:
        return min(self._config.context, len(self._test_text) - 1 - start)

    def _pieces(self, text: np.ndarray, starts: np.ndarray, length: int) -> Batch:
        pieces = torch.from_numpy(text[starts[:, None] + np.arange(length + 1)]).to(self._context.device)
        return pieces[:, :-1], pieces[:, 1:]


def read(name: str | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Training text, test text (numbers of characters) and how many different characters there are."""
    path = Path(name) if name is not None else SHIPPED
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"problem.path={path}: cannot read this text ({error})") from None
    symbols, numbers = np.unique(np.array(list(text)), return_inverse=True)
    cut = int(len(text) * (1 - TEST_SHARE))
    if len(text) - cut < 2:
        least = int(1 / TEST_SHARE) + 1
        raise ConfigError(
            f"problem.path={path}: {len(text)} characters are too few to learn and test on; at least {least}"
        )
    return numbers[:cut].astype(np.int64), numbers[cut:].astype(np.int64), len(symbols)


PROBLEM = CharacterModel
