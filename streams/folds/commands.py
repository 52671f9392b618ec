"""Commands: the use of each key. A fold of the records written by commands."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.folds.added_keys import ADDED, UNPACKED, OlderKeys
from rftd.streams.folds.key_use import VERBS, KeyUse
from rftd.streams.log.effective import Ruling
from rftd.streams.log.envelope import Position


class Commands(msgspec.Struct):
    """Uses by key, carried by a record as its correlation, and by event; of a repeated record the first counts."""

    _of: dict[UUID, list[KeyUse]] = {}
    _at: dict[UUID, KeyUse] = {}
    _adding: dict[UUID, list[tuple[UUID, UUID]]] = {}
    """Key and event of the newest requests adding tasks, by experiment, in the order of its spine."""
    _older: dict[UUID, OlderKeys] = {}
    """The earlier requests: tasks may be added any number of times, while other commands are few."""

    def take(self, ruling: Ruling) -> None:
        """Adds a record, even a void one; records without a command change nothing."""
        decoded = ruling.decoded
        head = decoded.head
        if head.type not in VERBS or head.correlation is None or self.at(head.id, head.correlation) is not None:
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
        if head.type == ADDED and head.experiment is not None:
            newest = self._adding.setdefault(head.experiment, [])
            newest.append((head.correlation, head.id))
            if len(newest) >= 2 * UNPACKED:
                self._pack(head.experiment, newest[:UNPACKED])
                del newest[:UNPACKED]

    def adopt(self, restored: Commands) -> None:
        """Replaces all uses with those of a fold restored from a snapshot."""
        self._of = restored._of
        self._at = restored._at
        self._adding = restored._adding
        self._older = restored._older

    def of(self, key: UUID) -> list[KeyUse]:
        """Returns the records written by commands with a key, an experiment's records in the order of the log."""
        older = [use for experiment, keys in self._older.items() for use in keys.of(key, experiment)]
        return [*older, *self._of.get(key, [])]

    def at(self, event: UUID, key: UUID) -> KeyUse | None:
        """Returns the use with this event id; a use that added tasks is found by the key."""
        newest = self._at.get(event)
        if newest is not None or not self._older:
            return newest
        return next((use for use in self.of(key) if use.event == event), None)

    def _pack(self, experiment: UUID, requests: list[tuple[UUID, UUID]]) -> None:
        uses: list[tuple[UUID, KeyUse]] = []
        for key, event in requests:
            use = self._at.pop(event)
            uses.append((key, use))
            kept_uses = [kept_use for kept_use in self._of[key] if kept_use is not use]
            if kept_uses:
                self._of[key] = kept_uses
            else:
                del self._of[key]
        self._older.setdefault(experiment, OlderKeys()).pack(uses)
