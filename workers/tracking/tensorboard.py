"""`TensorBoard`: event files in the guide's folder, read by TensorBoard while growing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rftd.workers.tracking.event_file import scalars_record, text_record, version_record
from rftd.workers.tracking.kept_file import KeptFiles
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.sample_text import markdown_table
from rftd.workers.tracking.tracker import Kept, Opening

_NAME: Final = "events.out.tfevents"
"""The prefix by which TensorBoard recognises an event file."""


class TensorBoard:
    """Writes `monitor/tensorboard/RUN/events.out.tfevents.ID`; with a single run there is no folder RUN."""

    sure_at_once = True
    """Whether `settle` always confirms storage: yes, the files are synchronised."""

    def __init__(self, opening: Opening) -> None:
        """Writes below the folder of `opening`, an event file for each run."""
        self._run = opening.run
        name = f"{_NAME}.{self._run.short_id}"
        self._files = KeptFiles({role: opening.folder / role / name for role in self._run.roles})
        self._new: list[str] = []
        """Runs whose file has no record yet: the first record has the time of the first point."""

    def open(self, kept: Kept) -> None:
        """Continues the files from the state last returned by `settle`."""
        self._new = self._files.open(kept)

    def write(self, points: Sequence[Point]) -> None:
        """Appends a record for each figure, table or remark."""
        if points:
            self._begin(points[0].time_ns / 1e9)
        for point in points:
            time_s = point.time_ns / 1e9
            if point.table:
                if not point.samples:
                    continue
                record = text_record(time_s, point.step, point.table, markdown_table(point.samples))
            elif point.remark:
                record = text_record(time_s, point.step, "remarks", point.remark)
            else:
                record = scalars_record(time_s, point.step, point.figures)
            self._files.append(self._run.run_of(point), record)

    def settle(self, *, surely: bool) -> Kept:
        """Confirms that all records survive a kill; returns the files' state for `open`."""
        return dict(self._files.settle())

    def close(self, ended: str) -> None:
        """Closes the files."""
        self._files.close()

    def _begin(self, time_s: float) -> None:
        """Begins new files with version, experiment and configuration."""
        config = msgspec.json.format(msgspec.json.encode(self._run.config)).decode()
        text = f"{self._run.project}/{self._run.name}, experiment {self._run.experiment}, sha256 {self._run.digest}"
        for role in self._new:
            self._files.append(role, version_record(time_s))
            self._files.append(role, text_record(time_s, 0, "experiment", text))
            self._files.append(role, text_record(time_s, 0, "config", f"```json\n{config}\n```"))
        self._new = []
