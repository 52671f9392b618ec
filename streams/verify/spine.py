"""The spine of an experiment in the order of its records: life, plans, steps, generations and retirements."""

from __future__ import annotations

from typing import Any, Final

from rftd.streams.events import batch, experiment, step, sweep
from rftd.streams.folds.scoreboard import stopped
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.spec.schedule import checkpoint_due
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import joined
from rftd.streams.verify.evidence import Evidence, hashed
from rftd.streams.verify.facts import (
    FATE,
    FATE_AT,
    GONE,
    GROUP,
    MEMBER,
    ORIGIN,
    PLANNED,
    RETIREMENT,
    STEP,
    Facts,
    place_number,
)
from rftd.streams.verify.identities import low
from rftd.streams.verify.report import accepted_losses

RECENT_PLANS: Final = 16
"""Number of plans remembered for later events of their steps."""
_ABSURD: Final = 1 << 40
"""Upper bound of steps and generations in any experiment."""


def planned(facts: Facts, evidence: Evidence, event: batch.BatchPlanned, decoded: Decoded) -> None:
    """Stores a plan and the uses of its experiences; notes a plan out of turn, experiences named wrongly, and rows
    planned twice in an epoch.
    """
    due = evidence.next_planned
    if event.step != due:  # void in every fold
        if not facts.chained and _has_plan(facts, evidence, event):
            return  # a repetition, long after the first time
        finding = f"batch {event.batch} at {decoded.partition}@{decoded.offset} is a plan of step {event.step}"
        facts.note("trained-once", evidence.id, f"{finding}, while the next one to plan was step {due}")
        evidence.void += 1
        return
    page, at = facts.steps.row(evidence.index, event.step)
    _, _, *step_tail, _ = STEP.unpack_from(page, at)
    # The offset plus one: in a row of zeros, never written, 0 has to mean that there is no plan.
    STEP.pack_into(page, at, low(event.batch), decoded.offset + 1, *step_tail, min(max(event.stage, 0), 1 << 31))
    evidence.last_step = max(evidence.last_step, event.step)
    evidence.last_planned = event.step
    _items(facts, evidence, event)
    for row in event.rows:
        add_row(facts, evidence, event, row)
    evidence.recent_plans[event.step] = event
    if len(evidence.recent_plans) > RECENT_PLANS:
        del evidence.recent_plans[next(iter(evidence.recent_plans))]


def _has_plan(facts: Facts, evidence: Evidence, event: batch.BatchPlanned) -> bool:
    """True if the batch is already the plan of its step."""
    if not 0 < event.step <= evidence.last_step:
        return False
    page, at = facts.steps.row(evidence.index, event.step)
    planned_batch, plan_offset, *_ = STEP.unpack_from(page, at)
    return bool(plan_offset) and planned_batch == low(event.batch)


def add_row(facts: Facts, evidence: Evidence, plan: batch.BatchPlanned, row_item: batch.RowItem) -> None:
    """Counts a dataset's row planned in an epoch of a stage, and notes a row planned twice."""
    digest = plan.dataset_of(row_item)
    epochs = evidence.row_stages.setdefault((plan.stage, digest), {})
    epochs[row_item.epoch] = epochs.get(row_item.epoch, 0) + 1
    if not facts.rows.add((evidence.index, plan.stage, digest, row_item.epoch), row_item.row):
        finding = f"stage {plan.stage}: row {row_item.row} of epoch {row_item.epoch} is planned more than once"
        facts.note("rows-in-order", evidence.id, finding)


