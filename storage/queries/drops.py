# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Rollouts that were not trained, by reason: dropped experiences, failed rollouts, and tasks given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import COUNTED, FAILED
from rftd.storage.queries.lengths import LengthSummary, length_summary
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_UNDECIDED: Final = ("open", "waiting")
_REASONS: Final = 64
"""Maximum number of codes of failures."""


class DropReason(msgspec.Struct, frozen=True, kw_only=True):
    """Experiences dropped for one reason, never trained."""

    reason: str
    """The reason of `experience.retired`; `late`: produced after their group was closed without them."""
    experiences: int
    share: float
    """Share of all decided experiences, trained or dropped."""
    tokens: LengthSummary
    """Response lengths, to be compared with those trained."""
    examples: list[str]
    """Ids of the newest of these experiences."""


class FailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """Failed rollouts with one code."""

    code: str
    """The error's code; empty for rollouts that ended without a record: timed out, cancelled, or never begun."""
    rollouts: int
    share: float
    """Share of all rollouts of closed groups."""
    reason: str
    """The newest of their reasons."""
    examples: list[str]
    """Ids of the newest groups with such a rollout."""


class GivenUpTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks closed without an experience, with one code."""

    code: str
    tasks: int
    reason: str
    """The newest of their reasons."""
    examples: list[str]
    """Ids of the newest of their groups."""


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts that were not trained, beside those that were."""

    trained: LengthSummary
    """Response lengths of experiences planned at least once."""
    dropped: LengthSummary
    reasons: list[DropReason]
    """Reasons of drops, the most frequent first."""
    undecided: int
    """Experiences waiting, or of open groups; not counted above."""
    rollouts: int
    """Number of rollouts of closed groups."""
    failed_rollouts: int
    failures: list[FailureReason]
    """Failed rollouts of closed groups by code, the most frequent first."""
    given_up: list[GivenUpTasks]
    """Tasks without any experience by code, the most frequent first."""


class _DropCount(msgspec.Struct, frozen=True):
    tokens: int
    state: str
    reason: str | None
    used: int
    count: int


class _Example(msgspec.Struct, frozen=True):
    id: str
    reason: str


class _CodeCount(msgspec.Struct, frozen=True):
    code: str
    count: int


class _RolloutTotals(msgspec.Struct, frozen=True):
    members: int
    failed: int


async def drops_of(
    connection: AsyncConnection, experiment: UUID, *, stage: int | None = None, examples: int = 5
) -> Drops:
    """Returns the drops of an experiment, or of a stage, with examples for each reason. Reads every experience."""
    of_stage = "" if stage is None else "AND {}stage = :stage"
    parameters: dict[str, object] = {"experiment": experiment.bytes, **({} if stage is None else {"stage": stage})}
    rows = await fetch(
        connection,
        _DropCount,
        f"""SELECT e.response_tokens AS tokens, e.state AS state, e.retired_reason AS reason,
            CASE WHEN e.uses > 0 THEN 1 ELSE 0 END AS used, COUNT(*) AS count
        FROM experiences e WHERE e.experiment = :experiment AND {COUNTED} {of_stage.format("e.")}
        GROUP BY 1, 2, 3, 4""",
        **parameters,
    )
    trained: dict[int, int] = {}
    dropped: dict[int, int] = {}
    by_reason: dict[str, dict[int, int]] = {}
    undecided = 0
    for row in rows:
        if row.used:
            trained[row.tokens] = trained.get(row.tokens, 0) + row.count
        elif row.state in _UNDECIDED:
            undecided += row.count
        else:
            lengths = by_reason.setdefault(row.reason or row.state, {})
            for counts in (dropped, lengths):
                counts[row.tokens] = counts.get(row.tokens, 0) + row.count
    decided = max(1, sum(trained.values()) + sum(dropped.values()))
    reasons = [
        DropReason(
            reason=reason,
            experiences=sum(lengths.values()),
            share=sum(lengths.values()) / decided,
            tokens=length_summary(lengths),
            examples=await _examples(connection, reason, of_stage, examples, parameters),
        )
        for reason, lengths in by_reason.items()
    ]
    totals = (
        await fetch(
            connection,
            _RolloutTotals,
            f"""SELECT CAST(COALESCE(SUM(members), 0) AS BIGINT) AS members,
                CAST(COALESCE(SUM(failed), 0) AS BIGINT) AS failed
            FROM groups WHERE experiment = :experiment {of_stage.format("")}""",
            **parameters,
        )
    )[0]
    return Drops(
        trained=length_summary(trained),
        dropped=length_summary(dropped),
        reasons=sorted(reasons, key=lambda drop: (-drop.experiences, drop.reason)),
        undecided=undecided,
        rollouts=totals.members + totals.failed,
        failed_rollouts=totals.failed,
        failures=await _failures(connection, of_stage, totals, examples, parameters),
        given_up=await _given_up(connection, of_stage, examples, parameters),
    )


