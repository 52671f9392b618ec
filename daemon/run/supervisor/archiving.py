"""`Archiving`: archives what ended long ago, by rule, as `rftd archive` does on request."""

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
"""The author named by the `experiment.archived` of an experiment that the rule archived."""
EVERY_S: Final = 600.0
"""The time between two looks, and before what failed is tried again."""


class Archiving:
    """Looks through the experiments again and again."""

    def __init__(
        self,
        entries: Callable[[], Mapping[UUID, Entry]],
        archive: Callable[[Entry], Awaitable[object]],
        *,
        after_s: float,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """An experiment is archived once its end is `after_s` ago."""
        self._entries = entries
        self._archive = archive
        self._after_s = after_s
        self._clock = clock
        self._logger = logger

    async def run(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Looks until cancelled; `refresh` brings the entries up to date."""
        while True:
            try:
                await self.look(refresh)
            except RftdError as error:
                self._logger.warning("archiving.waits", reason=error.what, retry_in_s=EVERY_S)
            await self._clock.sleep(EVERY_S)

    async def look(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Archives what is due now. One that cannot be archived keeps no other one here."""
        await refresh()
        for entry in list(self._due()):
            try:
                await self._archive(entry)
            except RftdError as error:
                self._logger.warning("archiving.waits", name=entry.name, reason=error.what, retry_in_s=EVERY_S)

    def _due(self) -> Iterator[Entry]:
        before_ns = self._clock.now_ns() - round(self._after_s * 1e9)
        for entry in self._entries().values():
            spine = entry.spine
            # Restored by somebody who wants its files here, or never begun: then there are none.
            has_files = spine.kept is Kept.HERE and spine.archive is None and spine.status is not Status.REJECTED
            if (
                spine.ended
                and has_files
                and spine.status_ns <= before_ns
                and not any(living_forks(self._entries(), entry.id))
            ):
                yield entry