def abandoned(facts: Facts, evidence: Evidence, event: batch.BatchAbandoned, plan: batch.BatchPlanned | None) -> None:
    """Removes an abandoned plan, and undoes the uses of its experiences and rows. `plan` is the plan of its step, if
    there is one.
    """
    if plan is None or plan.batch != event.batch:
        return
    page, at = facts.steps.row(evidence.index, plan.step)
    planned_batch, plan_offset, *step_tail = STEP.unpack_from(page, at)
    _, _, executed, _ = step_tail
    if planned_batch != low(event.batch) or not plan_offset or executed:
        return  # an executed batch stays: abandoning it has no effect, as in every other fold
    evidence.abandoned.add(planned_batch)
    STEP.pack_into(page, at, 0, 0, *step_tail)
    # A batch in the middle may be abandoned first; the other planned ones still stand.
    while evidence.last_planned > evidence.shared and evidence.plan_place(facts, evidence.last_planned) is None:
        evidence.last_planned -= 1
    evidence.recent_plans.pop(plan.step, None)
    for listed in plan.experiences:
        if not facts.holds_experience(listed.partition, listed.offset):
            continue
        page, at = facts.produced.row(listed.partition, listed.offset)
        number, flags, member, stage, sequence, closed, _, uses, nothing = FATE.unpack_from(page, at + FATE_AT)
        if uses != listed.use:  # planned again since: the later use stands
            continue
        uses = max(0, listed.use - 1)
        flags &= ~GONE if uses else ~(GONE | PLANNED)
        FATE.pack_into(page, at + FATE_AT, number, flags, member, stage, sequence, closed, 0, uses, nothing)
        page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
        *group, used, members, failed, group_flags, row_known = GROUP.unpack_from(page, at)
        if used == plan.step:
            GROUP.pack_into(page, at, *group, 0, members, failed, group_flags, row_known)
    for row in plan.rows:
        epochs = evidence.row_stages.get((plan.stage, plan.dataset_of(row)), {})
        epochs[row.epoch] = epochs.get(row.epoch, 1) - 1
        facts.rows.remove((evidence.index, plan.stage, plan.dataset_of(row), row.epoch), row.row)


def _items(facts: Facts, evidence: Evidence, plan: batch.BatchPlanned) -> None:
    """Stores the uses of planned experiences. Notes those that are no members of groups closed as stated, lie above the
    part of the log observed by the plan, are too stale, used too often, or still cooling down.
    """
    observed = {head.partition: head.next_offset for head in plan.observed if head.stream == topics.EXPERIENCES}
    places = [place_number(group.partition, group.offset) for group in plan.groups]
    bound = _bound(evidence, plan.stage)
    first_of: dict[int, tuple[int, int]] = {}
    for listed in plan.experiences:
        fate_row = _fate(facts, evidence, listed)
        if fate_row is None:
            _wrong(facts, evidence, plan, listed, f"which is not at {listed.partition}@{listed.offset}")
            continue
        page, at, oldest, fate = fate_row
        number, flags, member, stage, sequence, closed, eligible, uses, nothing = fate
        # A plan rests on records below `observed`: a fold reading partitions in another order must agree with it.
        if listed.offset >= observed.get(listed.partition, 0):
            _wrong(facts, evidence, plan, listed, "which lies above the part that it observed")
        if not 0 <= listed.group < len(places) or not flags & MEMBER or places[listed.group] != closed:
            _wrong(facts, evidence, plan, listed, "whose group did not close at the stated position")
        elif listed.member != member:
            _wrong(facts, evidence, plan, listed, f"which is not member {listed.member}")
        else:
            first_of.setdefault(listed.group, (stage, sequence))
        if listed.staleness_versions != plan.step - 1 - oldest:
            _wrong(facts, evidence, plan, listed, f"whose staleness is not {listed.staleness_versions}")
        if bound is not None and listed.staleness_versions > bound:
            finding = f"{listed.experience} is {listed.staleness_versions} versions stale, the bound {bound}"
            facts.note("staleness-bounded", evidence.id, f"step {plan.step}: {finding}")
        if listed.use <= uses or listed.use > plan.max_uses > 0:
            times = f"experience {listed.experience} is planned {uses + 1} times"
            finding = f"{times}: step {plan.step} calls it use {listed.use}"
            facts.note("books-balance", evidence.id, finding)
        if plan.decided_at_ns < eligible:
            finding = f"experience {listed.experience} was still cooling down when step {plan.step} was planned"
            facts.note("books-balance", evidence.id, finding)
        flags |= PLANNED | (GONE if listed.use >= plan.max_uses > 0 else 0)
        eligible = _bounded(plan.eligible_at_ns)
        uses = min(max(listed.use, uses, 0), 1 << 31)
        FATE.pack_into(page, at, number, flags, member, stage, sequence, closed, eligible, uses, nothing)
    for stage, sequence in first_of.values():
        page, at = facts.groups.row(facts.space(evidence.index, stage), sequence)
        *group, used, members, failed, flags, row_known = GROUP.unpack_from(page, at)
        if not used or plan.step < used:
            GROUP.pack_into(page, at, *group, plan.step, members, failed, flags, row_known)


