"""Commands: which key was used for what. A fold of the records that commands became."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.effective import Ruling
from rftd.streams.envelope import Position

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
"""The verb of each command, by the type of the event that it becomes."""


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """One record that a command became."""

    event: UUID
    type: str
    experiment: UUID | None
    time_ns: int
    position: Position
    effective: bool
    """False: a fence made it void."""

    @property
    def verb(self) -> str:
        """The verb of the command."""
        return VERBS[self.type]


class Commands(msgspec.Struct):
    """Uses by key, which a record carries as its correlation, and by event; of a repeated record the first counts."""

    _of: dict[UUID, list[KeyUse]] = {}
    _at: dict[UUID, KeyUse] = {}

    def take(self, ruling: Ruling) -> None:
        """Takes in one record, also if it is void; those that no command became change nothing."""
        decoded = ruling.decoded
        head = decoded.head
        if head.type not in VERBS or head.correlation is None or head.id in self._at:
            return
        use = KeyUse(
            event=head.id,
            type=head.type,
            experiment=head.experiment,
            time_ns=head.time_ns,
            position=Position(decoded.partition, decoded.offset),
            effective=ruling.effective,
        )
        self._at[head.id] = use
        self._of.setdefault(head.correlation, []).append(use)

    def adopt(self, other: Commands) -> None:
        """Takes over what a snapshot holds."""
        self._of = other._of
        self._at = other._at

    def of(self, key: UUID) -> list[KeyUse]:
        """The records that commands with this key became, in the order of the log."""
        return self._of.get(key, [])

    def at(self, event: UUID) -> KeyUse | None:
        """The record that has this id."""
        return self._at.get(event)
