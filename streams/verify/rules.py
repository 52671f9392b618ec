"""The promises as checks on the evidence of one experiment. Each yields what breaks it, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from rftd.streams import topics
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.verify.evidence import Evidence


def groups_close_once(evidence: Evidence) -> Iterator[str]:
    """Rule 5: a group closes once, over distinct rollouts whose experiences lie where it says."""
    for group in evidence.closed_twice:
        yield f"group {group} closed twice"
    for group, closed in evidence.closed.items():
        if group not in evidence.leased_groups:
            yield f"group {group} closed and never leased"
        if len({member.rollout for member in closed.members}) != len(closed.members):
            yield f"group {group} counts a rollout twice"
        for member in closed.members:
            produced = evidence.produced.get(member.experience)
            if produced is None:
                yield f"group {group}: experience {member.experience} is not in the log"
            elif (produced.partition, produced.offset) != (member.partition, member.offset):
                yield f"group {group}: experience {member.experience} lies elsewhere than at {member.offset}"


def no_task_is_skipped(evidence: Evidence) -> Iterator[str]:
    """The groups of a stage are numbered without gap, each is one row in one epoch, and no row comes twice in one."""
    stages: dict[int, set[int]] = {}
    seen: dict[tuple[int, int, int], int] = {}
    for (stage, sequence), places in evidence.leased.items():
        stages.setdefault(stage, set()).add(sequence)
        if len(places) > 1:
            yield f"stage {stage}: group {sequence} was leased as different rows {sorted(places)}"
        for row, epoch in places:
            other = seen.setdefault((stage, row, epoch), sequence)
            if other != sequence:
                yield f"stage {stage}: row {row} of epoch {epoch} is group {other} and group {sequence}"
    for stage, sequences in stages.items():
        forked = evidence.forked if evidence.forked and evidence.forked.stage == stage else None
        expected = set(range(forked.next_sequence if forked else 0, max(sequences) + 1))
        if forked:
            past = max(sequences) >= forked.next_sequence
            expected |= {sequence for sequence in forked.redo if past or sequence <= max(sequences)}
            if again := sequences - expected:
                yield f"stage {stage}: groups {sorted(again)[:10]} were settled in the history that it shares"
        if missing := expected - sequences:
            yield f"stage {stage}: groups {sorted(missing)[:10]} were skipped"


def retries_have_a_cause(evidence: Evidence) -> Iterator[str]:
    """A task is given out once more only after its group closed with failed rollouts, and as the same row."""
    for event in evidence.retried:
        closed = evidence.closed.get(event.group)
        if closed is None or not closed.failed:
            yield f"group {event.group} was retried, and it did not fail"
        elif (closed.stage, closed.sequence) != (event.stage, event.sequence):
            yield f"group {event.group} was retried as {event.stage}.{event.sequence}, which it was not"


def windows_keep_their_weights(evidence: Evidence) -> Iterator[str]:
    """All groups between two sync points were to begin on one weight version, unless theirs came too late."""
    for (stage, window), versions in evidence.windows.items():
        if len(versions) > 1 and (stage, window) not in evidence.overdue:
            yield f"stage {stage}: window {window} was given out on weight versions {sorted(versions)}"


def rows_come_in_order(evidence: Evidence) -> Iterator[str]:
    """A dataset's row is planned once in an epoch, and an epoch begins when the one before is complete."""
    seen: dict[tuple[int, str], Counter[tuple[int, int]]] = {}
    own = {plan.stage for plan, _ in evidence.plans.values()}
    for _, _, plan in evidence.history():
        for item in plan.rows if plan.stage in own else ():
            seen.setdefault((plan.stage, item.digest), Counter())[item.epoch, item.row] += 1
    for (stage, _), counts in seen.items():
        for (epoch, row), count in counts.items():
            if count > 1:
                yield f"stage {stage}: row {row} of epoch {epoch} is planned {count} times"
        rows_of = Counter(epoch for epoch, _ in counts)
        for epoch in range(max(rows_of)):
            if rows_of[epoch] != rows_of[0]:
                yield f"stage {stage}: epoch {epoch} has {rows_of[epoch]} rows, epoch 0 has {rows_of[0]}"


def plans_name_what_is_there(evidence: Evidence) -> Iterator[str]:
    """Rule 6: a plan names members of closed groups, at their places, below the positions that it was decided on."""
    for step, (plan, _) in evidence.plans.items():
        observed = {(seen.stream, seen.partition): seen.next_offset for seen in plan.observed}
        for item in plan.experiences:
            produced = evidence.produced.get(item.experience)
            if produced is None or (produced.partition, produced.offset) != (item.partition, item.offset):
                yield f"step {step} names experience {item.experience}, which is not at {item.partition}@{item.offset}"
                continue
            if item.offset >= observed.get((topics.EXPERIENCES, item.partition), 0):
                yield f"step {step} names experience {item.experience} above what it observed"
            group = plan.groups[item.group]
            if evidence.closed_at.get((group.partition, group.offset)) != produced.group:
                yield f"step {step}: the group of {item.experience} did not close at {group.partition}@{group.offset}"
            elif evidence.closed[produced.group].members[item.member].experience != item.experience:
                yield f"step {step}: {item.experience} is not member {item.member} of its group"
            if item.staleness_versions != step - 1 - produced.oldest_version:
                yield f"step {step}: {item.experience} has another staleness than {item.staleness_versions}"


