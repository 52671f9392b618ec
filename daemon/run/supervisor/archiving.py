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

BY_RULE: Final = "--archive-after"
"""Author of the `experiment.archived` events written by the rule."""
EVERY_S: Final = 600.0
"""Seconds between two looks, and before retrying a failed archive."""


class Archiving:
    """Looks through the experiments periodically and archives those due."""

    def __init__(
        self,
        experiments: Callable[[], Mapping[UUID, Entry]],
        archive: Callable[[Entry], Awaitable[object]],
        *,
        after_s: float,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """Experiments are archived `after_s` seconds after their end."""
        self._experiments = experiments
        self._archive = archive
        self._after_s = after_s
        self._clock = clock
        self._logger = logger

    async def run(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Archives due experiments until cancelled; `refresh` brings the registry up to date."""
        while True:
            try:
                await self.look(refresh)
            except RftdError as error:
                self._logger.warning("archiving.waits", reason=error.what, retry_in_s=EVERY_S)
            await self._clock.sleep(EVERY_S)

    async def look(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Archives every experiment due now; a failed archive does not hold up the others."""
        await refresh()
        for entry in list(self._due()):
            try:
                await self._archive(entry)
            except RftdError as error:
                self._logger.warning("archiving.waits", name=entry.name, reason=error.what, retry_in_s=EVERY_S)

    def _due(self) -> Iterator[Entry]:
        before_ns = self._clock.now_ns() - round(self._after_s * 1e9)
        for entry in self._experiments().values():
            spine = entry.spine
            # Experiments restored on request are wanted here, and rejected ones never had files.
            has_files = spine.kept is Kept.HERE and spine.archive is None and spine.status is not Status.REJECTED
            if (
                spine.ended
                and has_files
                and spine.status_ns <= before_ns
                and not any(living_forks(self._experiments(), entry.id))
            ):
                yield entry