def _wrong(facts: Facts, evidence: Evidence, plan: batch.BatchPlanned, listed: batch.ExperienceItem, how: str) -> None:
    """Notes a plan that names an experience wrongly."""
    finding = f"step {plan.step} names experience {listed.experience}, {how}"
    facts.note("plans-name-what-is-there", evidence.id, finding)


def _fate(
    facts: Facts, evidence: Evidence, listed: batch.ExperienceItem
) -> tuple[bytearray, int, int, tuple[int, ...]] | None:
    """Returns the page of an experience, the offset of its fate in it, its oldest version, and the fate; None if
    missing.
    """
    if not facts.holds_experience(listed.partition, listed.offset):
        return None
    page, at = facts.produced.row(listed.partition, listed.offset)
    fate = FATE.unpack_from(page, at + FATE_AT)
    id, _, _, _, _, oldest, _, _ = ORIGIN.unpack_from(page, at)
    if id != low(listed.experience) or fate[0] != evidence.index or not fate[1]:
        return None
    return page, at + FATE_AT, oldest, fate


def _bound(evidence: Evidence, stage: int) -> int | None:
    """Returns the stage's bound on the age of trained tokens, in versions; None without a bound."""
    if evidence.spec is None or not 0 <= stage < len(evidence.spec.stages):
        return None
    policy = evidence.spec.stages[stage].policy
    return policy.max_staleness_versions if policy.bounded else None


def _bounded(time_ns: int) -> int:
    """Limits a time to the range of a stored number."""
    return min(max(time_ns, 0), (1 << 63) - 1)


def completed(facts: Facts, evidence: Evidence, event: step.StepCompleted, _decoded: Decoded) -> None:
    """Stores an executed step; notes steps out of order within their generation, under an older generation, or
    executing another batch than planned.
    """
    if not 0 < event.step < _ABSURD:
        facts.note("trained-once", evidence.id, f"batch {event.batch} was executed as step {event.step}")
        return
    if low(event.batch) in evidence.abandoned:  # the spine's order decides: it was abandoned before it was executed
        return
    page, at = facts.steps.row(evidence.index, event.step)
    planned, plan_offset, checksum, generation, executed, stage = STEP.unpack_from(page, at)
    last = evidence.reached.get(event.generation)
    if not facts.chained and last is not None and event.step <= last and planned == low(event.batch):
        return  # a repetition, long after the first time
    evidence.executions += 1
    evidence.last_step = max(evidence.last_step, event.step)
    current = evidence.generations[-1].generation if evidence.generations else -1
    if event.generation != current:
        finding = f"step {event.step} of generation {event.generation} completed under generation {current}"
        facts.note("trained-once", evidence.id, finding)
    if last is None or event.step != last + 1:
        facts.note("trained-once", evidence.id, f"generation {event.generation}: step {event.step} after step {last}")
    elif last > 0 and _is_to_be_saved(evidence, last):
        evidence.unsaved.add(last)
    evidence.reached[event.generation] = event.step
    if not plan_offset or planned != low(event.batch):
        finding = f"step {event.step} executed batch {event.batch}, which is not its plan"
        facts.note("trained-once", evidence.id, finding)
    if event.spine is not None and _is_to_be_saved(evidence, event.step):
        evidence.marks[event.step, event.generation] = event.spine
    # A row has room for one checksum: the few of later generations go into a dictionary.
    if not executed:
        evidence.steps_executed += 1
        checksum = hashed(event.checksum)
        generation = min(max(event.generation, -_ABSURD), _ABSURD)
    elif generation != event.generation:
        evidence.checksums[event.step, event.generation] = hashed(event.checksum)
    STEP.pack_into(page, at, planned, plan_offset, checksum, generation, min(executed + 1, 1 << 31), stage)


def _is_to_be_saved(evidence: Evidence, number: int) -> bool:
    """True if a checkpoint of this step is due before the next one is executed."""
    starts = dict(enumerate(evidence.forked.first_versions)) if evidence.forked else {}
    starts.update(evidence.stages)
    stage = max((index for index, first in starts.items() if first < number), default=-1)
    if number <= evidence.shared or evidence.spec is None or not 0 <= stage < len(evidence.spec.stages):
        return False
    spec = evidence.spec.stages[stage]
    return checkpoint_due(spec, number - starts[stage])


