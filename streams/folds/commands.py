"""`Commands`: uses of request keys, a fold of the events written by commands."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.folds.added_keys import ADDED, UNPACKED, OlderKeys
from rftd.streams.folds.key_use import VERBS, KeyUse
from rftd.streams.log.effective import Ruling
from rftd.streams.log.envelope import Position


class Commands(msgspec.Struct):
    """Events written by commands, by request key and by event id; of a repeated event, the first counts."""

    _of: dict[UUID, list[KeyUse]] = {}
    """Uses of each request key."""
    _at: dict[UUID, KeyUse] = {}
    """Use recorded by each event."""
    _adding: dict[UUID, list[tuple[UUID, UUID]]] = {}
    """Key and event of the newest requests adding tasks, by experiment, in the order of its spine."""
    _older: dict[UUID, OlderKeys] = {}
    """Packed uses that added tasks earlier: tasks may be added any number of times, while other commands are few."""

    def take(self, ruling: Ruling) -> None:
        """Folds a record, even one voided by a fence; records not written by a command change nothing."""
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
                self._pack_older(head.experiment, newest[:UNPACKED])
                del newest[:UNPACKED]

    def adopt(self, restored: Commands) -> None:
        """Starts from the fold of a snapshot."""
        self._of = restored._of
        self._at = restored._at
        self._adding = restored._adding
        self._older = restored._older

    def of(self, key: UUID) -> list[KeyUse]:
        """Returns the events written under a request key, those of one experiment in the order of the log."""
        older = [use for experiment, keys in self._older.items() for use in keys.of(key, experiment)]
        return [*older, *self._of.get(key, [])]

    def at(self, event: UUID, key: UUID) -> KeyUse | None:
        """Returns the use with this event id and key; None if the log has no such event."""
        newest = self._at.get(event)
        if newest is not None or not self._older:
            return newest
        return next((use for use in self.of(key) if use.event == event), None)

    def _pack_older(self, experiment: UUID, requests: list[tuple[UUID, UUID]]) -> None:
        """Moves uses that added tasks to the packed ones, given as (key, event)."""
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
