"""The decisions of the dispatcher: groups, their rows, and how each closed."""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

from rftd.streams.events import task, weights
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import source_of
from rftd.streams.verify.answers import holder_key
from rftd.streams.verify.evidence import Draws, EvalEvidence, Evidence, Other
from rftd.streams.verify.facts import (
    CLOSED,
    FATE,
    FATE_AT,
    GROUP,
    LEASED,
    MEMBER,
    ORIGIN,
    WINDOW,
    Facts,
    place_number,
)
from rftd.streams.verify.identities import low, mixed

_ABSURD: Final = 1 << 40
"""More groups or windows than any stage has: numbers beyond it are damage, and would not fit into a row."""
_NO_OTHER: Final = Other(leased=False, closed=0, event=0, members=0, failed=0)


def leased(facts: Facts, evidence: Evidence, event: task.TaskLeased, _decoded: Decoded) -> None:
    """A group is one row in one epoch, and its window has one version."""
    _given(facts, evidence, event.group, event.stage, event.sequence, event.row, event.epoch)
    evidence.leased_rows[event.stage] = max(event.row + 1, evidence.leased_rows.get(event.stage, 0))
    if 0 <= event.window < _ABSURD and event.stage >= 0:
        page, at = facts.windows.row(facts.space(evidence.index, event.stage), event.window)
        known = WINDOW.unpack_from(page, at)[0]
        version = min(max(event.min_version, -1), _ABSURD) + 2  # above 0, which says that no group is known
        if known == 0:
            WINDOW.pack_into(page, at, version)
        elif known != version:
            evidence.windows.setdefault((event.stage, event.window), set()).update((known - 2, version - 2))


def eval_leased(_facts: Facts, evidence: Evidence, event: task.EvalLeased, _decoded: Decoded) -> None:
    """Keeps an evaluation that was begun."""
    evaluation = evidence.evals.setdefault(event.eval, EvalEvidence())
    if evaluation is not None:
        evaluation.leases.add(holder_key(evidence, event.lease, source_of("explorer", event.worker)))


def retried(facts: Facts, evidence: Evidence, event: task.TaskRetried, _decoded: Decoded) -> None:
    """A task is given out once more only after its group closed with failed rollouts, and as the same row."""
    closed, failed = _closed(facts, evidence, event.group, event.stage, event.sequence)
    if not closed:
        what = f"group {event.group} was retried as {event.stage}.{event.sequence}, where it did not close"
        facts.note("retries-have-a-cause", evidence.id, what)
    elif not failed:
        facts.note("retries-have-a-cause", evidence.id, f"group {event.group} was retried, and it did not fail")
    _given(facts, evidence, event.retry, event.stage, event.sequence, event.row, event.epoch)


def closed(facts: Facts, evidence: Evidence, event: task.GroupClosed, decoded: Decoded) -> None:
    """A group closes once, over distinct rollouts whose experiences lie where it says and are as it says."""
    if not (0 <= event.sequence < _ABSURD and event.stage >= 0):
        facts.note("groups-close-once", evidence.id, f"group {event.group} has the sequence {event.sequence}")
        return
    place = place_number(decoded.partition.number, decoded.offset)
    if not _close(facts, evidence, event, place, low(decoded.head.id)):
        return
    evidence.groups_closed += 1
    if len({member.rollout for member in event.members}) != len(event.members):
        facts.note("groups-close-once", evidence.id, f"group {event.group} counts a rollout twice")
    group = mixed(event.group)
    for index, member in enumerate(event.members):
        _member(facts, evidence, event, group, index, member, place)


def offered(_facts: Facts, evidence: Evidence, event: task.TasksOffered, _decoded: Decoded) -> None:
    """Keeps what clients of a served stage were promised."""
    task.note_offer(evidence.offers, event)


def queued(_facts: Facts, evidence: Evidence, event: task.TasksAdded | task.TasksEnded, decoded: Decoded) -> None:
    """Counts the tasks of a queue; its end makes its stage shorter."""
    if evidence.spec is not None and not evidence.ended:
        planned = max((*evidence.recent_plans, *evidence.reached.values()), default=0)
        evidence.spec = evidence.queues.take(event, decoded.offset, evidence.spec, planned, evidence.stages)


def drawn(_facts: Facts, evidence: Evidence, event: task.TasksDrawn, _decoded: Decoded) -> None:
    """Keeps the rows that a selector drew."""
    evidence.draws.setdefault((event.stage, event.taskset), Draws()).add(event)


def overdue(_facts: Facts, evidence: Evidence, event: weights.WeightsOverdue, _decoded: Decoded) -> None:
    """Keeps a window that may run on other weights than its first groups did."""
    evidence.overdue.add((event.stage, event.window))


