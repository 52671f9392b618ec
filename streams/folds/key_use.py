"""`KeyUse`: one record written by a command, and the verbs of commands."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.log.envelope import Position

VERBS: Final = {
    "experiment.submitted": "submit",
    "experiment.forked": "fork",
    "experiment.paused": "pause",
    "experiment.resumed": "resume",
    "experiment.cancelled": "cancel",
    "experiment.prioritized": "prioritize",
    "experiment.archived": "archive",
    "experiment.restored": "restore",
    "experiment.removed": "remove",
    "experience.prioritized": "tag",
    "experience.given_up": "give up",
    "task.retried": "retry",
    "tasks.added": "add tasks",
    "tasks.ended": "end tasks",
    "record.dropped": "drop",
    "sweep.submitted": "sweep",
    "sweep.cancelled": "cancel sweep",
}
"""The verb of each command, by the type of its event."""


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """One record written by a command: event id, type, experiment, time and position."""

    event: UUID
    type: str
    experiment: UUID | None
    time_ns: int
    position: Position
    effective: bool
    """False if a fence made the record void."""

    @property
    def verb(self) -> str:
        """The verb of the command, as used on the command line: `submit`, `pause`, `retry`."""
        return VERBS[self.type]