def generation_started(facts: Facts, evidence: Evidence, event: step.GenerationStarted, _decoded: Decoded) -> None:
    """Notes a generation with a number not above the previous generation's."""
    current = evidence.generations[-1] if evidence.generations else None
    if current is not None and event.generation <= current.generation:
        if not facts.chained and event in evidence.generations:
            return  # a repetition, long after the first time
        finding = f"generation {event.generation} started after generation {current.generation}"
        facts.note("trained-once", evidence.id, finding)
    evidence.generations.append(event)
    evidence.reached[event.generation] = event.version
    if event.checksum:
        evidence.checksums[event.version, event.generation] = hashed(event.checksum)


def retired(facts: Facts, evidence: Evidence, event: batch.ExperienceRetired, decoded: Decoded) -> None:
    """Stores retirements for `books`, after the reading: they name experiences by their ids alone."""
    reason = facts.reason(event.reason)
    for id in event.experiences:
        facts.retirements.add(RETIREMENT.pack(id.bytes, decoded.offset, evidence.index, reason))


SWEEP: Final = "sweep"
"""The state of a sweep's spine, which belongs to no experiment."""
STATES: Final[dict[type, str]] = {
    experiment.ExperimentStarted: "running",
    experiment.ExperimentResumed: "running",
    experiment.ExperimentPaused: "paused",
    experiment.ExperimentCompleted: "completed",
    experiment.ExperimentFailed: "failed",
    experiment.ExperimentCancelled: "cancelled",
    experiment.ExperimentRejected: "rejected",
}
"""The state of an experiment after each life event."""


def life(_facts: Facts, evidence: Evidence, event: Any, decoded: Decoded) -> None:
    """Updates the state of the experiment, applying each life event once."""
    if decoded.head.id in evidence.life:
        return
    evidence.life.add(decoded.head.id)
    match event:
        case sweep.SweepSubmitted() if evidence.spec is None:
            evidence.state = SWEEP
        case experiment.ExperimentSubmitted():
            if evidence.spec is None:
                evidence.spec = event.spec
                evidence.state = "submitted"
            # Explorer and trainer may come from two submissions of one experiment.
            elif isinstance(
                joined_spec := joined(evidence.spec, event.spec, trained=bool(evidence.generations)), ExperimentSpec
            ):
                evidence.spec = joined_spec
        case experiment.ExperimentForked():
            evidence.forked = event
        case experiment.StageStarted():
            evidence.stages[event.stage] = event.first_version
        case experiment.LossAccepted():
            evidence.losses_accepted.update(lost.ref for lost in event.lost)
            evidence.accepted_losses += accepted_losses(event, decoded.head)
        case experiment.ExperimentArchived() | experiment.ExperimentRemoved():
            evidence.files_here = False
        case experiment.ExperimentRestored():
            evidence.files_here = True
        case experiment.ExperimentImported():
            evidence.imported = event
        case experiment.ExperimentResumed(queued=True) if not evidence.ended:
            evidence.state = "queued"
        case _ if not evidence.ended:  # nothing leaves an end
            evidence.state = STATES[type(event)]


def stage_stopped(_facts: Facts, evidence: Evidence, event: experiment.StageStopped, _decoded: Decoded) -> None:
    """Shortens the stopped stage, though never below the steps already planned."""
    if evidence.spec is not None and not evidence.ended and event.stage in evidence.stages:
        planned = max((*evidence.recent_plans, *evidence.reached.values()), default=0)
        evidence.spec = stopped(evidence.spec, event, first_version=evidence.stages[event.stage], planned=planned)


HANDLERS: Final[dict[type, Any]] = {
    batch.BatchPlanned: planned,
    batch.ExperienceRetired: retired,
    step.StepCompleted: completed,
    step.GenerationStarted: generation_started,
    experiment.StageStopped: stage_stopped,
    experiment.ExperimentSubmitted: life,
    experiment.ExperimentForked: life,
    experiment.StageStarted: life,
    experiment.LossAccepted: life,
    experiment.ExperimentArchived: life,
    experiment.ExperimentRemoved: life,
    experiment.ExperimentRestored: life,
    experiment.ExperimentImported: life,
    sweep.SweepSubmitted: life,
    **dict.fromkeys(STATES, life),
}
"""The function called with each record, by type of event."""
