"""TensorBoard's mirror of a run: `dgt train logger=tensorboard`, then `tensorboard --logdir runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dgt.runs.layout import TENSORBOARD
from dgt.runs.sink import Sink


class TensorBoard(Sink):
    """Scalars by iteration in tensorboard/, events and the summary as texts."""

    package = "tensorboard"

    def start(self, recorded_until: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.run.directory / TENSORBOARD / self.run.part
        # from purge_step on, what an earlier start has written is no longer shown
        self._writer: Any = SummaryWriter(str(folder), purge_step=recorded_until + 1 if recorded_until >= 0 else None)

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)

    def event(self, event: Mapping[str, Any]) -> None:
        self._writer.add_text("events", str(event["words"]), event["iteration"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        lines = json.dumps(summary, indent=2).splitlines()
        self._writer.add_text("summary", "\n".join(f"    {line}" for line in lines))  # indented: code in Markdown

    def close(self) -> None:
        self._writer.close()


SINK = TensorBoard
