"""Weights & Biases: `dgt train logger=wandb logger.project=mine`; with logger.mode=offline, `wandb sync` later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dgt.config.settings import setting
from dgt.runs.layout import WANDB
from dgt.runs.sink import Sink

STEP = "iteration"


class WeightsAndBiases(Sink):
    """A W&B run of the same name as the run directory; a resumed run goes on in it."""

    package = "wandb"

    @dataclass(slots=True, kw_only=True)
    class Settings:
        project: str = setting("dgt", "W&B project")
        entity: str | None = setting(None, "W&B user or team; null: your default one")
        mode: str | None = setting(
            None, "online or offline; null: as WANDB_MODE says, else online", choices=("online", "offline")
        )

    def start(self, recorded_until: int) -> None:
        import wandb

        run_id = self.run.known_id(WANDB) or secrets.token_hex(4)
        self._wandb: Any = wandb.init(
            project=self.settings.project,
            entity=self.settings.entity,
            mode=self.settings.mode,
            dir=str(self.run.directory),
            config=dict(self.run.config),
            name=self.run.name,
            group=self.run.directory.resolve().name if self.run.part else None,
            id=run_id,
            resume="allow",
            reinit="create_new",  # dgt compare has one for every seed at the same time
            # a terminal that nobody looks at is not asked for a key for ever
            settings=wandb.Settings(silent=True, console="off", login_timeout=20),
        )
        self.run.keep_id(WANDB, run_id)
        # an axis of our own: W&B's step must not decrease, and a resumed run measures some iterations anew
        self._wandb.define_metric("*", step_metric=STEP)

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        self._wandb.log({STEP: iteration, **values})

    def event(self, event: Mapping[str, Any]) -> None:
        self._wandb.log({STEP: event["iteration"], "event": str(event["words"])})

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._wandb.summary.update({"dgt": dict(summary)})

    def close(self) -> None:
        self._wandb.finish()


SINK = WeightsAndBiases
