"""`EndedPages`: pages of ended experiments, kept in memory until new records of them or of their ancestors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

from rftd.daemon.http.views.wire import encode

PageT = TypeVar("PageT", bound=msgspec.Struct)
"""Struct of an experiment's page."""
CACHED_PAGES: Final = 64
"""Maximum number of cached pages, some 100 KB each; beyond it, the page unread for the longest time is dropped."""


class _CachedPage(Generic[PageT]):
    """A page, with the number of applied records of each experiment in its history, and its JSON once encoded."""

    def __init__(self, page: PageT, counts: Mapping[UUID, int]) -> None:
        self.page = page
        self.counts = counts
        self.body: bytes | None = None


class EndedPages(Generic[PageT]):
    """Pages of ended experiments, read and encoded once."""

    def __init__(self, most: int = CACHED_PAGES) -> None:
        self._pages: OrderedDict[UUID, _CachedPage[PageT]] = OrderedDict()
        """Kept pages by experiment, the one unread for the longest time first."""
        self._most = most

    def of(self, experiment: UUID, applied: Callable[[UUID], int]) -> PageT | None:
        """Returns the cached page; None without one, or after new records. `applied` returns an experiment's number of
        applied records.
        """
        cached_page = self._pages.get(experiment)
        if cached_page is None or any(applied(id) != count for id, count in cached_page.counts.items()):
            return None
        self._pages.move_to_end(experiment)
        return cached_page.page

    def keep(self, experiment: UUID, page: PageT, counts: Mapping[UUID, int]) -> None:
        """Keeps a page read after `counts`, the applied records of the experiment and of its ancestors."""
        self._pages[experiment] = _CachedPage(page, counts)
        self._pages.move_to_end(experiment)
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def renew(self, experiment: UUID, page: PageT) -> None:
        """Replaces a cached page after a change outside the tables."""
        if experiment in self._pages:
            self.keep(experiment, page, self._pages[experiment].counts)

    def body_of(self, experiment: UUID, page: PageT) -> bytes:
        """Returns the JSON of an experiment's page; of a cached page encoded only once."""
        cached_page = self._pages.get(experiment)
        if cached_page is None or cached_page.page is not page:
            return encode(page)
        if cached_page.body is None:
            cached_page.body = encode(page)
        return cached_page.body
