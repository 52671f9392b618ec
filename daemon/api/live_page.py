"""`LivePage`: an experiment's page for who watches it: read again only when something happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from rftd.daemon.api.pages import ExperimentPage, page_of
from rftd.daemon.api.services import Services
from rftd.storage.queries.books import Books
from rftd.streams.topics import Partition

COUNTED_PER_S: Final = 5_000
"""Books look at each experience: those of so many are counted once a second, of ten times as many every ten seconds."""


class LivePage:
    """One experiment as one client follows it."""

    def __init__(self, services: Services, experiment: UUID) -> None:
        self._services = services
        self._experiment = experiment
        self._seen: tuple[Mapping[Partition, int], str | None] | None = None
        self._state = ""
        self._books: Books | None = None
        self._counted_s = 0.0
        self._reused = False

    async def look(self) -> ExperimentPage | None:
        """The page; None if nothing was written since. Its books are new when the state is."""
        services, now_s = self._services, self._services.clock.monotonic_s()
        standing = (dict(services.applied.positions), services.waiting(self._experiment))
        books = self._books
        if books is not None and (now_s - self._counted_s) * COUNTED_PER_S >= books.produced:
            books = None
        if standing == self._seen and (books is not None or not self._reused):
            return None
        async with services.read() as connection:
            page = await page_of(connection, self._experiment, services.curves, standing[1], books=books)
            if books is not None and page.experiment.summary.state != self._state:
                books = None
                page = await page_of(connection, self._experiment, services.curves, standing[1])
        self._seen, self._state, self._reused = standing, page.experiment.summary.state, books is not None
        if books is None:
            self._books, self._counted_s = page.experiment.books, now_s
        return page
