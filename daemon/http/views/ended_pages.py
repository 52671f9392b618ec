"""`EndedPages`: pages of ended experiments, kept in memory until new records of them or of their ancestors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from rftd.daemon.http.views.wire import encode

if TYPE_CHECKING:
    from rftd.daemon.http.views.experiments import ExperimentPage

KEPT_PAGES: Final = 64
"""Maximum number of kept pages, some 100 KB each; beyond it, the page unread for the longest time is dropped."""


class _KeptPage:
    """A page, with the number of applied records of each experiment in its history, and its JSON once encoded."""

    def __init__(self, page: ExperimentPage, counts: Mapping[UUID, int]) -> None:
        self.page = page
        self.counts = counts
        self.body: bytes | None = None


class EndedPages:
    """Pages of ended experiments, read and encoded once."""

    def __init__(self, most: int = KEPT_PAGES) -> None:
        self._pages: OrderedDict[UUID, _KeptPage] = OrderedDict()
        self._most = most

    def of(self, experiment: UUID, applied: Callable[[UUID], int]) -> ExperimentPage | None:
        """Returns the kept page; None without one, or after new records. `applied` counts applied records."""
        kept_page = self._pages.get(experiment)
        if kept_page is None or any(applied(id) != count for id, count in kept_page.counts.items()):
            return None
        self._pages.move_to_end(experiment)
        return kept_page.page

    def keep(self, experiment: UUID, page: ExperimentPage, counts: Mapping[UUID, int]) -> None:
        """Keeps a page read after `counts`, the applied records of the experiment and of its ancestors."""
        self._pages[experiment] = _KeptPage(page, counts)
        self._pages.move_to_end(experiment)
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def renew(self, experiment: UUID, page: ExperimentPage) -> None:
        """Replaces a kept page after a change outside the tables."""
        if experiment in self._pages:
            self.keep(experiment, page, self._pages[experiment].counts)

    def body_of(self, page: ExperimentPage) -> bytes:
        """Returns the JSON of a page; of a kept page encoded only once."""
        kept_page = self._pages.get(UUID(page.experiment.summary.id))
        if kept_page is None or kept_page.page is not page:
            return encode(page)
        if kept_page.body is None:
            kept_page.body = encode(page)
        return kept_page.body
