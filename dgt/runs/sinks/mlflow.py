"""MLflow: `dgt train logger=mlflow logger.experiment=mine`, on a server or in a folder of the run directory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dgt.config.settings import setting
from dgt.runs.layout import MLFLOW, SUMMARY
from dgt.runs.sink import Sink

MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # of one call


class MLflow(Sink):
    """An MLflow run of the same name as the run directory; a resumed run goes on in it."""

    package = "mlflow"

    @dataclass(slots=True, kw_only=True)
    class Settings:
        experiment: str = setting("dgt", "MLflow experiment, made if need be")
        tracking_uri: str | None = setting(
            None, "server or store; null: as MLFLOW_TRACKING_URI says, else mlflow/ in the run directory"
        )

    def start(self, recorded_until: int) -> None:
        import mlflow

        self._client: Any = mlflow.MlflowClient(self._tracking_uri(mlflow))
        known = self.run.known_id(MLFLOW)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self.settings.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self.settings.experiment)
        self._id = self._client.create_run(experiment, run_name=self.run.name).info.run_id
        self.run.keep_id(MLFLOW, self._id)
        self._log_parameters()

    def _tracking_uri(self, mlflow: Any) -> str | None:
        """None leaves it to MLflow. Its newer versions refuse plain folders, unless told that they are wanted."""
        if self.settings.tracking_uri is None and mlflow.tracking.is_tracking_uri_set():
            return None
        uri = self.settings.tracking_uri or str((self.run.directory / MLFLOW).resolve().as_uri())
        allow = getattr(mlflow.environment_variables, "MLFLOW_ALLOW_FILE_STORE", None)
        if allow is not None and (uri.startswith("file:") or "://" not in uri):
            allow.set(True)
        return uri

    def _log_parameters(self) -> None:
        from mlflow.entities import Param

        pairs = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in _flat(self.run.config)]
        for first in range(0, len(pairs), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=pairs[first : first + MOST_PARAMETERS])

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_key(name), float(value), now, iteration) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def event(self, event: Mapping[str, Any]) -> None:
        self._client.set_tag(self._id, _key(f"{event['event']}.{event['iteration']}"), str(event["words"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._client.log_dict(self._id, dict(summary), SUMMARY)
        self._client.set_terminated(self._id, "FINISHED")

    def close(self) -> None:
        if self._client.get_run(self._id).info.status != "FINISHED":
            self._client.set_terminated(self._id, "KILLED")


def _key(name: str) -> str:
    """In the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield _key(prefix + key), value


SINK = MLflow
