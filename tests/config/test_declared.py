"""What `conf/` says about a setting, default and comment, is what is declared beside the code that uses it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dgt.commands.bench.job import BenchConfig
from dgt.commands.plan.settings import BudgetConfig, PlanConfig
from dgt.config import CheckpointConfig, Config, StopConfig, WeightsConfig, registry
from dgt.config.compose import conf_dir, groups, settings
from dgt.config.sections import ChaosConfig
from dgt.config.settings import defaults, documented, meanings

LINE = re.compile(r"^ *(?P<key>\w+): (?P<value>.*?)(?: +# (?P<comment>.*))?$")
SECTIONS = {"weights": WeightsConfig, "chaos": ChaosConfig}  # a file has those of its keys that it uses
FILES = [(group, name) for group, names in groups().items() for name in names if name != "custom"]


def written(text: str, indented: bool = False) -> Iterator[tuple[str, Any, str | None]]:
    """(key, value, comment) of every setting in a file; `indented`: of a section within it."""
    for line in text.splitlines():
        found = LINE.match(line)
        if found and found["key"] != "name" and line.startswith("  ") == indented:
            yield found["key"], yaml.safe_load(found["value"]), found["comment"]


def assert_as_declared(declared: type, lines: list[tuple[str, Any, str | None]], label: str) -> None:
    known, usual = dict(meanings(declared)), defaults(declared)
    for key, value, comment in lines:
        expected = "???" if usual[key] is None and value == "???" else usual[key]
        assert (value, comment) == (expected, known[key].help), f"{label}: {key}"


def test_config_yaml_is_as_declared() -> None:
    text = (conf_dir() / "config.yaml").read_text(encoding="utf-8").partition("\n\n")[2]
    top = list(written(text))
    lines = [(key, list(range(value)) if key == "seeds" else value, comment) for key, value, comment in top]
    assert_as_declared(Config, lines, "config.yaml")
    for name, declared in (("checkpoint", CheckpointConfig), ("stop", StopConfig)):
        section = re.search(rf"^{name}:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert section is not None
        lines_of_section = list(written(section[1], indented=True))
        assert_as_declared(declared, lines_of_section, name)
        assert {key for key, _, _ in lines_of_section} == defaults(declared).keys(), "every setting is listed"
    assert {key for key, _, _ in lines} == dict(meanings(Config)).keys(), "every setting is listed"


@pytest.mark.parametrize(("group", "name"), [file for file in FILES if file[0] in {*registry.PLACES, *SECTIONS}])
def test_files_of_groups_are_as_declared(group: str, name: str) -> None:
    file = conf_dir() / group / f"{name}.yaml"
    if not file.is_file() or group == "logger":
        pytest.skip("composed from what is declared")
    text = file.read_text(encoding="utf-8")
    lines = list(written(text, indented="@package _global_" in text))
    declared = SECTIONS.get(group) or registry.settings_class(group, registry.find(group, name))
    assert_as_declared(declared, lines, f"{group}={name}")
    if group in registry.PLACES:
        assert {key for key, _, _ in lines} == defaults(declared).keys(), "every setting is listed"


def test_help_lists_every_setting_with_its_meaning() -> None:
    lines = "\n".join(settings())
    for name, meaning in meanings(Config):
        assert re.search(rf"^{name}: .*# {re.escape(meaning.help)}$", lines, re.MULTILINE)
    for group, name in FILES:
        if group in registry.PLACES and group != "logger":
            for key, meaning in meanings(registry.settings_class(group, registry.find(group, name))):
                assert re.search(rf"{group}\.{key}: .*# {re.escape(meaning.help)}   \[.*{name}", lines), (group, key)


@pytest.mark.parametrize("options", [Config, BenchConfig, PlanConfig, BudgetConfig, CheckpointConfig, StopConfig])
def test_every_option_says_what_it_means(options: type) -> None:
    plain = [field for field in dataclasses.fields(options) if "Config" not in str(field.type)]
    assert [name for name, meaning in meanings(options) if meaning.help] == [field.name for field in plain]
    assert len(documented(options)) == len(plain)
