# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Single experiences, and their tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.books import COUNTED, GROUP, LEASE_HELD
from rftd.storage.queries.rows import fetch, fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class ExperienceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One experience, without its tokens: they lie in the log at (partition, offset) of `rftd.experiences`."""

    id: str
    """Id of the experience."""
    group: str
    """Id of the group."""
    rollout: int
    """Number of the rollout in its group, from 0."""
    stage: int
    """Number of the stage."""
    state: str
    """`open`, `waiting`, `cooling`, `planned`, `retired` or `late`."""
    retired_reason: str | None
    """Reason of the retirement; null unless retired."""
    reward: float | None
    """Reward of the rollout."""
    priority: float | None
    """Priority tag, read by the planner; null or 0 without a tag."""
    prompt_tokens: int
    """Length of the prompt, in tokens; of several steps, their sum."""
    response_tokens: int
    """Length of the response, in tokens."""
    oldest_version: int
    """The oldest weight version behind a token of the response."""
    newest_version: int
    """The newest weight version behind a token of the response."""
    step: int | None
    """The last step planned with this experience."""
    staleness_versions: int | None
    """Staleness when planned for that step, in versions."""
    uses: int
    """Number of plans with this experience."""
    finish: str
    """End of the response: `stop`, `length` or `prompt_truncated`."""
    duration_s: float | None
    """Seconds of the rollout."""
    metrics: dict[str, float | None]
    """Metrics of the rollout, by name, such as the parts of the reward."""
    produced_ns: int
    """End of the rollout, Unix time in nanoseconds."""
    partition: int
    """Partition of `rftd.experiences` with the record."""
    offset: int
    """Offset of the record in the partition."""
    starred: bool = False
    """True for an experience starred by a command."""


PREFIX: Final = re.compile(r"[0-9a-f]{8,32}")
"""Form of an id, or of its beginning, without dashes."""
_CANDIDATES: Final = 8
"""Maximum number of ids named in an error."""

COLUMNS: Final = """e.id, e.group_id AS "group", e.rollout, e.stage, e.state,
    e.retired_reason, e.reward, COALESCE(g.tag, e.priority) AS priority, e.prompt_tokens,
    e.response_tokens, e.oldest_version, e.newest_version, e.finish, e.duration_s, e.metrics, e.produced_ns,
    e.produced_partition AS partition, e.produced_offset AS "offset", e.step, e.staleness_versions, e.uses,
    COALESCE((SELECT s.starred FROM annotations s
        WHERE s.experiment = e.experiment AND s.experience = e.id), FALSE) AS starred"""
"""Columns of an `ExperienceRow`, of `experiences e` with their `GROUP`."""
ROWS: Final = f"SELECT {COLUMNS} FROM experiences e {GROUP} WHERE {COUNTED}"
"""SQL of every `ExperienceRow`, to be continued by conditions on `experiences e`."""


async def get_experience(connection: AsyncConnection, experience: UUID) -> ExperienceRow:
    """Returns an experience by id. Raises NotFoundError."""
    row = await fetch_one(connection, ExperienceRow, f"{ROWS} AND e.id = :experience", experience=experience.bytes)
    if row is None:
        raise NotFoundError(f"no experience {experience}")
    return row


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a group of experiences: dataset row, epoch, and sequence number."""

    sequence: int
    """The task's number in its stage, from 0."""
    row: int
    """The row number over all tasksets of the stage, counted through from one taskset to the next."""
    epoch: int
    """Epoch of the dataset row."""


class _ExperienceId(msgspec.Struct, frozen=True):
    """A row with an experience's id alone."""

    id: str
    """Id of the experience."""


async def task_of(connection: AsyncConnection, group: UUID) -> TaskRow | None:
    """Returns the task of a group; None without leases in the tables."""
    return await fetch_one(
        connection,
        TaskRow,
        """SELECT sequence, row_start AS "row", epoch FROM leases
        WHERE subject = :group AND kind = 'task' ORDER BY leased_ns LIMIT 1""",
        group=group.bytes,
    )


async def find_experience(connection: AsyncConnection, experiment: UUID, text: str) -> UUID:
    """Returns an experiment's experience by id, or by a unique prefix of at least 8 digits.

    Raises NotFoundError; UsageError with the candidates for an ambiguous prefix, and for any other text.
    """
    prefix = text.replace("-", "").lower()
    if not PREFIX.fullmatch(prefix):
        raise UsageError(
            f"{text[:80]!r} is no id", field="experience", fix="give 8 or more digits; see rftd experiences ls"
        )
    # A range of the key; a pattern over the text would read the whole table, and without COALESCE SQLite would read
    # every experience of the experiment by another index.
    rows = await fetch(
        connection,
        _ExperienceId,
        f"""SELECT DISTINCT e.id AS id FROM experiences e
        WHERE e.id BETWEEN :low AND :high AND COALESCE(e.experiment, e.id) = :experiment AND {LEASE_HELD}
        LIMIT {_CANDIDATES}""",
        low=bytes.fromhex(prefix.ljust(32, "0")),
        high=bytes.fromhex(prefix.ljust(32, "f")),
        experiment=experiment.bytes,
    )
    ids = [row.id for row in rows]
    if not ids:
        raise NotFoundError(f"no experience {text}", fix="see rftd experiences ls")
    if len(ids) > 1:
        raise UsageError(
            f"{text!r} names {len(ids)} experiences", field="experience", fix="use one of " + ", ".join(ids)
        )
    return UUID(ids[0])
