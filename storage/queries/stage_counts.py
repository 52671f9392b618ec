# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Counts of a stage's rollouts by kind, reason and length, kept by the projector: the kinds, and their read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

OPEN: Final = "open"
"""Experiences of groups not closed yet, never planned; without lengths."""
WAITING: Final = "waiting"
"""Experiences of closed groups, never planned; without lengths."""
TRAINED: Final = "trained"
"""Experiences planned at least once, by length."""
DROPPED: Final = "dropped"
"""Experiences retired without a use, by reason and length."""
LATE: Final = "late"
"""Experiences produced after their group was closed without them, by length."""
MEMBERS: Final = "members"
"""Members of closed groups."""
FAILED: Final = "failed"
"""Rollouts of closed groups without an experience."""
FAILED_ROLLOUTS: Final = "failed_rollouts"
"""Rollouts ended by a record of their failure, by code."""
EMPTY: Final = "empty"
"""Groups closed without a member, by code."""

REASON_CHARACTERS: Final = 500
"""Maximum length of a reason or code in the counts: a key of an index."""
_EXACT_LENGTHS: Final = 256
"""Lengths below are kept to the token, greater ones to eight binary digits."""


class StageCount(msgspec.Struct, frozen=True):
    """A number of rollouts or groups of one kind."""

    kind: str
    """Kind of the counted rollouts or groups, one of the constants of this module."""
    reason: str
    """Reason of a retirement, or code of a failure or close; else empty."""
    count: int
    """Number of rollouts or groups."""
    prompt_tokens: int
    """Sum of the prompts' lengths over the experiences counted, in tokens; 0 for kinds without experiences."""
    response_tokens: int
    """Sums over the experiences counted; 0 for other kinds."""

    @property
    def length(self) -> int:
        """The mean length of the responses, exact for a single length."""
        return round(self.response_tokens / self.count)


def length_key(tokens: int) -> int:
    """Returns the key of a length in the counts: few keys for many lengths, which differ by less than 1 per cent."""
    digits = tokens.bit_length() - 8
    return tokens if tokens < _EXACT_LENGTHS else tokens >> digits << digits


async def stage_counts(connection: AsyncConnection, experiment: UUID, *, stage: int | None = None) -> list[StageCount]:
    """Returns the counts of an experiment, or of a stage; several rows of one kind differ by stage or length."""
    return await fetch(
        connection,
        StageCount,
        f"""SELECT kind, reason, count, prompt_tokens, response_tokens FROM stage_counts
        WHERE experiment = :experiment {"" if stage is None else "AND stage = :stage"}""",
        experiment=experiment.bytes,
        **({} if stage is None else {"stage": stage}),
    )
