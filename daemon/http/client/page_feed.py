"""`PageFeed`: an experiment's pages, read on a thread of their own, so that whoever shows them can do so on time."""

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
"""Pages that wait to be shown. The daemon sends two a second at most, and the reader waits for the one who shows."""
_TURN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Away:
    """No daemon answers: the pages go on when one does."""

    error: UnreachableError


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None = None


News = Answer[ExperimentPage] | Away


class PageFeed:
    """The news of one experiment until it has ended. A context manager: it ends the thread."""

    def __init__(self, client: Client, name: str, *, after: str | None, patience_s: float) -> None:
        self._news: Queue[News | _Ended] = Queue(_KEPT)
        self._left = Event()
        self._thread = Thread(target=self._read, args=(client, name, after, patience_s), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: it may wait for the daemon's next word, and ends with the process.
        self._left.set()

    def each(self, timeout_s: float) -> Iterator[News | None]:
        """The news as they come, and None whenever there was none for `timeout_s`. Raises what the reading raised."""
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
                client, name, after=after, patience_s=patience_s, on_away=lambda error: self._tell(Away(error))
            )
            for page in pages:
                self._tell(page)
                if self._left.is_set():
                    return
        except BaseException as error:  # raised again where the news are read
            ended = _Ended(error)
        self._tell(ended)

    def _away(self, error: UnreachableError) -> None:
        self._tell(Away(error))

    def _tell(self, news: News | _Ended) -> None:
        while not self._left.is_set():
            try:
                self._news.put(news, timeout=_TURN_S)
            except Full:
                continue
            return
