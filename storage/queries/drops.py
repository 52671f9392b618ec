# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Rollouts that were not trained, by reason: dropped experiences, failed rollouts, and tasks given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import FAILED
from rftd.storage.queries.lengths import LengthSummary, length_summary
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.stage_counts import (
    DROPPED,
    EMPTY,
    FAILED_ROLLOUTS,
    LATE,
    MEMBERS,
    OPEN,
    REASON_CHARACTERS,
    TRAINED,
    WAITING,
    StageCount,
    stage_counts,
)
from rftd.storage.queries.stage_counts import FAILED as FAILED_MEMBERS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_REASONS: Final = 64
"""Maximum number of codes reported for failures, and of those for given-up tasks: the most frequent ones."""


class DropReason(msgspec.Struct, frozen=True, kw_only=True):
    """Experiences dropped for one reason, never trained."""

    reason: str
    """The reason of `experience.retired`; `late`: produced after their group was closed without them."""
    experiences: int
    """Number of experiences dropped for the reason."""
    share: float
    """Share of all decided experiences, trained or dropped."""
    tokens: LengthSummary
    """Response lengths of the experiences, to be compared with those trained; from 256 tokens on within 1 per cent."""
    examples: list[str]
    """Ids of the newest of these experiences."""


class FailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """Failed rollouts with one code."""

    code: str
    """The error's code; empty for rollouts that ended without a record: timed out, cancelled, or never begun."""
    rollouts: int
    """Number of failed rollouts with the code."""
    share: float
    """Share of these rollouts among all rollouts of closed groups, from 0 to 1."""
    reason: str
    """The newest of their reasons."""
    examples: list[str]
    """Ids of the newest groups with such a rollout."""


class GivenUpTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks closed without an experience, with one code."""

    code: str
    """Code of the closed groups; empty without one."""
    tasks: int
    """Number of tasks with the code."""
    reason: str
    """The newest of their reasons."""
    examples: list[str]
    """Ids of the newest of their groups."""


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts that were not trained, beside those that were."""

    trained: LengthSummary
    """Response lengths of experiences planned at least once; from 256 tokens on within 1 per cent."""
    dropped: LengthSummary
    """Response lengths of dropped experiences; from 256 tokens on within 1 per cent."""
    reasons: list[DropReason]
    """Reasons of drops, the most frequent first."""
    undecided: int
    """Experiences waiting, or of open groups; not counted above."""
    rollouts: int
    """Number of rollouts of closed groups."""
    failed_rollouts: int
    """Number of failed rollouts of closed groups, including rollouts without a record."""
    failures: list[FailureReason]
    """Failed rollouts by code, the most frequent first."""
    given_up: list[GivenUpTasks]
    """Tasks without any experience by code, the most frequent first."""


class _Example(msgspec.Struct, frozen=True):
    """A row with the id of a dropped experience or of a group, and a reason."""

    id: str
    """Id of the experience or of the group."""
    reason: str
    """Reason in words; empty for a dropped experience."""


async def drops_of(
    connection: AsyncConnection, experiment: UUID, *, stage: int | None = None, examples: int = 5
) -> Drops:
    """Returns the drops of an experiment, or of a stage, from the projector's counts, with examples for each reason."""
    of_stage = "" if stage is None else "AND {}stage = :stage"
    parameters: dict[str, object] = {"experiment": experiment.bytes, **({} if stage is None else {"stage": stage})}
    counts = await stage_counts(connection, experiment, stage=stage)

    def total(*kinds: str) -> int:
        """Returns the sum of the counts of these kinds."""
        return sum(row.count for row in counts if row.kind in kinds)

    dropped_rows = [row for row in counts if row.kind in (DROPPED, LATE)]
    by_reason: dict[tuple[str, str], list[StageCount]] = {}
    for row in dropped_rows:
        by_reason.setdefault((row.kind, row.reason), []).append(row)
    trained, dropped = _lengths(row for row in counts if row.kind == TRAINED), _lengths(dropped_rows)
    decided = max(1, trained.count + dropped.count)
    reasons = []
    for (kind, reason), rows in by_reason.items():
        lengths = _lengths(rows)
        newest = await _examples(connection, kind, reason, of_stage, examples, parameters)
        drop = DropReason(
            reason=reason, experiences=lengths.count, share=lengths.count / decided, tokens=lengths, examples=newest
        )
        reasons.append(drop)
    rollouts, failed = total(MEMBERS, FAILED_MEMBERS), total(FAILED_MEMBERS)
    failures = await _failures(connection, _by_code(counts, FAILED_ROLLOUTS), of_stage, rollouts, examples, parameters)
    # Rollouts that never began, or were cut off, have no record.
    silent = failed - total(FAILED_ROLLOUTS)
    if silent > 0:
        failures.append(FailureReason(code="", rollouts=silent, share=silent / rollouts, reason="", examples=[]))
    return Drops(
        trained=trained,
        dropped=dropped,
        reasons=sorted(reasons, key=lambda drop: (-drop.experiences, drop.reason)),
        undecided=total(OPEN, WAITING),
        rollouts=rollouts,
        failed_rollouts=failed,
        failures=sorted(failures, key=lambda failure: (-failure.rollouts, failure.code)),
        given_up=await _given_up(connection, _by_code(counts, EMPTY), of_stage, examples, parameters),
    )


