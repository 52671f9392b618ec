"""`Folders`: absolute paths in events, changed from the folders of one machine to those of another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from rftd.ops.paths import plain_path
from rftd.streams.events.experiment import ExperimentSubmitted, FolderMove
from rftd.streams.events.registry import Event
from rftd.streams.log.marked import moved


class Folders:
    """Pairs of old and new folders; for a path below several old folders, the longest applies."""

    def __init__(self, moves: Iterable[tuple[str, str]] = ()) -> None:
        self.moves: Final = sorted(
            ((PurePosixPath(plain_path(old)), PurePosixPath(plain_path(new))) for old, new in moves),
            key=lambda move: -len(move[0].parts),
        )

    def path(self, text: str) -> str:
        """Returns the path on this machine; texts below no old folder are returned unchanged."""
        if not text.startswith("/"):
            return text
        path = PurePosixPath(plain_path(text))
        for old, new in self.moves:
            if path.is_relative_to(old):
                return str(new / path.relative_to(old))
        return text

    def covers(self, text: str) -> bool:
        """True if the path is an old folder, or below one."""
        return any(PurePosixPath(plain_path(text)).is_relative_to(old) for old, _ in self.moves)

    def event(self, event: Event) -> Event:
        """Returns the event with its paths moved.

        The user's own file in `spec.config` stays as written; the submission lists the moved folders.
        """
        if all(old == new for old, new in self.moves):  # nothing to move
            return event
        if isinstance(event, ExperimentSubmitted):
            step = tuple(FolderMove(str(old), str(new)) for old, new in self.moves)
            event = msgspec.structs.replace(event, moves=(*event.moves, step))
        return moved(event, self.path)