def staleness_is_bounded(evidence: Evidence) -> Iterator[str]:
    """No planned experience is staler than its stage's bound, where the policy keeps one."""
    assert evidence.spec is not None
    for step, (plan, _) in evidence.plans.items():
        policy = evidence.spec.stages[plan.stage].policy
        bound = policy.max_staleness_versions
        for item in plan.experiences if policy.bounded else ():
            if item.staleness_versions > bound:
                yield f"step {step}: {item.experience} is {item.staleness_versions} versions stale, the bound {bound}"


def books_balance(evidence: Evidence) -> Iterator[str]:
    """Rule 7: an experience is used as often as its plans allow, rested in between, and then gone or retired."""
    yield from _uses(evidence)
    plans = [plan for plan, _ in evidence.plans.values()]
    gone = {item.experience for plan in plans for item in plan.experiences if item.use >= plan.max_uses > 0}
    members = {member.experience for closed in evidence.closed.values() for member in closed.members}
    for experience, reasons in evidence.retired.items():
        if experience in gone:
            yield f"experience {experience} is planned and retired as {reasons}"
        if len(reasons) > 1:
            yield f"experience {experience} is retired {len(reasons)} times: {reasons}"
        if experience not in members:
            yield f"experience {experience} is retired and no member of a closed group"
    if evidence.state == "completed" and (left := members - gone - set(evidence.retired)):
        yield f"{len(left)} experiences are neither planned nor retired, among them {next(iter(left))}"


def _uses(evidence: Evidence) -> Iterator[str]:
    uses: dict[UUID, tuple[int, int]] = {}
    for step, (plan, _) in sorted(evidence.plans.items()):
        for item in plan.experiences:
            before, eligible_at_ns = uses.get(item.experience, (0, 0))
            if item.use <= before or item.use > plan.max_uses > 0:
                yield f"experience {item.experience} is planned {before + 1} times: step {step} calls it use {item.use}"
            if plan.decided_at_ns < eligible_at_ns:
                yield f"experience {item.experience} had not rested when step {step} was planned"
            uses[item.experience] = (item.use, plan.eligible_at_ns)


def trained_once(evidence: Evidence) -> Iterator[str]:
    """Rule 8: within a generation steps follow one another without gap, and each executes its plan once."""
    for step in evidence.planned_twice:
        yield f"step {step} is planned twice"
    starts = {event.generation: event.version for event, _ in evidence.generations}
    at: dict[int, int] = dict(starts)
    order = sorted(
        [(offset, None, event) for event, offset in evidence.generations]
        + [(offset, event, None) for event, offset in evidence.executions],
        key=lambda entry: entry[0],
    )
    current = -1
    for _, done, started in order:
        if started is not None:
            if started.generation <= current:
                yield f"generation {started.generation} started after generation {current}"
            current = started.generation
        if done is not None:
            if done.generation != current:
                yield f"step {done.step} of generation {done.generation} completed under generation {current}"
            if done.step != at.get(done.generation, -1) + 1:
                yield f"generation {done.generation}: step {done.step} after step {at.get(done.generation)}"
            at[done.generation] = done.step
            plan = evidence.plans.get(done.step)
            if plan is None or plan[0].batch != done.batch:
                yield f"step {done.step} executed batch {done.batch}, which is not its plan"


def announcements_have_a_step(evidence: Evidence) -> Iterator[str]:
    """Rule 3: a published version or a checkpoint of a completed experiment names weights that the spine knows."""
    if evidence.state != "completed":
        return
    known = {(done.event.step, done.event.generation): done.event.checksum for done in evidence.executions}
    known |= {(event.version, event.generation): event.checksum for event, _ in evidence.generations if event.checksum}
    for published in evidence.published:
        if published.version > 0 and known.get((published.version, published.generation)) != published.checksum:
            yield f"weights {published.version} of generation {published.generation} have no step"
    for committed in evidence.checkpoints:
        if known.get((committed.step, committed.generation)) != committed.checksum:
            yield f"the checkpoint of step {committed.step} of generation {committed.generation} has no step"