def _given(facts: Facts, evidence: Evidence, group: UUID, stage: int, sequence: int, row: int, epoch: int) -> None:
    if not (0 <= sequence < _ABSURD and stage >= 0 and -_ABSURD < row < _ABSURD and -_ABSURD < epoch < _ABSURD):
        facts.note("no-task-skipped", evidence.id, f"stage {stage}: group {sequence} is row {row} of epoch {epoch}")
        return
    evidence.group_stages.add(stage)
    page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
    first, its_row, its_epoch, *fate, flags, given = GROUP.unpack_from(page, at)
    id = mixed(group)
    # A sequence has one group, but for a task that was given out once more: its row keeps the first of them.
    if first not in (0, id):
        others = evidence.others.setdefault((stage, sequence), {})
        others[id] = others.get(id, _NO_OTHER)._replace(leased=True)
    else:
        first = id
        flags |= LEASED
    if given and (its_row, its_epoch) != (row, epoch):
        what = f"stage {stage}: group {sequence} was leased as different rows {[(its_row, its_epoch), (row, epoch)]}"
        facts.note("no-task-skipped", evidence.id, what)
    if not given and not facts.rows.add((evidence.index, stage, epoch), row):
        what = f"stage {stage}: row {row} of epoch {epoch} is group {sequence} and another one before"
        facts.note("no-task-skipped", evidence.id, what)
    GROUP.pack_into(page, at, first, row, epoch, *fate, flags, 1)


def _close(facts: Facts, evidence: Evidence, event: task.GroupClosed, place: int, event_id: int) -> bool:
    """Takes in a group's close. Returns False if it had closed before."""
    evidence.group_stages.add(event.stage)
    page, at = facts.groups.row(facts.space(evidence.index, event.stage), event.sequence)
    first, row, epoch, _, known_id, retired_at, used, _, _, flags, given = GROUP.unpack_from(page, at)
    id = mixed(event.group)
    failed = min(max(event.failed, 0), 1 << 30)
    if first in (0, id):
        if not flags & CLOSED:
            flags |= CLOSED
            values = (row, epoch, place, event_id, retired_at, used, len(event.members), failed, flags, given)
            GROUP.pack_into(page, at, id, *values)
            return True
    else:
        others = evidence.others.setdefault((event.stage, event.sequence), {})
        other = others.get(id, _NO_OTHER)
        if not other.closed:
            others[id] = Other(other.leased, place, event_id, len(event.members), failed)
            return True
        known_id = other.event
    if known_id != event_id:
        facts.note("groups-close-once", evidence.id, f"group {event.group} closed twice")
    return False


def _closed(facts: Facts, evidence: Evidence, group: UUID, stage: int, sequence: int) -> tuple[int, int]:
    """The place of a group's close, as a number, and its failed rollouts; 0, 0 if it did not close in this sequence."""
    if not (0 <= sequence < _ABSURD and stage >= 0):
        return 0, 0
    page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
    first, _, _, place, _, _, _, _, failed, flags, _ = GROUP.unpack_from(page, at)
    if first == mixed(group):
        return (place, failed) if flags & CLOSED else (0, 0)
    other = evidence.others.get((stage, sequence), {}).get(mixed(group), _NO_OTHER)
    return other.closed, other.failed


def _member(
    facts: Facts, evidence: Evidence, event: task.GroupClosed, group: int, index: int, member: task.Member, place: int
) -> None:
    where = f"{member.partition}@{member.offset}"
    if not facts.holds_experience(member.partition, member.offset):
        what = f"group {event.group}: experience {member.experience} is not in the log at {where}"
        facts.note("groups-close-once", evidence.id, what)
        return
    page, at = facts.produced.row(member.partition, member.offset)
    values = (
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
        said = ORIGIN.pack(*values)
    except struct.error:
        said = b""
    # Bytes against bytes: a float that was rounded on its way is a difference too, and this runs for each member.
    was = page[at : at + FATE_AT]
    number, flags, *_ = FATE.unpack_from(page, at + FATE_AT)
    if not flags or number != evidence.index or was[:8] != said[:8]:
        what = f"group {event.group}: experience {member.experience} is not in the log at {where}"
        facts.note("groups-close-once", evidence.id, what)
        return
    if was != said:
        names = ("id", "group", "reward", "priority", "tokens", "oldest version", "newest version", "rollout")
        truth = ORIGIN.unpack(was)
        differs = (
            f"{name} {mine!r} instead of {its!r}"
            for name, mine, its in zip(names, values, truth, strict=True)
            if mine != its
        )
        what = f"group {event.group} says of the experience at {where}: {', '.join(differs)}"
        facts.note("members-are-their-experiences", evidence.id, what)
    FATE.pack_into(
        page, at + FATE_AT, number, flags | MEMBER, index, min(event.stage, 1 << 31), event.sequence, place, 0, 0, 0
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
