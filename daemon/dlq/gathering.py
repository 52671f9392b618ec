"""Pointers, verdicts and failed tasks as dead letters; and which of them somebody means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from rftd.daemon.dlq.letter import Dead, DeadLetter, DeadLetterList, State
from rftd.daemon.supervisor.registry import Entry
from rftd.ops.errors import NotFoundError, UsageError
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.letters import Letters, Place

FORMS = "an ID of rftd dlq ls, NAME/task/STAGE.SEQUENCE, or 8 or more hex digits of a group's id"
_SHORTEST = 8


def gathered(letters: Letters, tasks: Iterable[FailedTask], entries: Mapping[UUID, Entry]) -> list[Dead]:
    """Every dead letter, newest first."""
    found = [*_records(letters), *_tasks(letters, tasks, entries)]
    return sorted(found, key=lambda dead: (dead.letter.found_ns, dead.place), reverse=True)


def listed(dead: list[Dead], *, everything: bool, experiment: UUID | None, limit: int, offset: int) -> DeadLetterList:
    """A page of them: those that are open, or all; of one experiment its tasks."""
    items = [
        each.letter
        for each in dead
        if (everything or each.letter.state is State.OPEN)
        and (experiment is None or each.letter.experiment == str(experiment))
    ]
    return DeadLetterList(
        items=items[offset : offset + limit],
        open=sum(each.letter.state is State.OPEN for each in dead),
        next=offset + limit if len(items) > offset + limit else None,
    )


def meant(dead: list[Dead], wanted: str) -> Dead:
    """The letter that `wanted` names; of a task that failed again after a retry the newest. Raises NotFoundError,
    UsageError.
    """
    for each in dead:
        if wanted in (each.letter.id, each.letter.task):
            return each
    prefix = wanted.replace("-", "").lower()
    found = [each for each in dead if each.task is not None and each.task.group.hex.startswith(prefix)]
    if len(prefix) < _SHORTEST or not found:
        raise NotFoundError(f"no dead letter {wanted[:80]!r}", fix=f"give {FORMS}; see rftd dlq ls --all")
    if len(found) > 1:
        raise UsageError(f"{wanted!r} names {len(found)} dead letters", fix="give more digits")
    return found[0]


def _records(letters: Letters) -> Iterator[Dead]:
    for place, pointer in letters.letters.items():
        if place.offset < 0:  # of another log, from which an experiment was imported without it
            continue
        state, by, verdict, decided_ns = _verdict(letters, pointer.place)
        yield Dead(
            letter=DeadLetter(
                id=str(place),
                kind="record",
                state=state,
                experiment=None,
                task=None,
                group=None,
                attempts=0,
                code=pointer.code,
                reason=pointer.reason,
                found_ns=pointer.reported_ns,
                by=by,
                verdict=verdict,
                decided_ns=decided_ns,
            ),
            place=place,
            pointer=pointer,
        )


def _tasks(letters: Letters, tasks: Iterable[FailedTask], entries: Mapping[UUID, Entry]) -> Iterator[Dead]:
    for task in tasks:
        entry = entries.get(task.experiment)
        if entry is None or task.members >= _members_needed(entry, task):
            continue
        state, by, verdict, decided_ns = _verdict(letters, task.place)
        yield Dead(
            letter=DeadLetter(
                id=str(task.place),
                kind="task",
                state=state,
                experiment=str(task.experiment),
                task=f"{entry.name}/task/{task.stage}.{task.sequence}",
                group=str(task.group),
                attempts=len(task.tries),
                code=task.code,
                reason=task.reason,
                found_ns=task.closed_ns,
                by=by,
                verdict=verdict,
                decided_ns=decided_ns,
            ),
            place=task.place,
            task=task,
        )


def _members_needed(entry: Entry, task: FailedTask) -> int:
    """With fewer nothing of the group is trained."""
    stages = entry.spine.spec.stages if entry.spine.spec is not None else ()
    if not 0 <= task.stage < len(stages):
        return 0
    stage = stages[task.stage]
    return min(stage.policy.min_group_members, stage.algorithm.repeat_times)


def _verdict(letters: Letters, place: Place) -> tuple[State, str, str, int | None]:
    verdict = letters.verdicts.get(place)
    if verdict is None:
        return State.OPEN, "", "", None
    state = State.RETRIED if verdict.retried else State.DROPPED
    return state, verdict.by, verdict.reason, verdict.decided_ns
