"""What a run directory says about the run itself: config.yaml, environment.json, network.json.

They are written whole, and again if somebody removes the directory; a file that cannot be written is one warning.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import yaml

from dgt.config.files import parsed_json, read_text, write
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.runs.layout import CONFIG, ENVIRONMENT, NETWORK
from dgt.runs.messages import Say
from dgt.runs.record import network_record, recorded_nodes

MOST_NETWORKS = 256 * 2**20  # bytes of network.json that are read


class Facts:
    """The files of one run; `config` is what config.yaml holds."""

    def __init__(self, path: Path, config: Mapping[str, Any], say: Say) -> None:
        self._path, self._config, self._say = path, config, say
        self._environment: Mapping[str, Any] | None = None
        self._networks: list[dict[str, Any]] = []
        self._shown: np.ndarray | slice = slice(None)

    def start(self, source: Path, last_kept: int) -> None:
        """Write the config, and go on from the networks that another start of this run had up to that iteration."""
        self._networks = _networks_until(last_kept, source / NETWORK)
        self._write_config()

    def write_again(self) -> None:
        """All that is known, after somebody has removed it."""
        with contextlib.suppress(OSError):
            self._path.mkdir(parents=True, exist_ok=True)
            self._write_config()
        self.environment(self._environment)
        if self._networks:
            self._write_json(NETWORK, self._networks)

    def environment(self, facts: Mapping[str, Any] | None) -> None:
        """Where the run takes place: versions, hosts, devices."""
        self._environment = facts
        if facts is not None:
            self._write_json(ENVIRONMENT, facts)

    def network(
        self,
        iteration: int,
        weights: Weights,
        W: scipy.sparse.csr_array,
        members: list[int] | None = None,
        graph: Topology | None = None,
    ) -> None:
        """From this iteration on, nodes of these weights mix by W; `members` are their names where some were lost."""
        record = network_record(iteration, weights, W, members, graph)
        self._shown = recorded_nodes(weights)
        before = [network for network in self._networks if network["iteration"] < iteration]
        unchanged = before and {**before[-1], "iteration": iteration} == json.loads(json.dumps(record))
        self._networks = before if unchanged else [*before, record]
        self._write_json(NETWORK, self._networks)

    def of_nodes(self, values: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
        """The measurements of those nodes that network.json has, to six digits."""
        return {name: [float(f"{value:.6g}") for value in each[self._shown]] for name, each in values.items()}

    def _write_config(self) -> None:
        write(self._path / CONFIG, yaml.safe_dump(dict(self._config), sort_keys=False))

    def _write_json(self, name: str, value: Any) -> None:
        try:
            write(self._path / name, json.dumps(value) + "\n")
        except OSError as error:
            self._say(f"{name}: {error.strerror}; the run goes on without it")


def _networks_until(iteration: int, path: Path) -> list[dict[str, Any]]:
    try:
        found = parsed_json(read_text(path, MOST_NETWORKS))
        return [network for network in found if network["iteration"] <= iteration]
    except (OSError, ValueError, KeyError, TypeError):
        return []
