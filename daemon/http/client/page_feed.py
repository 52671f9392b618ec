"""`PageFeed`: an experiment's pages, read in a separate thread, so that the displaying program stays responsive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from rftd.daemon.http.client.client import Answer, Client, follow
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.ops.errors import UnreachableError

_MAX_WAITING_PAGES: Final = 4
"""Maximum number of news waiting to be shown: the reader of the pages waits for the display."""
_TURN_S: Final = 0.2
"""Seconds after which a reader waiting for room looks again whether the feed was closed."""


@dataclass(frozen=True, slots=True)
class Away:
    """No daemon answers: the pages continue once one does."""

    error: UnreachableError
    """Why the daemon is out of reach."""


@dataclass(frozen=True, slots=True)
class _FeedEnd:
    """The last element of a feed, with the error that ended it."""

    error: BaseException | None = None
    """Error of the reader; None after the experiment's end."""


News = Answer[ExperimentPage] | Away
"""A page, or the notice that no daemon answers."""


class PageFeed:
    """The news of one experiment until its end. A context manager: leaving it ends the thread."""

    def __init__(self, client: Client, name: str, *, after: str | None, patience_s: float) -> None:
        """`after` is a position to be visible in the first page; `patience_s` is the longest tolerated absence of the
        daemon.
        """
        self._news: Queue[News | _FeedEnd] = Queue(_MAX_WAITING_PAGES)
        """Queue of news not shown yet, ended by a `_FeedEnd`."""
        self._closed = Event()
        """Event set when the feed's block has ended: nobody shows news any more."""
        self._thread = Thread(target=self._read_pages, args=(client, name, after, patience_s), daemon=True)
        """Thread that reads the pages."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: the thread may wait for the daemon's next page, and ends with the process.
        self._closed.set()

    def each(self, timeout_s: float) -> Iterator[News | None]:
        """Yields news as they come, and None after each `timeout_s` without any. Raises the reader's errors."""
        while True:
            try:
                news = self._news.get(timeout=timeout_s)
            except Empty:
                yield None
                continue
            if isinstance(news, _FeedEnd):
                if news.error is not None:
                    raise news.error
                return
            yield news

    def _read_pages(self, client: Client, name: str, after: str | None, patience_s: float) -> None:
        """Reads pages until the experiment's end, an error or the end of the feed's block; the body of the thread."""
        ended = _FeedEnd()
        try:
            pages = follow(
                client, name, after=after, patience_s=patience_s, on_away=lambda error: self._put(Away(error))
            )
            for page in pages:
                self._put(page)
                if self._closed.is_set():
                    return
        except BaseException as error:  # raised again in `each`
            ended = _FeedEnd(error)
        self._put(ended)

    def _put_away(self, error: UnreachableError) -> None:
        """Adds the notice of an absent daemon."""
        self._put(Away(error))

    def _put(self, news: News | _FeedEnd) -> None:
        """Adds news, waiting for room; drops them once the feed is closed."""
        while not self._closed.is_set():
            try:
                self._news.put(news, timeout=_TURN_S)
            except Full:
                continue
            return
