"""`OpenedFiles`: experiment files sent by `rftd studio FILE`, in memory for a browser of the same token."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from rftd.ops.clock import Clock
from rftd.ops.errors import NotFoundError

LASTS_S: Final = 300.0
"""Time in seconds for opening a file, as long as for opening a one-time link."""
MOST_FILES: Final = 32
"""Maximum number of files in memory; the oldest one is dropped."""


class StudioFile(NamedTuple):
    """An experiment file for the studio, with its sender."""

    name: str
    """Name of the file."""
    text: str
    """Text of the file."""
    asker: str
    """Name of the sending token, the only one with access."""
    ends_s: float
    """End of the access, by the monotonic clock."""


class OpenedFiles:
    """Experiment files on their way from a command line to a browser."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._files: dict[str, StudioFile] = {}

    def add(self, name: str, text: str, asker: str) -> str:
        """Stores a file of an asker, and returns its id."""
        now_s = self._clock.monotonic_s()
        self._files = {id: file for id, file in self._files.items() if file.ends_s > now_s}
        while len(self._files) >= MOST_FILES:
            del self._files[next(iter(self._files))]
        id = secrets.token_urlsafe(16)
        self._files[id] = StudioFile(name, text, asker, now_s + LASTS_S)
        return id

    def of(self, id: str, asker: str) -> StudioFile:
        """Returns a file of this asker. Raises NotFoundError, also for files of other askers and after five minutes."""
        file = self._files.get(id)
        if file is None or file.asker != asker or file.ends_s <= self._clock.monotonic_s():
            raise NotFoundError("this file is no longer here", fix="rftd studio FILE")
        return file