def completed_is_complete(evidence: Evidence) -> Iterator[str]:
    """A completed experiment executed every step of every stage, tried what it collects, and left no group open."""
    if evidence.state != "completed" or evidence.spec is None:
        return
    total = sum(stage.total_steps for stage in evidence.spec.stages)
    done = {execution.event.step for execution in evidence.executions}
    if missing := set(range(evidence.shared + 1, total + 1)) - done:
        yield f"steps {sorted(missing)[:10]} of {total} were never executed"
    for number, stage in enumerate(evidence.spec.stages):
        tried = {closed.sequence for closed in evidence.closed.values() if closed.stage == number}
        if stage.kind == "explore" and (missing := set(range(stage.collect_groups)) - tried):
            yield f"tasks {sorted(missing)[:10]} of {stage.collect_groups} of stage {stage.name} were never tried"
    if still_open := evidence.leased_groups - set(evidence.closed):
        yield f"{len(still_open)} groups never closed, among them {next(iter(still_open))}"


def forks_share_history(evidence: Evidence) -> Iterator[str]:
    """A fork goes on from a step that its parent executed: its weights, its stages and what was done of its data."""
    forked, parent = evidence.forked, evidence.parent
    if forked is None:
        return
    if parent is None:
        yield f"it shares steps 1 to {forked.at_step} of experiment {forked.parent}, which is not in the log"
        return
    known = {done.event.checksum for done in parent.executions if done.event.step == forked.at_step}
    if forked.at_step == 0:
        known = {published.checksum for published in parent.published if published.version == 0}
    if forked.checksum not in known:
        yield f"its parent has no step {forked.at_step} with checksum {forked.checksum}"
    if evidence.spec is not None and evidence.spec.deterministic:
        for event, _ in evidence.generations:
            if event.checksum and event.checksum != forked.checksum:
                yield f"generation {event.generation} began with weights {event.checksum}, not with {forked.checksum}"
    inherited = enumerate(parent.forked.first_versions if parent.forked else (0,))
    starts = dict(inherited) | parent.stages
    if differs := [index for index, first in enumerate(forked.first_versions) if starts.get(index) != first]:
        yield f"stages {differs} began elsewhere in its parent's history"
    yield from _data_goes_on(evidence, forked)


def _data_goes_on(evidence: Evidence, forked: ExperimentForked) -> Iterator[str]:
    """Groups of the stage that the step lies in: each was settled before it, is given out again, or comes after."""
    used = set()
    for _, owner, plan in evidence.history(forked.at_step):
        groups = plan.groups if plan.stage == forked.stage else ()
        closed = [owner.closed_at.get((group.partition, group.offset)) for group in groups]
        used |= {owner.closed[group].sequence for group in closed if group is not None}
    settled = used | (_settled(evidence.parent, forked) if evidence.parent is not None else set())
    if twice := used.intersection(forked.redo):
        yield f"groups {sorted(twice)[:10]} are given out again, and batches that it shares hold them"
    if late := {sequence for sequence in used if sequence >= forked.next_sequence}:
        yield f"groups {sorted(late)[:10]} come after {forked.next_sequence}, and batches that it shares hold them"
    given = set(range(forked.next_sequence)) if used else set()
    if lost := given - settled - set(forked.redo):
        yield f"groups {sorted(lost)[:10]} were never settled, and are not given out again"


def _settled(parent: Evidence, forked: ExperimentForked) -> set[int]:
    """Groups of the stage that were over when the batch of the shared step was planned, but for those that it used.

    One that had closed and waited whole is not: only what it lacks, or what was retired of it by then, tells it.
    """
    own = parent.forked if parent.forked is not None and parent.forked.stage == forked.stage else None
    settled = set(range(own.next_sequence)) - set(own.redo) if own is not None else set()
    if (planned := parent.plans.get(forked.at_step)) is None:
        return settled
    ends = {seen.partition: seen.next_offset for seen in planned[0].observed if seen.stream == topics.TASKS}
    before = {group for (number, offset), group in parent.closed_at.items() if offset < ends.get(number, 0)}
    closed = (parent.closed[group] for group in before)
    gone = {experience for experience, offset in parent.retired_at.items() if offset < planned[1]}
    return settled | {
        each.sequence
        for each in closed
        if each.stage == forked.stage
        and (not each.members or any(member.experience in gone for member in each.members))
    }


Rule = Callable[[Evidence], Iterator[str]]

RULES: Final[dict[str, Rule]] = {
    "groups-close-once": groups_close_once,
    "no-task-skipped": no_task_is_skipped,
    "retries-have-a-cause": retries_have_a_cause,
    "windows-keep-weights": windows_keep_their_weights,
    "rows-in-order": rows_come_in_order,
    "plans-name-what-is-there": plans_name_what_is_there,
    "staleness-bounded": staleness_is_bounded,
    "books-balance": books_balance,
    "trained-once": trained_once,
    "announcements-have-a-step": announcements_have_a_step,
    "completed-is-complete": completed_is_complete,
    "forks-share-history": forks_share_history,
}
