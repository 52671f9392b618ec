"""State and signal of every experiment that has not ended, and of named ones, in one short read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """State of an experiment, and the step since which the learning signal is lost."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment; empty before its submission is in the tables."""
    state: str
    """Present state of the experiment."""
    signal_cause: str | None
    """Cause of the lost signal; None or empty during normal training."""
    signal_step: int | None
    """First step of a lost or of a regained signal; None if the signal was never lost."""


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ended experiment, and the time of its end."""

    id: str
    """Id of the experiment."""
    ended_ns: int
    """Time of the last transition, Unix time in nanoseconds."""


async def ended_experiments(connection: AsyncConnection, *, after_ns: int) -> list[EndedRow]:
    """Returns the experiments that ended after a moment, in the order of their ends."""
    return await fetch(
        connection,
        EndedRow,
        """SELECT id, state_ns AS ended_ns FROM experiments
        WHERE state IN ('completed', 'failed', 'cancelled', 'rejected') AND state_ns > :after ORDER BY state_ns, id""",
        after=after_ns,
    )


async def live_experiments(connection: AsyncConnection) -> list[LiveRow]:
    """Returns the experiments that have not ended."""
    return await fetch(
        connection,
        LiveRow,
        """SELECT id, COALESCE(name, '') AS name, COALESCE(state, 'submitted') AS state, signal_cause, signal_step
        FROM experiments
        WHERE COALESCE(state, '') NOT IN ('completed', 'failed', 'cancelled', 'rejected')""",
    )
