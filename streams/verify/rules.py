"""Rules that can be judged only after all records of an experiment were read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import SELECTORS, is_queue, task_place, tasksets_of, turn_of
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import CLOSED, GROUPS, LEASED, STEPS, Facts, rows_of

_NAMED: Final = 10
"""Maximum number of examples in one finding."""


def groups_were_leased(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields groups closed and never leased."""
    for stage in sorted(evidence.group_stages):
        for first, page in facts.groups.pages_of(facts.space(evidence.index, stage)):
            flags = rows_of(page, GROUPS)["flags"]
            for at in np.flatnonzero((flags & (LEASED | CLOSED)) == CLOSED):
                yield f"stage {stage}: group {first + int(at)} closed and was never leased"
    for (stage, sequence), siblings in evidence.siblings.items():
        if any(sibling.closed and not sibling.leased for sibling in siblings.values()):
            yield f"stage {stage}: another group {sequence} closed and was never leased"


def no_task_is_skipped(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields gaps in the sequences of a stage's groups, and groups leased again by a fork though settled in the shared
    history.
    """
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
        # A group to be leased again by a fork is missing only once a later one was leased.
        if forked:
            lost = sorted(number for number in redo if last >= forked.next_sequence or number <= last)
            skipped += len(lost)
            missing = [*lost[:_NAMED], *missing]
        if again:
            yield f"stage {stage}: groups {again[:_NAMED]} were settled in the shared history"
        if skipped:
            yield f"stage {stage}: groups {missing[:_NAMED]} were skipped"


def windows_keep_their_weights(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields windows whose groups began on several weight versions without a weights.overdue as the reason."""
    for (stage, window), versions in evidence.windows.items():
        if (stage, window) not in evidence.overdue:
            yield f"stage {stage}: window {window} was leased with weight versions {sorted(versions)}"


def rows_come_in_order(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields epochs of a dataset left out, or with another number of rows than the first epoch, before a later one
    began.
    """
    for (stage, _), epochs in evidence.row_stages.items():
        numbers = sorted(epoch for epoch, rows in epochs.items() if rows)
        for number, epoch in enumerate(numbers[:-1]):
            if epoch != number:
                yield f"stage {stage}: epoch {number} was left out"
                break
            if epochs[epoch] != epochs[numbers[0]]:
                yield f"stage {stage}: epoch {epoch} has {epochs[epoch]} rows, epoch 0 has {epochs[numbers[0]]}"


def completed_is_complete(facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields steps not trained or saved, tasks not tried, and open groups of an experiment recorded as completed."""
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
    for (stage_number, sequence), siblings in evidence.siblings.items():
        if any(sibling.leased and not sibling.closed for sibling in siblings.values()):
            yield f"stage {stage_number}: another group {sequence} never closed"


def evals_were_completed(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields evaluations begun and not completed by a completed experiment."""
    if evidence.state == "completed":
        for id, evaluation in evidence.evals.items():
            if evaluation is not None and evaluation.leases:
                rows = sum(scores.rows for scores in evaluation.ranges())
                yield f"evaluation {id} was begun, {rows} of its rows were scored, and it was never completed"


def fences_have_an_owner(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields trainers that never joined as workers, and planners and dispatchers that never were the controller."""
    for owner, where in evidence.trainer_fences:
        if owner not in evidence.workers:
            yield f"the fence at {where} makes {owner} the trainer, and no such worker joined"
    first = evidence.fence_owners.get("controller", set())
    for role in ("planner", "dispatcher"):
        for owner in sorted(evidence.fence_owners.get(role, set()) - first):
            yield f"a fence makes {owner} the {role}, and it never was the controller"


def due_checkpoints_were_committed(_facts: Facts, evidence: Evidence) -> Iterator[str]:
    """Yields steps followed by others although their due checkpoint was never committed."""
    for step in sorted(evidence.unsaved):
        yield f"step {step} was due to be saved and others followed it, and no checkpoint of it was committed"


def weights_were_activated(facts: Facts, evidences: list[Evidence]) -> None:
    """Reports versions from which a worker sampled tokens and which the worker never reported as loaded, although it
    reported a later one.
    """
    # A version above the newest announced one is skipped: a killed worker may have had no time for its report.
    for key, version in facts.drawn.numbers():
        if version < facts.newest_activated.get(key, -1) and not facts.activated.has(key, version):
            assert isinstance(key, tuple)
            index, worker = key
            spec = evidences[index].spec
            # Answers to clients are kept beside the log. The explorer bringing an answer into the log may be another
            # than the author, and the author may have died before a report.
            if spec is not None and any(stage.serving is not None for stage in spec.stages):
                continue
            finding = f"{worker} drew tokens from version {version}, and never reported loading it"
            facts.note("announcements-have-a-step", evidences[index].id, finding)


def _not_executed(facts: Facts, evidence: Evidence, total: int) -> list[int]:
    """Returns the first few steps without an execution, from the first one not shared with a parent up to `total`."""
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
    """Yields leases of tasks never added, and added tasks never tried by a completed experiment within its steps."""
    for index, stage in enumerate(evidence.spec.stages if evidence.spec is not None else ()):
        if not is_queue(stage):
            continue
        queue = evidence.queues.of(index)
        tried = evidence.leased_rows.get(index, 0)
        if tried > queue.rows:
            yield f"stage {stage.name}: task {tried - 1} was leased, and {queue.rows} were added"
        # The step configured as the last may end a stage before them.
        tasks = stage.collect_groups if stage.kind == "explore" else _tasks_of_steps(stage)
        if evidence.state == "completed" and tried < (due := min(queue.rows, tasks)):
            yield f"stage {stage.name}: tasks {tried} to {due - 1} were added and never tried"


def _tasks_of_steps(stage: StageSpec) -> int:
    """Returns the minimum number of tasks with experiences filling all steps of a stage."""
    uses = stage.algorithm.repeat_times * stage.policy.max_uses
    if not uses:  # an experience may be used without limit
        return 0
    return -(-stage.total_steps * stage.experiences_per_step // uses)


def _not_tried(facts: Facts, evidence: Evidence, stage: int, groups: int) -> list[int]:
    """Returns the first few of the stage's sequences below `groups` without a closed group."""
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
    """Yields groups leased with another row than the drawn row, for tasksets with drawn rows."""
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
                task = task_place(stages[number], int(groups["row"][at]))
                if task != (turn.dataset, expected):
                    drawn = "no row" if expected is None else f"row {expected}"
                    name = tasksets[turn.dataset].name
                    yield f"stage {number}: group {first + int(at)} is row {task.row}, and {drawn} of {name} was drawn"


Judge = Callable[[Facts, Evidence], Iterator[str]]
"""A function yielding the findings of one rule about one experiment."""

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
"""Each rule with its judge."""
