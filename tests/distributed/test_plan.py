"""`dgt plan` on real ranks: what it measures, and what `dgt train` makes of its words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.distributed.conftest import Said


@pytest.mark.timeout(180)
def test_a_measured_plan_is_trained_as_it_says(dgt_here: Callable[..., Said], tmp_path: Path) -> None:
    settings = ["weights=[3,1,4,1,5]", "iterations=30", "topology=ring,star"]
    said = dgt_here("plan", *settings, "measure=true", "write=mine", "--json")
    assert said.code == 0, said.stderr
    answer = json.loads(said.stdout)
    assert answer["bandwidth"] > 0
    assert answer["latency"] > 0
    assert answer["recommendation"]["reason"].endswith(".")
    for name, words in (("words", answer["overrides"]), ("file", ["--config-dir", "mine", "experiment=plan"])):
        trained = dgt_here("train", *words, f"run_dir={name}")
        assert trained.code == 0, trained.stderr
    one, other = (yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("words", "file"))
    assert one | {"run_dir": ""} == other | {"run_dir": ""}
    assert one["topology"]["name"] == answer["recommendation"]["topology"]
    records = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("words", "file")]
    assert len(records[0]) == len(records[1]) == 11
