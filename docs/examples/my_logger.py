from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dgt.config.settings import setting
from dgt.runs.sink import Sink


class Table(Sink):
    """A line per evaluation in a file of the run directory."""

    @dataclass(slots=True, kw_only=True)
    class Settings:
        file: str = setting("losses.csv", "its name")

    def start(self, recorded_until: int) -> None:
        self.lines = (self.run.directory / self.settings.file).open("a", encoding="utf-8")

    def record(self, iteration: int, values: Mapping[str, float], nodes: Mapping[str, Sequence[float]] | None) -> None:
        self.lines.write(f"{iteration},{values.get('loss', '')}\n")

    def close(self) -> None:
        self.lines.close()