def _lengths(rows: Iterable[StageCount]) -> LengthSummary:
    """Returns the summary of the response lengths of some counts."""
    by_length: dict[int, int] = {}
    for row in rows:
        by_length[row.length] = by_length.get(row.length, 0) + row.count
    return length_summary(by_length)


def _by_code(counts: Iterable[StageCount], kind: str) -> list[tuple[str, int]]:
    """Returns the most frequent codes of a kind, with their numbers."""
    by_code: dict[str, int] = {}
    for row in counts:
        if row.kind == kind:
            by_code[row.reason] = by_code.get(row.reason, 0) + row.count
    return sorted(by_code.items(), key=lambda counted: (-counted[1], counted[0]))[:_REASONS]


async def _examples(
    connection: AsyncConnection, kind: str, reason: str, of_stage: str, limit: int, parameters: dict[str, object]
) -> list[str]:
    """Returns the ids of the newest experiences dropped for a reason, at most `limit`; of kind `LATE` for any reason.

    `of_stage` is an SQL condition on the stage, with `{}` for the prefix of its column, or empty.
    """
    # `state <> 'planned'` names the partial index.
    key = _key_of("NULLIF(e.retired_reason, '')", "retired")
    of_kind = "e.state = 'late'" if kind == LATE else f"e.state = 'retired' AND {key} = :reason"
    rows = await fetch(
        connection,
        _Example,
        f"""SELECT e.id AS id, '' AS reason FROM experiences e
        WHERE e.experiment = :experiment AND e.state <> 'planned' AND e.uses = 0
            AND {of_kind} {of_stage.format("e.")}
        ORDER BY e.produced_ns DESC, e.id LIMIT :examples""",
        examples=limit,
        **({} if kind == LATE else {"reason": reason}),
        **parameters,
    )
    return [row.id for row in rows]


async def _failures(
    connection: AsyncConnection,
    counts: list[tuple[str, int]],
    of_stage: str,
    rollouts: int,
    examples: int,
    parameters: dict[str, object],
) -> list[FailureReason]:
    """Returns the failed rollouts for each code in `counts`, with the newest reason and at most `examples` groups.

    `rollouts` is the number of which shares are taken; `of_stage` is as in `_examples`.
    """
    failures = []
    for code, number in counts:
        newest = await fetch(
            connection,
            _Example,
            f"""SELECT e.group_id AS id, COALESCE(e.failed_reason, '') AS reason FROM experiences e
            WHERE e.failed_experiment = :experiment {of_stage.format("e.failed_")} AND {FAILED}
                AND {_key_of("e.failed_code")} = :code
            ORDER BY e.failed_ns DESC, e.group_id LIMIT :examples""",
            code=code,
            examples=examples,
            **parameters,
        )
        failures.append(
            FailureReason(
                code=code,
                rollouts=number,
                share=number / max(1, rollouts),
                reason=newest[0].reason if newest else "",
                examples=list(dict.fromkeys(example.id for example in newest)),
            )
        )
    return failures


async def _given_up(
    connection: AsyncConnection,
    counts: list[tuple[str, int]],
    of_stage: str,
    examples: int,
    parameters: dict[str, object],
) -> list[GivenUpTasks]:
    """Returns the tasks without an experience for each code in `counts`, with the newest reason and at most `examples`
    groups; `of_stage` is as in `_examples`.
    """
    given_up = []
    for code, number in counts:
        newest = await fetch(
            connection,
            _Example,
            f"""SELECT id, COALESCE(reason, '') AS reason FROM groups
            WHERE experiment = :experiment {of_stage.format("")} AND members = 0 AND {_key_of("code")} = :code
            ORDER BY closed_ns DESC, id LIMIT :examples""",
            code=code,
            examples=examples,
            **parameters,
        )
        reason = newest[0].reason if newest else ""
        given_up.append(
            GivenUpTasks(code=code, tasks=number, reason=reason, examples=[example.id for example in newest])
        )
    return given_up


def _key_of(column: str, default: str = "") -> str:
    """Returns the SQL of a reason or a code as in the counts: cut after `REASON_CHARACTERS`, and `default` in place of
    NULL.
    """
    return f"SUBSTR(COALESCE({column}, '{default}'), 1, {REASON_CHARACTERS})"
