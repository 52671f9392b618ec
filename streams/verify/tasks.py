"""The decisions of the dispatcher: groups, their rows, and their closing."""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

from rftd.streams.events import task, weights
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import source_of
from rftd.streams.verify.answers import holder_key
from rftd.streams.verify.evidence import Draws, EvalEvidence, Evidence, SiblingGroup
from rftd.streams.verify.facts import CLOSED, FATE, FATE_AT, GROUP, LEASED, MEMBER, ORIGIN, WINDOW, Facts, place_number
from rftd.streams.verify.identities import low, mixed

_ABSURD: Final = 1 << 40
"""Upper bound of groups or windows in any stage: numbers beyond it are damage, and would not fit into a row."""
_NO_SIBLING: Final = SiblingGroup(leased=False, closed=0, event=0, members=0, failed=0)
"""A further group neither leased nor closed so far."""


def leased(facts: Facts, evidence: Evidence, event: task.TaskLeased, _decoded: Decoded) -> None:
    """Notes a group leased as two rows, a row leased as two groups, and a window with two versions."""
    _given(facts, evidence, event.group, event.stage, event.sequence, event.row, event.epoch)
    evidence.leased_rows[event.stage] = max(event.row + 1, evidence.leased_rows.get(event.stage, 0))
    if 0 <= event.window < _ABSURD and event.stage >= 0:
        page, at = facts.windows.row(facts.space(evidence.index, event.stage), event.window)
        known_version = WINDOW.unpack_from(page, at)[0]
        version = min(max(event.min_version, -1), _ABSURD) + 2  # above 0, the mark of a window without a known group
        if known_version == 0:
            WINDOW.pack_into(page, at, version)
        elif known_version != version:
            evidence.windows.setdefault((event.stage, event.window), set()).update((known_version - 2, version - 2))


def eval_leased(_facts: Facts, evidence: Evidence, event: task.EvalLeased, _decoded: Decoded) -> None:
    """Stores the lease of an evaluation's rows, with the holder of the lease."""
    evaluation = evidence.evals.setdefault(event.eval, EvalEvidence())
    if evaluation is not None:
        evaluation.leases.add(holder_key(evidence, event.lease, source_of("explorer", event.worker)))


def retried(facts: Facts, evidence: Evidence, event: task.TaskRetried, _decoded: Decoded) -> None:
    """Notes a retry of a task without a group closed with failed rollouts before, or with another row."""
    closed, failed = _closed(facts, evidence, event.group, event.stage, event.sequence)
    if not closed:
        finding = f"group {event.group} was retried as {event.stage}.{event.sequence}, where it did not close"
        facts.note("retries-have-a-cause", evidence.id, finding)
    elif not failed:
        facts.note("retries-have-a-cause", evidence.id, f"group {event.group} was retried, and it did not fail")
    _given(facts, evidence, event.retry, event.stage, event.sequence, event.row, event.epoch)


def closed(facts: Facts, evidence: Evidence, event: task.GroupClosed, decoded: Decoded) -> None:
    """Notes a group closed twice, with a rollout counted twice, or with members differing from their experiences."""
    if not (0 <= event.sequence < _ABSURD and event.stage >= 0):
        facts.note("groups-close-once", evidence.id, f"group {event.group} has the sequence {event.sequence}")
        return
    closed_at = place_number(decoded.partition.number, decoded.offset)
    if not _close(facts, evidence, event, closed_at, low(decoded.head.id)):
        return
    evidence.groups_closed += 1
    if len({member.rollout for member in event.members}) != len(event.members):
        facts.note("groups-close-once", evidence.id, f"group {event.group} counts a rollout twice")
    group = mixed(event.group)
    for index, member in enumerate(event.members):
        _member(facts, evidence, event, group, index, member, closed_at)


def offered(_facts: Facts, evidence: Evidence, event: task.TasksOffered, _decoded: Decoded) -> None:
    """Stores the number of rows promised to clients of a serving stage."""
    task.note_offer(evidence.offers, event)


def queued(_facts: Facts, evidence: Evidence, event: task.TasksAdded | task.TasksEnded, decoded: Decoded) -> None:
    """Counts the tasks of a queue; the end of the queue shortens the stage."""
    if evidence.spec is not None and not evidence.ended:
        planned = max((*evidence.recent_plans, *evidence.reached.values()), default=0)
        evidence.spec = evidence.queues.take(event, decoded.offset, evidence.spec, planned, evidence.stages)


def drawn(_facts: Facts, evidence: Evidence, event: task.TasksDrawn, _decoded: Decoded) -> None:
    """Stores the rows drawn by a selector, for comparison with later leases."""
    evidence.draws.setdefault((event.stage, event.taskset), Draws()).add(event)


def overdue(_facts: Facts, evidence: Evidence, event: weights.WeightsOverdue, _decoded: Decoded) -> None:
    """Stores a window allowed to run on other weights than its first groups."""
    evidence.overdue.add((event.stage, event.window))


