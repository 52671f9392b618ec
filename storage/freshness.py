"""How far the tables have come, seen from a process in which no projector runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, WaitTimeoutError
from rftd.storage.writer import read_positions
from rftd.streams.topics import Partition

_FIRST_POLL_S: Final = 0.01
_LONGEST_POLL_S: Final = 0.25


class TablePositions:
    """The positions that a projector elsewhere commits, read again with back-off while somebody waits.

    It stands in for the projector before readers: `positions`, `last_error`, `wait_for`.
    """

    def __init__(self, engine: AsyncEngine, *, clock: Clock) -> None:
        self.last_error: str | None = None
        """Of the database, at the last reading."""
        self._engine = engine
        self._clock = clock
        self._seen: dict[Partition, int] = {}

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset of each partition that was not in the tables at the last reading."""
        return self._seen

    async def read(self) -> Mapping[Partition, int]:
        """Reads the positions. Raises UnreachableError and SQLAlchemyError."""
        async with self._engine.connect() as connection:
            heads = await read_positions(connection)
        self._seen = {partition: mark.next_offset for partition, mark in heads.items()}
        self.last_error = None
        return self._seen

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this place is in the tables. Raises WaitTimeoutError."""
        await self.wait_for_all({partition: offset + 1}, timeout_s)

    async def wait_for_all(self, positions: Mapping[Partition, int], timeout_s: float | None) -> None:
        """Returns once the tables hold everything below `positions`; outlasts a database that does not answer.

        Raises WaitTimeoutError.
        """
        delay_s = _FIRST_POLL_S
        try:
            async with asyncio.timeout(timeout_s):
                while self._behind(positions):
                    await self._try()
                    if self._behind(positions):
                        await self._clock.sleep(delay_s)
                        delay_s = min(2 * delay_s, _LONGEST_POLL_S)
        except TimeoutError as error:
            partition, offset = next((p, o) for p, o in positions.items() if self._seen.get(p, 0) < o)
            raise WaitTimeoutError(
                f"{partition}@{offset - 1} is not in the tables after {timeout_s} s",
                fix=self.last_error or "the tables lag behind the log; try again",
            ) from error

    def _behind(self, positions: Mapping[Partition, int]) -> bool:
        return any(self._seen.get(partition, 0) < offset for partition, offset in positions.items())

    async def _try(self) -> None:
        try:
            await self.read()
        except TimeoutError:
            raise
        except (SQLAlchemyError, RftdError, OSError) as error:
            end_if_cancelled()
            self.last_error = str(error).partition("\n")[0]
