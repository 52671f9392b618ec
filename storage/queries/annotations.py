"""Notes, stars and labels of an experiment and of its rollouts, set by commands."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class NoteRow(msgspec.Struct, frozen=True, kw_only=True):
    """A note on an experiment or on one of its rollouts."""

    experience: str | None
    """The rollout; null for the experiment."""
    text: str
    """Text of the note."""
    author: str | None
    """Name of the token of the author; null for the owner."""
    noted_ns: int
    """Time of the note, Unix time in nanoseconds."""


class RolloutMark(msgspec.Struct, frozen=True, kw_only=True):
    """Star and labels of a rollout."""

    experience: str
    """Id of the rollout's experience."""
    starred: bool
    """True for a starred rollout."""
    labels: dict[str, str]
    """Labels of the rollout, by key."""


async def list_notes(connection: AsyncConnection, experiment: UUID, *, limit: int = 1000) -> list[NoteRow]:
    """Returns the notes on an experiment and its rollouts, newest first."""
    return await fetch(
        connection,
        NoteRow,
        """SELECT n.experience, n.text, NULLIF(n.author, '') AS author, n.noted_ns FROM notes n
        WHERE n.experiment = :experiment AND n.noted_offset IS NOT NULL ORDER BY n.number DESC LIMIT :limit""",
        experiment=experiment.bytes,
        limit=limit,
    )


async def list_marks(connection: AsyncConnection, experiment: UUID, *, limit: int = 1000) -> list[RolloutMark]:
    """Returns the rollouts with a star or labels, those marked last first."""
    return await fetch(
        connection,
        RolloutMark,
        """SELECT a.experience, COALESCE(a.starred, FALSE) AS starred, a.labels FROM annotations a
        WHERE a.experiment = :experiment AND a.experience <> :experiment
            AND (COALESCE(a.starred, FALSE) OR COALESCE(a.labels, '{}') <> '{}')
        ORDER BY COALESCE(a.starred_offset, a.labelled_offset) DESC, a.experience LIMIT :limit""",
        experiment=experiment.bytes,
        limit=limit,
    )
