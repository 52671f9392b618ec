"""`Archiving`: archives experiments long after their end, by rule, as `rftd archive` does on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.payloads import living_forks
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.logs import Logger
from rftd.streams.folds.spine import Kept, Status

ARCHIVE_RULE_AUTHOR: Final = "--archive-after"
"""Author of the `experiment.archived` events written by the rule."""
EVERY_S: Final = 600.0
"""Seconds between two searches for experiments to archive, and before a failed archive is retried."""


class Archiving:
    """Archives ended experiments automatically, `after_s` seconds after their end (`rftd serve --archive-after`)."""

    def __init__(
        self,
        experiments: Callable[[], Mapping[UUID, Entry]],
        archive: Callable[[Entry], Awaitable[object]],
        *,
        after_s: float,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`experiments` returns the registry; `archive` archives one experiment, `after_s` seconds after its end."""
        self._experiments = experiments
        self._archive = archive
        self._after_s = after_s
        self._clock = clock
        self._logger = logger

    async def run(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Archives due experiments every `EVERY_S` seconds until cancelled; `refresh` brings the registry up to
        date.
        """
        while True:
            try:
                await self.look(refresh)
            except RftdError as error:
                self._logger.warning("archiving.waits", reason=error.what, retry_in_s=EVERY_S)
            await self._clock.sleep(EVERY_S)

    async def look(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Archives every experiment due at this moment; after a failed archive (logged), the others are still
        archived.
        """
        await refresh()
        for entry in list(self._due_entries()):
            try:
                await self._archive(entry)
            except RftdError as error:
                self._logger.warning("archiving.waits", name=entry.name, reason=error.what, retry_in_s=EVERY_S)

    def _due_entries(self) -> Iterator[Entry]:
        """Yields experiments ended at least `after_s` seconds ago, with files here, never restored, and without living
        forks.
        """
        before_ns = self._clock.now_ns() - round(self._after_s * 1e9)
        for entry in self._experiments().values():
            spine = entry.spine
            # Restored experiments stay because a person asked for their files; rejected ones never had files.
            has_files = spine.kept is Kept.HERE and spine.archive is None and spine.status is not Status.REJECTED
            if (
                spine.ended
                and has_files
                and spine.status_ns <= before_ns
                and not any(living_forks(self._experiments(), entry.id))
            ):
                yield entry