def _given(facts: Facts, evidence: Evidence, group: UUID, stage: int, sequence: int, row: int, epoch: int) -> None:
    """Stores the row and epoch given to a group of a sequence, and notes a contradiction to an earlier lease."""
    if not (0 <= sequence < _ABSURD and stage >= 0 and -_ABSURD < row < _ABSURD and -_ABSURD < epoch < _ABSURD):
        facts.note("no-task-skipped", evidence.id, f"stage {stage}: group {sequence} is row {row} of epoch {epoch}")
        return
    evidence.group_stages.add(stage)
    page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
    first, old_row, old_epoch, *fate, flags, row_known = GROUP.unpack_from(page, at)
    id = mixed(group)
    # A sequence has one group, except for a task retried on request: the row of the table keeps the first group.
    if first not in (0, id):
        siblings = evidence.siblings.setdefault((stage, sequence), {})
        siblings[id] = siblings.get(id, _NO_SIBLING)._replace(leased=True)
    else:
        first = id
        flags |= LEASED
    if row_known and (old_row, old_epoch) != (row, epoch):
        finding = f"stage {stage}: group {sequence} was leased as different rows {[(old_row, old_epoch), (row, epoch)]}"
        facts.note("no-task-skipped", evidence.id, finding)
    if not row_known and not facts.rows.add((evidence.index, stage, epoch), row):
        finding = f"stage {stage}: row {row} of epoch {epoch} is group {sequence} and another one before"
        facts.note("no-task-skipped", evidence.id, finding)
    GROUP.pack_into(page, at, first, row, epoch, *fate, flags, 1)


def _close(facts: Facts, evidence: Evidence, event: task.GroupClosed, closed_at: int, event_id: int) -> bool:
    """Stores a group's close. Returns False for a group already closed, and notes a close by another event."""
    evidence.group_stages.add(event.stage)
    page, at = facts.groups.row(facts.space(evidence.index, event.stage), event.sequence)
    first, row, epoch, _, known_id, retired_at, used, _, _, flags, row_known = GROUP.unpack_from(page, at)
    id = mixed(event.group)
    failed = min(max(event.failed, 0), 1 << 30)
    if first in (0, id):
        if not flags & CLOSED:
            flags |= CLOSED
            fields = (row, epoch, closed_at, event_id, retired_at, used, len(event.members), failed, flags, row_known)
            GROUP.pack_into(page, at, id, *fields)
            return True
    else:
        siblings = evidence.siblings.setdefault((event.stage, event.sequence), {})
        sibling = siblings.get(id, _NO_SIBLING)
        if not sibling.closed:
            siblings[id] = SiblingGroup(sibling.leased, closed_at, event_id, len(event.members), failed)
            return True
        known_id = sibling.event
    if known_id != event_id:
        facts.note("groups-close-once", evidence.id, f"group {event.group} closed twice")
    return False


def _closed(facts: Facts, evidence: Evidence, group: UUID, stage: int, sequence: int) -> tuple[int, int]:
    """Returns the position of a group's close as a number, and the number of failed rollouts; 0, 0 for a group not
    closed in this sequence.
    """
    if not (0 <= sequence < _ABSURD and stage >= 0):
        return 0, 0
    page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
    first, _, _, closed_at, _, _, _, _, failed, flags, _ = GROUP.unpack_from(page, at)
    if first == mixed(group):
        return (closed_at, failed) if flags & CLOSED else (0, 0)
    sibling = evidence.siblings.get((stage, sequence), {}).get(mixed(group), _NO_SIBLING)
    return sibling.closed, sibling.failed


def _member(
    facts: Facts,
    evidence: Evidence,
    event: task.GroupClosed,
    group: int,
    index: int,
    member: task.Member,
    closed_at: int,
) -> None:
    """Compares one member of a closed group with its experience, and stores the experience's fate."""
    where = f"{member.partition}@{member.offset}"
    if not facts.holds_experience(member.partition, member.offset):
        finding = f"group {event.group}: experience {member.experience} is not in the log at {where}"
        facts.note("groups-close-once", evidence.id, finding)
        return
    page, at = facts.produced.row(member.partition, member.offset)
    stated_fields = (
        low(member.experience),
        group,
        member.reward,
        member.priority,
        member.tokens,
        member.oldest_version,
        member.newest_version,
        member.rollout,
    )
    try:
        stated = ORIGIN.pack(*stated_fields)
    except struct.error:
        stated = b""
    # Bytes against bytes: a float rounded on its way is a difference too, and this runs for each member.
    stored = page[at : at + FATE_AT]
    number, flags, *_ = FATE.unpack_from(page, at + FATE_AT)
    if not flags or number != evidence.index or stored[:8] != stated[:8]:
        finding = f"group {event.group}: experience {member.experience} is not in the log at {where}"
        facts.note("groups-close-once", evidence.id, finding)
        return
    if stored != stated:
        names = ("id", "group", "reward", "priority", "tokens", "oldest version", "newest version", "rollout")
        stored_fields = ORIGIN.unpack(stored)
        differs = (
            f"{name} {stated_field!r} instead of {stored_field!r}"
            for name, stated_field, stored_field in zip(names, stated_fields, stored_fields, strict=True)
            if stated_field != stored_field
        )
        finding = f"group {event.group} says of the experience at {where}: {', '.join(differs)}"
        facts.note("members-are-their-experiences", evidence.id, finding)
    FATE.pack_into(
        page, at + FATE_AT, number, flags | MEMBER, index, min(event.stage, 1 << 31), event.sequence, closed_at, 0, 0, 0
    )


HANDLERS: Final[dict[type, Any]] = {
    task.TasksOffered: offered,
    task.TasksAdded: queued,
    task.TasksEnded: queued,
    task.TasksDrawn: drawn,
    task.TaskLeased: leased,
    task.EvalLeased: eval_leased,
    task.TaskRetried: retried,
    task.GroupClosed: closed,
    weights.WeightsOverdue: overdue,
}
"""The function called with each record, by type of event."""
