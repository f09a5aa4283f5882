"""A config in the words that make it: overrides for the command line, or a file that `experiment=NAME` finds.

dgt train $(words)                                   # overrides_of(config)
dgt train --config-dir FOLDER experiment=plan        # write(config, FOLDER)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dgt.config import Config
from dgt.config import compose as composing
from dgt.errors import ConfigError


def overrides_of(config: Config) -> list[str]:
    """The words for `dgt train` that make this config."""
    groups, changes = _differences(config)
    return [f"{group}={_as_word(name)}" for group, name in groups.items()] + [
        f"{key}={_as_word(value)}" for key, value in changes.items()
    ]


def fragment(config: Config) -> str:
    """The same as an experiment: a file experiment/plan.yaml in a folder given as --config-dir."""
    groups, changes = _differences(config)
    lines: dict[str, Any] = {"defaults": [{f"override /{group}": name} for group, name in groups.items()]}
    listed = {f"{group}.name": names for group, names in groups.items() if isinstance(names, list)}  # the last, else
    for key, value in (changes | listed).items():
        section, _, name = key.partition(".")
        if name:
            lines.setdefault(section, {})[name] = value
        else:
            lines[section] = value
    return "# @package _global_\n" + yaml.safe_dump(lines, sort_keys=False)


def write(config: Config, folder: str) -> Path:
    """The fragment where `dgt train --config-dir FOLDER experiment=plan` finds it."""
    path = Path(folder) / "experiment" / "plan.yaml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fragment(config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"write={folder}: cannot write there ({error.strerror})") from None
    return path


def _differences(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choices a config makes in groups, and every key that differs from what these choices set."""
    values = config.to_dict()
    groups = {name: values[name]["name"] for name in ("weights", "topology", "strategy")}
    for name in ("problem", "algorithm", "schedule", "logger", "chaos"):
        if values[name]["name"] != Config().to_dict()[name]["name"]:
            groups[name] = values[name]["name"]
    targets = [name for name in groups if "_target_" in values[name] and name != "logger"]
    groups |= dict.fromkeys(targets, "custom")
    needed = [f"{group}.{key}=x" for group, key in (("weights", "path"), ("topology", "path")) if key in values[group]]
    needed += ["weights.values=[1]"] * ("values" in values["weights"])
    needed += [f"{group}._target_=x" for group in targets]
    plain = composing.compose([*(f"{group}={_as_word(name)}" for group, name in groups.items()), *needed]).to_dict()
    return groups, dict(_changed(values, plain))


def _changed(values: Mapping[str, Any], plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _changed(value, plain.get(key) or {}, f"{prefix}{key}.")
        elif key != "name" and value != plain.get(key):
            yield prefix + key, value


def _as_word(value: Any) -> str:
    if isinstance(value, str):
        quoted = value.replace("'", "\\'")
        return f"'{quoted}'" if set(value) & set(" ,=[]{}()<>'\"\\:") else value
    if isinstance(value, list):
        return "[" + ",".join(map(_as_word, value)) + "]"
    return json.dumps(value)  # true, false, null and numbers are the same there