async def _examples(
    connection: AsyncConnection, reason: str, of_stage: str, limit: int, parameters: dict[str, object]
) -> list[str]:
    """Returns the ids of the newest experiences dropped for a reason."""
    rows = await fetch(
        connection,
        _Example,
        f"""SELECT e.id AS id, '' AS reason FROM experiences e
        WHERE e.experiment = :experiment AND {COUNTED} AND e.state IN ('retired', 'late') AND e.uses = 0
            AND COALESCE(e.retired_reason, e.state) = :reason {of_stage.format("e.")}
        ORDER BY e.produced_ns DESC, e.id LIMIT :examples""",
        reason=reason,
        examples=limit,
        **parameters,
    )
    return [row.id for row in rows]


async def _failures(
    connection: AsyncConnection, of_stage: str, totals: _RolloutTotals, examples: int, parameters: dict[str, object]
) -> list[FailureReason]:
    """Returns the failed rollouts by code; those without a record count under an empty code."""
    if not totals.failed:
        return []
    # From the groups with failures: the experiences of a run are too many to be searched for them.
    failed = f"""FROM groups g JOIN experiences e ON e.group_id = g.id
        WHERE g.experiment = :experiment {of_stage.format("g.")} AND g.failed > 0 AND {FAILED}"""
    counts = await fetch(
        connection,
        _CodeCount,
        f"""SELECT COALESCE(e.failed_code, '') AS code, COUNT(*) AS count {failed}
        GROUP BY COALESCE(e.failed_code, '') ORDER BY COUNT(*) DESC, 1 LIMIT {_REASONS}""",
        **parameters,
    )
    rollouts = max(1, totals.members + totals.failed)
    failures = []
    for row in counts:
        newest = await fetch(
            connection,
            _Example,
            f"""SELECT g.id AS id, COALESCE(e.failed_reason, '') AS reason {failed}
                AND COALESCE(e.failed_code, '') = :code
            ORDER BY e.failed_ns DESC, g.id LIMIT :examples""",
            code=row.code,
            examples=examples,
            **parameters,
        )
        failures.append(
            FailureReason(
                code=row.code,
                rollouts=row.count,
                share=row.count / rollouts,
                reason=newest[0].reason if newest else "",
                examples=list(dict.fromkeys(example.id for example in newest)),
            )
        )
    silent = totals.failed - sum(row.count for row in counts)
    if silent > 0:
        failures.append(FailureReason(code="", rollouts=silent, share=silent / rollouts, reason="", examples=[]))
    return sorted(failures, key=lambda failure: (-failure.rollouts, failure.code))


async def _given_up(
    connection: AsyncConnection, of_stage: str, examples: int, parameters: dict[str, object]
) -> list[GivenUpTasks]:
    """Returns the tasks without an experience by code."""
    closed_empty = f"""FROM groups WHERE experiment = :experiment {of_stage.format("")} AND members = 0"""
    counts = await fetch(
        connection,
        _CodeCount,
        f"""SELECT COALESCE(code, '') AS code, COUNT(*) AS count {closed_empty}
        GROUP BY COALESCE(code, '') ORDER BY COUNT(*) DESC, 1 LIMIT {_REASONS}""",
        **parameters,
    )
    given_up = []
    for row in counts:
        newest = await fetch(
            connection,
            _Example,
            f"""SELECT id, COALESCE(reason, '') AS reason {closed_empty} AND COALESCE(code, '') = :code
            ORDER BY closed_ns DESC, id LIMIT :examples""",
            code=row.code,
            examples=examples,
            **parameters,
        )
        given_up.append(
            GivenUpTasks(
                code=row.code, tasks=row.count, reason=newest[0].reason, examples=[example.id for example in newest]
            )
        )
    return given_up
