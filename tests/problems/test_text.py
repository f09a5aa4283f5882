"""The character model, made from its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from dgt.config.compose import compose
from dgt.network.weights import uniform
from dgt.problems import from_config
from dgt.problems.text import CharacterModel


def test_every_setting_reaches_the_model(tmp_path: Path) -> None:
    """The setting `context` once met the argument of that name, and no run of problem=text got past its start."""
    config = compose(["problem=text", "nodes=2", "problem.width=8", "problem.layers=1", "problem.context=5"])
    assert set(config.problem.values) == {field.name for field in dataclasses.fields(CharacterModel.Settings)}
    problem = from_config(config, uniform(2), 1, [0], torch.device("cpu"), tmp_path)
    assert problem.model.position.weight.shape == (5, 8)
    loss = problem.backward(0)
    assert loss is not None
    assert loss > 0
