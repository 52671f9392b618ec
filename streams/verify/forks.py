"""Check of a fork's beginning: it continues a step trained by its parent, with equal weights, stages and data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.log import topics
from rftd.streams.verify.evidence import Evidence, hashed
from rftd.streams.verify.facts import CLOSED, GROUPS, Facts, place_of, rows_of
from rftd.streams.verify.spine import add_row

RULE: Final = "forks-share-history"
"""The rule checked here, as named in findings."""
_GROUPS_MOST: Final = 1 << 31
"""Upper bound of the sequence at which a fork's data continues: a larger one is damage, and no array of that length is
made.
"""
PlanReader = Callable[[Evidence, int], Awaitable[BatchPlanned | None]]
"""An async function reading the plan of an experiment's step from the log; None for a step without a plan, or with an
abandoned one.
"""


async def share_rows(facts: Facts, evidence: Evidence, read: PlanReader) -> None:
    """Counts the dataset rows planned by the shared steps as planned by the fork, in the stages with rows planned by
    the fork.
    """
    row_stages = {stage for stage, _ in evidence.row_stages}
    if not row_stages or evidence.parent is None:
        return
    read_steps = 0
    for owner, until in evidence.parent.owners_of(evidence.shared):
        for step in range(read_steps + 1, min(until, owner.last_step) + 1):
            plan = await read(owner, step)
            if plan is not None and plan.stage in row_stages:
                for row in plan.rows:
                    add_row(facts, evidence, plan, row)
        read_steps = until


async def judge_fork(facts: Facts, evidence: Evidence, read: PlanReader) -> None:
    """Reports faults of a fork's beginning."""
    forked = evidence.forked
    parent = evidence.parent
    if forked is None:
        return

    def note(finding: str) -> None:
        facts.note(RULE, evidence.id, finding)

    if parent is None:
        note(f"it shares steps 1 to {forked.at_step} of experiment {forked.parent}, which is not in the log")
        return
    parent_checksums = parent.checksums_of(facts, forked.at_step)
    if forked.at_step == 0:  # no step made version 0: it was published as loaded
        parent_checksums = {hashed(checksum) for checksum in parent.base_checksums}
    if hashed(forked.checksum) not in parent_checksums:
        note(f"its parent has no step {forked.at_step} with checksum {forked.checksum}")
    if evidence.spec is not None and evidence.spec.deterministic:
        for event in evidence.generations:
            if event.checksum and event.checksum != forked.checksum:
                note(f"generation {event.generation} began with weights {event.checksum}, not with {forked.checksum}")
    inherited = enumerate(parent.forked.first_versions if parent.forked else (0,))
    starts = dict(inherited) | parent.stages
    if differs := [index for index, first in enumerate(forked.first_versions) if starts.get(index) != first]:
        note(f"stages {differs} began elsewhere in its parent's history")
    for finding in await _data_goes_on(facts, parent, forked, read):
        note(finding)


async def _data_goes_on(facts: Facts, parent: Evidence, forked: ExperimentForked, read: PlanReader) -> list[str]:
    """Returns the faults of a stage's groups: each must have ended before the step, be leased again, or come later."""
    if not 0 <= forked.next_sequence < _GROUPS_MOST:
        # Checked first, for an array of that length follows: one bit of damage must not request terabytes.
        return [f"its data continues at group {forked.next_sequence}"]
    # Several batches may hold experiences of one group: the first step using the group tells if the fork shares it.
    used = np.zeros(forked.next_sequence, dtype=bool)
    late: list[int] = []
    any_used = False
    for owner, until in parent.owners_of(forked.at_step):
        for first, page in facts.groups.pages_of(facts.space(owner.index, forked.stage)):
            steps = rows_of(page, GROUPS)["used_step"]
            sequences = first + np.flatnonzero((steps > 0) & (steps <= until))
            any_used = any_used or bool(len(sequences))
            used[sequences[sequences < forked.next_sequence]] = True
            late += (int(sequence) for sequence in sequences[sequences >= forked.next_sequence][:10])
    redo = np.array([sequence for sequence in forked.redo if 0 <= sequence < forked.next_sequence], dtype="i8")
    findings = []
    if twice := [int(sequence) for sequence in redo if used[sequence]]:
        findings.append(f"groups {sorted(twice)[:10]} are leased again, and shared batches contain them")
    if late:
        findings.append(
            f"groups {sorted(late)[:10]} come after {forked.next_sequence}, and shared batches contain them"
        )
    if any_used:
        over = used | await _settled(facts, parent, forked, read)
        over[redo] = True
        if len(lost := np.flatnonzero(~over)):
            findings.append(f"groups {lost[:10].tolist()} were never settled, and are not leased again")
    return findings


async def _settled(facts: Facts, parent: Evidence, forked: ExperimentForked, read: PlanReader) -> NDArray[Any]:
    """Returns a mask over the stage's sequences: groups over when the shared step's batch was planned, by members
    missing or retired, not by their use in batches.

    A closed group waiting whole was not over: only a missing or retired member proves an end.
    """
    settled = np.zeros(forked.next_sequence, dtype=bool)
    inherited = parent.forked if parent.forked is not None and parent.forked.stage == forked.stage else None
    if inherited is not None:
        settled[: min(inherited.next_sequence, forked.next_sequence)] = True
        for redrawn in inherited.redo:
            if 0 <= redrawn < forked.next_sequence:
                settled[redrawn] = False
    plan = await read(parent, forked.at_step)
    offset = parent.plan_place(facts, forked.at_step)
    if plan is None or offset is None:
        return settled
    ends = {head.partition: head.next_offset for head in plan.observed if head.stream == topics.TASKS}
    for first, page in facts.groups.pages_of(facts.space(parent.index, forked.stage)):
        rows = rows_of(page, GROUPS)
        for at in np.flatnonzero(rows["flags"] & CLOSED):
            partition_number, closed_offset = place_of(int(rows["closed"][at]))
            retired_at = int(rows["retired_at"][at])
            over = rows["members"][at] == 0 or 0 < retired_at <= offset
            if over and closed_offset < ends.get(partition_number, 0) and first + at < forked.next_sequence:
                settled[first + at] = True
    for (stage, sequence), siblings in parent.siblings.items():
        for sibling in siblings.values():
            partition_number, closed_offset = place_of(sibling.closed) if sibling.closed else (0, 0)
            if (
                stage == forked.stage
                and sibling.closed
                and not sibling.members
                and closed_offset < ends.get(partition_number, 0)
            ):
                settled[min(sequence, forked.next_sequence - 1)] |= sequence < forked.next_sequence
    return settled
