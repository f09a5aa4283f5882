"""Overrides in, `Config` out: Hydra composes `conf/`, and mistakes are told in one line with the nearest choices."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgt.config import Config, registry
from dgt.config.checks import check_choice, nearest
from dgt.config.settings import defaults, documented
from dgt.config.slurm import SlurmJobs
from dgt.errors import ConfigError

LAUNCHER = "hydra/launcher"
_UNQUOTED_RULE, _QUOTED = r"(?<![^,])[^,'\"]*[<>][^,'\"]*(?![^,])", r"'\g<0>'"
SEVERAL = "logger"  # the group of which several can be chosen
ConfigStore.instance().store(group=LAUNCHER, name="slurm_jobs", node=SlurmJobs, provider="dgt")  # base of slurm.yaml


def conf_dir() -> Path:
    """`conf/` inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def groups(search: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Every config group and its choices: files in `conf/` and in the user's own folders, and what the package has."""
    choices: dict[str, set[str]] = {group: set(registry.names(group)) for group in registry.PLACES}
    for top in (conf_dir(), *search):
        for folder in (path for path in top.iterdir() if path.is_dir()):
            choices.setdefault(folder.name, set()).update(file.stem for file in folder.glob("*.yaml"))
    return {group: sorted(names) for group, names in sorted(choices.items()) if names}


def settings() -> list[str]:
    """The lines of `conf/` that say what can be set, its default and its meaning."""
    top = (conf_dir() / "config.yaml").read_text(encoding="utf-8").split("\n\n", 1)[1].splitlines()
    nested: dict[tuple[str, str], list[str]] = {}
    for group, choices in groups().items():
        for choice in choices if group != "experiment" else []:
            for line in _lines_of(group, choice):
                if not line.startswith("name:"):
                    nested.setdefault((group, re.sub(" +#", "   #", line)), []).append(choice)
    return top + [f"{group}.{line}   [{group}={', '.join(choices)}]" for (group, line), choices in nested.items()]


def _lines_of(group: str, choice: str) -> list[str]:
    """What a choice can be set to, from its file, or where it has none from the settings that it declares."""
    file = conf_dir() / group / f"{choice}.yaml"
    if not file.is_file():
        declared = registry.settings_class(group, registry.find(group, choice))
        return documented(declared) if declared is not None else []
    text = file.read_text(encoding="utf-8")
    if "@package _global_" in text:  # the group's own keys are indented, the others belong to the top
        return [line.strip() for line in text.splitlines() if line.startswith("  ")]
    return text.splitlines()


def _store_without_files() -> None:
    """Tell Hydra about choices of the package that have no file in `conf/`: their settings are what they declare."""
    for group in registry.PLACES:
        for name in registry.names(group):
            if not (conf_dir() / group / f"{name}.yaml").is_file():
                declared = registry.settings_class(group, registry.find(group, name))
                values = defaults(declared) if declared is not None else {}
                ConfigStore.instance().store(group=group, name=name, node={"name": name, **values})


def experiments() -> list[str]:
    """Each experiment with its first line of explanation."""
    found = []
    for choice in groups()["experiment"]:
        lines = (conf_dir() / "experiment" / f"{choice}.yaml").read_text(encoding="utf-8").splitlines()
        found.append(f"{choice}: {lines[1].lstrip('# ').rstrip(':')}")
    return found


def compose(overrides: Sequence[str]) -> Config:
    """The validated config these overrides ask for; raises `ConfigError` in plain words."""
    search, _ = _search_path(overrides)
    parsed = parse(overrides)
    swept = next((item for item in parsed if item.is_sweep_override()), None)
    if swept is not None:
        raise ConfigError(f"{swept.input_line}: several values make a sweep; give one, or use dgt train -m")
    choices = groups(search)
    chosen = [str(item.input_line) for item in parsed if item.key_or_group in choices]
    known = _compose(chosen, search)
    keys = [item for item in parsed if item.key_or_group not in choices]
    known["logger"] |= {"_target_": None} if any(item.key_or_group == "logger._target_" for item in keys) else {}
    free = [item for item in keys if _is_argument(item, known)]
    _check_keys([item for item in keys if item not in free], known, choices)
    lines = [f"++{str(item.input_line).lstrip('+')}" if item in free else str(item.input_line) for item in parsed]
    values = _compose(lines, search)
    values["logger"] |= next(({"name": _listed(item)} for item in reversed(parsed) if _listed(item)), {})
    _choose_length(values, {str(item.key_or_group) for item in parsed})
    return Config.from_dict(values)


def _choose_length(values: dict[str, Any], typed: set[str]) -> None:
    """Of iterations and epochs what was typed; both is an error, where files say both it is epochs."""
    if values.get("epochs") is None or "iterations" not in typed:
        return
    if "epochs" in typed:
        epochs, iterations = values["epochs"], values["iterations"]
        raise ConfigError(f"iterations={iterations}: epochs={epochs} says how many; give one of them")
    values["epochs"] = None


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """One list of overrides per run of a sweep: strategy=I,II topology=ring,grid makes four."""
    search, _ = _search_path(overrides)
    values = [
        [f"{item.key_or_group}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parse(overrides)
    ]
    always = [search_override(folder) for folder in search]
    return [[*always, *run] for run in itertools.product(*values)]


def swept(overrides: Sequence[str]) -> list[dict[str, str]]:
    """What tells the runs of `expand` apart, one by one: {'strategy': 'I', 'lr': '0.01'}."""
    items = [item for item in parse(overrides) if item.is_sweep_override()]
    values = [[(str(item.key_or_group), str(value)) for value in item.sweep_string_iterator()] for item in items]
    return [dict(run) for run in itertools.product(*values)]


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse Hydra's override grammar and check group choices; weights=[1,2] and weights=FILE are unfolded."""
    search, overrides = _search_path(overrides)
    choices = groups(search)
    parsed = _parsed([piece for override in _with_custom(overrides) for piece in _unfold(override)])
    for item in parsed:
        for value in _choices_made(item) if item.key_or_group in choices else []:
            options = choices[item.key_or_group]
            if value not in options:
                raise ConfigError(f"{item.key_or_group}={value}: {nearest(value, options)}")
    return parsed


def keys_of(group: str, overrides: Sequence[str]) -> list[str]:
    """The settings that a group has with the choices these overrides make."""
    search, _ = _search_path(overrides)
    choices = groups(search)
    chosen = [str(item.input_line) for item in parse(overrides) if item.key_or_group in choices]
    return list(_compose(chosen, search)[group])


def launcher(overrides: Sequence[str]) -> dict[str, Any]:
    """The settings that hydra/launcher=slurm hydra.launcher.timeout_min=30 make."""
    search, own = _search_path(overrides)
    known: dict[str, Any] = {}
    chosen: list[str] = []
    for item in sorted(_parsed(own), key=lambda item: item.key_or_group != LAUNCHER):
        key, value = item.key_or_group, str(item.input_line).partition("=")[2]
        if item.is_sweep_override():
            raise ConfigError(f"{item.input_line}: all jobs of a sweep have the same; quote a comma, {key}='{value}'")
        if key == LAUNCHER:
            folders = [top / LAUNCHER for top in (conf_dir(), *search)]
            check_choice(key, value, sorted({file.stem for folder in folders for file in folder.glob("*.yaml")}))
            known = _launcher([str(item.input_line)], search)
        elif not known:
            raise ConfigError(f"{key}: whose setting is this? add {LAUNCHER}=slurm")
        elif key.split(".")[2] not in known:
            raise ConfigError(f"{key}: no such key; {nearest(key, [f'hydra.launcher.{name}' for name in known])}")
        else:
            known = _launcher([*chosen, str(item.input_line)], search)  # one more at a time: an error names it
        chosen.append(str(item.input_line))
    return known


def _launcher(overrides: list[str], search: Sequence[Path]) -> dict[str, Any]:
    with _plain_words(overrides[-1:]), initialized():
        composed = hydra_compose(overrides=[*_hydra_search_path(search), *overrides], return_hydra_config=True)
        found = OmegaConf.to_container(composed.hydra.launcher, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def plain_values(overrides: Sequence[str]) -> dict[str, Any]:
    """key=value pairs for commands that take no config: values are read as Hydra would."""
    return {item.key_or_group: item.value() for item in _parsed(overrides)}


def _parsed(overrides: Sequence[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise ConfigError(f"{override}: overrides look like key=value")
        try:
            parsed += parser.parse_overrides([override])
        except HydraException as error:
            why = str(error).splitlines()[0]
            raise ConfigError(f"{override}: cannot read this ({why}); special characters need key='value'") from None
    return parsed


def search_override(folder: Path) -> str:
    """A folder with config groups of one's own, as an override that travels with the others."""
    return f"hydra.searchpath={folder}"


def _search_path(overrides: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The user's own config folders, and all other overrides."""
    search, rest = [], []
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "hydra.searchpath":
            rest.append(override)
            continue
        folder = Path(value.strip("[]").removeprefix("file://")).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {value}: no such folder")
        search.append(folder)
    return search, rest


def _is_argument(item: Override, composed: dict[str, Any]) -> bool:
    """Whether this is a setting of a class or function from outside the package, whose keys are its own."""
    section, _, key = item.key_or_group.partition(".")
    chosen = composed.get(section)
    return bool(key) and isinstance(chosen, dict) and "_target_" in chosen and chosen.get(key) is None


def _with_custom(overrides: Sequence[str]) -> list[str]:
    """topology._target_=my.graph -> topology=custom topology._target_=my.graph, where no topology is chosen.

    Not for loggers: one of one's own comes beside those that are named.
    """
    chosen = {override.partition("=")[0] for override in overrides}
    groups = [group for group in registry.PLACES if group != SEVERAL]
    needed = [group for group in groups if f"{group}._target_" in chosen and group not in chosen]
    return [*(f"{group}=custom" for group in needed), *overrides]


def _unfold(override: str) -> list[str]:
    """weights=[1,2,3] -> weights=list weights.values=[1,2,3]; weights=some/file.txt -> weights=file ..."""
    key, _, value = override.partition("=")
    if key == "stop.when":  # < and > need quotes in Hydra's grammar, beside those that the shell needs
        return [f"{key}={re.sub(_UNQUOTED_RULE, _QUOTED, value)}"]
    if key == "weights" and value.startswith("["):
        return ["weights=list", f"weights.values={value}"]
    if key == "weights" and "," not in value and ("/" in value or Path(value).suffix in (".txt", ".csv", ".npy")):
        quoted = value.replace("'", "\\'")
        return ["weights=file", f"weights.path='{quoted}'"]
    return [override]


def _choices_made(item: Override) -> list[str]:
    if item.is_sweep_override():
        made = [str(value) for value in item.sweep_string_iterator()]
    else:
        made = [f"[{','.join(_listed(item))}]" if _listed(item) else str(item.value())]
    several = item.key_or_group == SEVERAL
    return [name for value in made for name in (value.strip("[]").split(",") if several else [value])]


def _listed(item: Override) -> list[str]:
    """The names in logger=[a,b]: Hydra merges their files, and keeps the last name only."""
    value = item.value() if item.key_or_group == SEVERAL and not item.is_sweep_override() else None
    return [str(name) for name in value] if isinstance(value, list) else []


def _compose(overrides: list[str], search: Sequence[Path]) -> dict[str, Any]:
    _store_without_files()
    with _plain_words(overrides), initialized():
        composed = hydra_compose("config", overrides=[*_hydra_search_path(search), *overrides])
        missing = sorted(OmegaConf.missing_keys(composed))
        for key in missing:
            OmegaConf.update(composed, key, None)  # the dataclass says what is needed, in its own words
        plain = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def initialized() -> initialize_config_dir:
    """Hydra, looking for configs in `conf/`."""
    return initialize_config_dir(str(conf_dir().resolve()), job_name="dgt", version_base="1.3")


def _hydra_search_path(search: Sequence[Path]) -> list[str]:
    """The user's own config folders in Hydra's words."""
    folders = ",".join(f"'file://{folder}'" for folder in search)
    return [f"hydra.searchpath=[{folders}]"] if search else []


@contextlib.contextmanager
def _plain_words(overrides: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}" if mark is not None else " ".join(overrides)
        raise ConfigError(f"{where}: not YAML ({error.problem})") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{' '.join(overrides)}: {str(error.__cause__ or error).splitlines()[0]}") from None


def _check_keys(items: list[Override], composed: dict[str, Any], choices: dict[str, list[str]]) -> None:
    """A key must exist for the choices made: topology.radius belongs to geometric only."""
    known = dict(_flatten(composed))
    for item in items:
        key = item.key_or_group
        section = key.split(".")[0]
        if key == f"{section}.name" and section in choices and "_target_" not in composed[section]:
            hint = nearest(str(item.value()), choices[section])
            raise ConfigError(f"{key}={item.value()}: choose with {section}=NAME; {hint}")
        if key in known:
            continue
        if "." in key and isinstance(composed.get(section), dict):
            own = [name for name in known if name.startswith(section + ".") and not name.endswith(".name")]
            hint = nearest(key, own) if own else "it has no settings"
            whose = f"{section}={composed[section]['name']} has " if "name" in composed[section] else ""
            raise ConfigError(f"{key}: {whose}no such key; {hint}")
        nested = [name for name in known if name.endswith(f".{key}")]
        if nested:
            raise ConfigError(f"{key}: no such key; did you mean {' or '.join(nested)}?")
        top = sorted({name.split(".")[0] for name in known} | set(choices))
        raise ConfigError(f"{key}: no such key; {nearest(key, top)}")


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        pairs += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs
