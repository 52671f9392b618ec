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

_KEPT: Final = 4
"""Number of pages waiting to be shown. The daemon sends at most two a second, and the reader waits for the display."""
_TURN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Away:
    """No daemon answers: the pages continue once one does."""

    error: UnreachableError


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None = None


News = Answer[ExperimentPage] | Away


class PageFeed:
    """The news of one experiment until its end. A context manager: leaving it ends the thread."""

    def __init__(self, client: Client, name: str, *, after: str | None, patience_s: float) -> None:
        self._news: Queue[News | _Ended] = Queue(_KEPT)
        self._closed = Event()
        self._thread = Thread(target=self._read, args=(client, name, after, patience_s), daemon=True)

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
            if isinstance(news, _Ended):
                if news.error is not None:
                    raise news.error
                return
            yield news

    def _read(self, client: Client, name: str, after: str | None, patience_s: float) -> None:
        ended = _Ended()
        try:
            pages = follow(
                client, name, after=after, patience_s=patience_s, on_away=lambda error: self._put(Away(error))
            )
            for page in pages:
                self._put(page)
                if self._closed.is_set():
                    return
        except BaseException as error:  # raised again in `each`
            ended = _Ended(error)
        self._put(ended)

    def _away(self, error: UnreachableError) -> None:
        self._put(Away(error))

    def _put(self, news: News | _Ended) -> None:
        while not self._closed.is_set():
            try:
                self._news.put(news, timeout=_TURN_S)
            except Full:
                continue
            return
