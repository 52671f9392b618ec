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
    "experiment.annotated": "annotate",
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
"""Verb of each command, by the type of its event."""


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """An event written by a command under a request key."""

    event: UUID
    """Id of the event."""
    type: str
    """Type of the event."""
    experiment: UUID | None
    """Id of the experiment."""
    time_ns: int
    """Time of the record, in nanoseconds since 1970."""
    position: Position
    """Position of the record in the log."""
    effective: bool
    """False if a fence voided the event."""

    @property
    def verb(self) -> str:
        """Verb of the command on the command line, such as `submit`, `pause` or `retry`."""
        return VERBS[self.type]
