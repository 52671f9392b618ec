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
    state: str
    signal_cause: str | None
    """Cause of the lost signal; None or empty during normal training."""
    signal_step: int | None


async def live_experiments(connection: AsyncConnection) -> list[LiveRow]:
    """Returns the experiments that have not ended."""
    return await fetch(
        connection,
        LiveRow,
        """SELECT id, COALESCE(state, 'submitted') AS state, signal_cause, signal_step FROM experiments
        WHERE COALESCE(state, '') NOT IN ('completed', 'failed', 'cancelled', 'rejected')""",
    )
