"""The promises that can be judged only once everything of an experiment was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from rftd.streams.spec.row_order import SELECTORS
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import is_queue, task_place, tasksets_of, turn_of
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import CLOSED, GROUPS, LEASED, STEPS, Facts, rows_of

_NAMED: Final = 10
"""The numbers that a finding names of many."""


def groups_were_leased(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Rule 5: a group that closed was leased before."""
    for stage in sorted(evidence.group_stages):
        for first, page in facts.groups.pages_of(facts.space(evidence.index, stage)):
            flags = rows_of(page, GROUPS)["flags"]
            for at in np.flatnonzero((flags & (LEASED | CLOSED)) == CLOSED):
                yield f"stage {stage}: group {first + int(at)} closed and was never leased"
    for (stage, sequence), others in evidence.others.items():
        if any(other.closed and not other.leased for other in others.values()):
            yield f"stage {stage}: another group {sequence} closed and was never leased"


def no_task_is_skipped(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """The groups of a stage are numbered without gap."""
    for stage in sorted(evidence.group_stages):
        forked = evidence.forked if evidence.forked and evidence.forked.stage == stage else None
        expected = forked.next_sequence if forked else 0
        last = -1
        redo = set(forked.redo) if forked else set()
        missing: list[int] = []
        again: list[int] = []
        skipped = 0
        for first, page in facts.groups.pages_of(facts.space(evidence.index, stage)):
            for at in np.flatnonzero(rows_of(page, GROUPS)["given"]):
                last = sequence = first + int(at)
                if forked and sequence < forked.next_sequence:
                    if sequence not in redo:
                        again.append(sequence)
                    redo.discard(sequence)
                elif sequence > expected:
                    skipped += sequence - expected
                    missing += range(expected, min(sequence, expected + _NAMED - len(missing)))
                expected = max(expected, sequence + 1)
        # A group that a fork is to give out again is missing only once a later one was given out.
        if forked:
            lost = sorted(each for each in redo if last >= forked.next_sequence or each <= last)
            skipped += len(lost)
            missing = [*lost[:_NAMED], *missing]
        if again:
            yield f"stage {stage}: groups {again[:_NAMED]} were settled in the history that it shares"
        if skipped:
            yield f"stage {stage}: groups {missing[:_NAMED]} were skipped"


def windows_keep_their_weights(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """All groups between two sync points were to begin on one weight version, unless theirs came too late."""
    for (stage, window), versions in evidence.windows.items():
        if (stage, window) not in evidence.overdue:
            yield f"stage {stage}: window {window} was given out on weight versions {sorted(versions)}"


def rows_come_in_order(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """An epoch of a dataset begins when the one before is complete."""
    for (stage, _), epochs in evidence.row_stages.items():
        numbers = sorted(epoch for epoch, rows in epochs.items() if rows)
        for number, epoch in enumerate(numbers[:-1]):
            if epoch != number:
                yield f"stage {stage}: epoch {number} was left out"
                break
            if epochs[epoch] != epochs[numbers[0]]:
                yield f"stage {stage}: epoch {epoch} has {epochs[epoch]} rows, epoch 0 has {epochs[numbers[0]]}"


def completed_is_complete(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """A completed experiment executed and saved every step, tried what it collects, and left nothing open."""
    if evidence.state != "completed" or evidence.spec is None:
        return
    total = sum(stage.total_steps for stage in evidence.spec.stages)
    if missing := _not_executed(facts, evidence, total):
        yield f"steps {missing[:_NAMED]} of {total} were never executed"
    if total > evidence.shared and evidence.saved_step < total:
        yield f"no checkpoint of its last step, {total}, was committed: the last one is of step {evidence.saved_step}"
    for number, stage in enumerate(evidence.spec.stages):
        if stage.kind == "explore" and (missing := _not_tried(facts, evidence, number, stage.collect_groups)):
            yield f"tasks {missing[:_NAMED]} of {stage.collect_groups} of stage {stage.name} were never tried"
    for stage_number in sorted(evidence.group_stages):
        space = facts.space(evidence.index, stage_number)
        for first, page in facts.groups.pages_of(space):
            flags = rows_of(page, GROUPS)["flags"]
            for at in np.flatnonzero((flags & (LEASED | CLOSED)) == LEASED):
                yield f"stage {stage_number}: group {first + int(at)} never closed"
    for (stage_number, sequence), others in evidence.others.items():
        if any(other.leased and not other.closed for other in others.values()):
            yield f"stage {stage_number}: another group {sequence} never closed"


def evals_were_completed(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """A completed experiment has completed every evaluation that it began."""
    if evidence.state == "completed":
        for id, evaluation in evidence.evals.items():
            if evaluation is not None and evaluation.leases:
                rows = sum(scores.rows for scores in evaluation.ranges())
                yield f"evaluation {id} was begun, {rows} of its rows were scored, and it was never completed"


def fences_have_an_owner(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """The owner of a role is a worker that joined, or a daemon that became the controller first."""
    for owner, where in evidence.trainer_fences:
        if owner not in evidence.workers:
            yield f"the fence at {where} makes {owner} the trainer, and no such worker joined"
    first = evidence.fence_owners.get("controller", set())
    for role in ("planner", "dispatcher"):
        for owner in sorted(evidence.fence_owners.get(role, set()) - first):
            yield f"a fence makes {owner} the {role}, and it never was the controller"


def due_checkpoints_were_committed(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """A trainer goes on after a step that is to be saved once its checkpoint is committed."""
    for step in sorted(evidence.unsaved):
        yield f"step {step} was to be saved and others followed it, and no checkpoint of it was committed"


def weights_were_activated(facts: Facts, evidences: list[Evidence]) -> None:
    """A worker had said that it loaded each version that it drew tokens from, before what it loaded later."""
    # A version above the newest announced one is passed over: a worker that was killed may have had no time to say so.
    for key, version in facts.drawn.numbers():
        if version < facts.newest_activated.get(key, -1) and not facts.activated.has(key, version):
            assert isinstance(key, tuple)
            index, worker = key
            spec = evidences[index].spec
            # What clients were answered is kept beside the log. Who brings it into the log need not be who drew it, and
            # that one may have died before it could say what it had loaded.
            if spec is not None and any(stage.serving is not None for stage in spec.stages):
                continue
            what = f"{worker} drew tokens from version {version}, and never said that it had loaded it"
            facts.note("announcements-have-a-step", evidences[index].id, what)


def _not_executed(facts: Facts, evidence: Evidence, total: int) -> list[int]:
    executed = 0
    expected = evidence.shared + 1
    missing: list[int] = []
    for first, page in facts.steps.pages_of(evidence.index):
        for at in np.flatnonzero(rows_of(page, STEPS)["executed"]):
            step = first + int(at)
            if expected <= step <= total:
                missing += range(expected, min(step, expected + _NAMED - len(missing)))
                expected = step + 1
                executed += 1
    return [*missing, *range(expected, min(total + 1, expected + _NAMED))] if executed < total - evidence.shared else []


def added_tasks_are_tried(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Leases are of tasks that were added; a completed experiment has tried each, but beyond its last step."""
    for index, stage in enumerate(evidence.spec.stages if evidence.spec is not None else ()):
        if not is_queue(stage):
            continue
        queue = evidence.queues.of(index)
        tried = evidence.leased_rows.get(index, 0)
        if tried > queue.rows:
            yield f"stage {stage.name}: task {tried - 1} was leased, and {queue.rows} were added"
        # The step that was configured as the last may end a stage before them.
        tasks = stage.collect_groups if stage.kind == "explore" else _tasks_of_steps(stage)
        if evidence.state == "completed" and tried < (due := min(queue.rows, tasks)):
            yield f"stage {stage.name}: tasks {tried} to {due - 1} were added and never tried"


def _tasks_of_steps(stage: StageSpec) -> int:
    """The least number of tasks whose experiences fill all steps of a stage."""
    uses = stage.algorithm.repeat_times * stage.policy.max_uses
    if not uses:  # an experience may be used without end
        return 0
    return -(-stage.total_steps * stage.experiences_per_step // uses)


def _not_tried(facts: Facts, evidence: Evidence, stage: int, groups: int) -> list[int]:
    expected = 0
    missing: list[int] = []
    for first, page in facts.groups.pages_of(facts.space(evidence.index, stage)):
        for at in np.flatnonzero(rows_of(page, GROUPS)["flags"] & CLOSED):
            sequence = first + int(at)
            if sequence < groups:
                missing += range(expected, min(sequence, expected + max(0, _NAMED - len(missing))))
                expected = sequence + 1
    return [*missing, *range(expected, min(groups, expected + _NAMED))]


def drawn_rows_are_leased(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """A group of a taskset whose rows are drawn is of the row that was drawn for its place."""
    stages = evidence.spec.stages if evidence.spec is not None else ()
    for number in sorted(evidence.group_stages):
        tasksets = tasksets_of(stages[number]) if number < len(stages) else ()
        if all(taskset.selector in SELECTORS for taskset in tasksets):
            continue
        for first, page in facts.groups.pages_of(facts.space(evidence.index, number)):
            groups = rows_of(page, GROUPS)
            for at in np.flatnonzero(groups["given"]):
                turn = turn_of(stages[number], first + int(at))
                if tasksets[turn.dataset].selector in SELECTORS:
                    continue
                draws = evidence.draws.get((number, turn.dataset))
                expected = draws.row_at(turn.place) if draws is not None else None
                place = task_place(stages[number], int(groups["row"][at]))
                if place != (turn.dataset, expected):
                    drawn = "no row" if expected is None else f"row {expected}"
                    name = tasksets[turn.dataset].name
                    yield f"stage {number}: group {first + int(at)} is row {place.row}, and {drawn} of {name} was drawn"


Judge = Callable[[Facts, Evidence], Iterator[str]]

JUDGES: Final[tuple[tuple[str, Judge], ...]] = (
    ("groups-close-once", groups_were_leased),
    ("no-task-skipped", no_task_is_skipped),
    ("no-task-skipped", added_tasks_are_tried),
    ("no-task-skipped", drawn_rows_are_leased),
    ("windows-keep-weights", windows_keep_their_weights),
    ("rows-in-order", rows_come_in_order),
    ("announcements-have-a-step", due_checkpoints_were_committed),
    ("evals-are-their-scores", evals_were_completed),
    ("fences-come-first", fences_have_an_owner),
    ("completed-is-complete", completed_is_complete),
)
