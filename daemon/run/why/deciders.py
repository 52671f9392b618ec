"""Controller, planner, dispatcher and evaluations, by their returned holds; the task holding up a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.wait import Wait
from rftd.ops.words import Level, Words
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.events.experiment import ExperimentResumed, StageCompleted
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskLeased, TasksDrawn
from rftd.streams.events.weights import WeightsRequested
from rftd.streams.folds.group import Lease
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.control.closing import awaits_pipeline
from rftd.workers.control.deciders import current_answers
from rftd.workers.control.hold import Hold, NoStage, Paused
from rftd.workers.control.holds import ClosesGroups
from rftd.workers.control.leasing import LEASE_GRACE_S
from rftd.workers.control.over_rollout import needed_groups, step_of
from rftd.workers.control.planner_holds import Collects, TooFewExperiences

_SLOW_MEANS: Final = 3.0
"""Multiple of a rollout's mean duration after which a lease counts as slow."""
_LEAST_S: Final = 5.0
"""Seconds before a lease can count as slow."""
_UNKNOWN_S: Final = 60.0
"""Seconds counting as slow while no rollout of the stage has ended."""


def deciders_waits(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields one wait for each decider, one for the slowest task holding up the planner, one for an evaluation."""
    decided = snapshot.said or current_answers(
        snapshot.state, snapshot.liveness, now_s=snapshot.now_s, now_ns=snapshot.now_ns
    )
    if decided.controller is not None:
        hold = decided.controller.hold
        # The next stage is begun by the controller itself.
        under_way = None if isinstance(hold, NoStage) else hold
        yield _wait(snapshot, "controller", under_way or _life_words(decided.controller.events))
    if decided.planner is not None:
        yield _wait(snapshot, "planner", decided.planner.hold or _planner_words(snapshot, decided.planner.events))
        if isinstance(decided.planner.hold, TooFewExperiences):
            yield from _straggler(snapshot)
            yield from _pipeline(snapshot)
    if decided.dispatcher is not None:
        events = [decision.event for decision in decided.dispatcher.decisions]
        yield _wait(snapshot, "dispatcher", decided.dispatcher.hold or _dispatcher_words(snapshot, events))
        if decided.dispatcher.evaluation is not None:
            yield _wait(snapshot, "evaluation", decided.dispatcher.evaluation)


def _wait(snapshot: RunSnapshot, role: str, hold_or_words: Hold | Words) -> Wait:
    """Returns the wait of a role with the words of its hold; a wait for explorers not started here names the commands
    for starting some.
    """
    words = hold_or_words.told(snapshot.state, snapshot.now_ns) if isinstance(hold_or_words, Hold) else hold_or_words
    if words.state == "explorers" and not snapshot.starts("explorer"):
        words = words._replace(on_whom="you", unblock=snapshot.joins_by("explorer"), level=Level.STUCK)
    return Wait(role, *words, since_ns=snapshot.state.spine.status_ns if isinstance(hold_or_words, Paused) else None)


# A decider with events written or about to be written knows its next hold once they are folded.


def _life_words(events: Sequence[Event]) -> Hold | Words:
    # Until its resumption is folded the experiment is still paused, for everybody.
    """Returns the words for the controller's next action, by the decided events."""
    if any(isinstance(event, ExperimentResumed) for event in events):
        return Paused()
    if any(isinstance(event, StageCompleted) for event in events):
        return Words("stage_ends", level=Level.WORKS)
    return Words("stage_starts", "its own next event", "controller", "the log accepts it")


def _planner_words(snapshot: RunSnapshot, events: Sequence[Event]) -> Hold | Words:
    """Returns the words for the planner's present action, by the decided events."""
    retired = [event for event in events if isinstance(event, ExperienceRetired)]
    if any(event.reason == "collected" for event in retired):
        return Collects()
    if any(event.reason == "stage_ended" for event in retired):
        retired_count = sum(len(event.experiences) for event in retired)
        return Words("closes_books", f"retires {retired_count} experiences", level=Level.WORKS)
    spine = snapshot.state.spine
    planned = [event.step for event in events if isinstance(event, BatchPlanned)]
    step = min(planned, default=max(spine.planned, spine.first_version) + 1)
    return Words("plans", f"plans step {step}", level=Level.WORKS)


def _dispatcher_words(snapshot: RunSnapshot, events: Sequence[Event]) -> Hold | Words:
    """Returns the words for the dispatcher's present action, by the decided events."""
    if any(isinstance(event, TaskLeased | TasksDrawn | WeightsRequested) for event in events):
        return Words("leases", "gives out groups", level=Level.WORKS)
    return ClosesGroups(snapshot.state.groups.to_close)


def _straggler(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields the oldest lease with rollouts left, if slow: with its explorer, its start, and its end rules."""
    groups = snapshot.state.groups
    leases = (lease for lease in groups.leases.values() if groups.open[lease.group].left_of(lease))
    lease = min(leases, key=lambda lease: lease.leased_ns, default=None)
    if lease is None:
        return
    # The durations of the previous stage say nothing about this one: its taskset and its lengths differ.
    mean_s = groups.mean_duration_s if groups.recent_stage == snapshot.state.spine.stage else None
    age_s = (snapshot.now_ns - lease.leased_ns) / 1e9
    if age_s <= (_UNKNOWN_S if mean_s is None else max(_SLOW_MEANS * mean_s, _LEAST_S)):
        return
    group = groups.open[lease.group]
    stage = snapshot.state.spine.stage_spec()
    open_rollouts = ", ".join(map(str, group.left_of(lease)))
    number, row = task_place(stage, group.row)
    taskset_note = f" of {tasksets_of(stage)[number].name}" if stage.more_tasksets else ""
    description = (
        f"task {group.sequence} of explore step {step_of(stage, group)} (row {row} "
        f"of epoch {group.epoch}{taskset_note})"
    )
    description += f": rollout {open_rollouts} of {group.repeat_times} with explorer {lease.slot}, for {age_s:.0f} s"
    if mean_s is not None:
        description += f"; {mean_s:.1f} s is usual"
    other_slots = sorted(
        {
            str(other_lease.slot)
            for other_lease in group.leases.values()
            if other_lease.reissue and other_lease.id != lease.id
        }
    )
    if other_slots:
        description += f"; explorer {', '.join(other_slots)} is working on it too"
    ends = "; ".join(_lease_end_rules(stage, lease, second=bool(other_slots)))
    words = Words("straggler", description, f"explorer {lease.slot}", ends)
    yield Wait("task", *words, slot=lease.slot, worker=str(lease.worker), since_ns=lease.leased_ns)


def _pipeline(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields one wait for all finished groups without a verdict of the experience pipeline, if the stage has one."""
    state = snapshot.state
    stage = state.spine.stage_spec()
    if not stage.pipeline:
        return
    groups = [group for group in state.groups.open.values() if group.terminal and awaits_pipeline(state, group)]
    if not groups:
        return
    experiences = sum(len(group.members) for group in groups)
    leases = [lease for group in groups if group.processing for lease in group.processing.leases.values()]
    slots = ", ".join(sorted({str(lease.slot) for lease in leases}))
    description = (
        f"the experience pipeline: {len(groups)} groups with {experiences} experiences are without a verdict, "
        f"{len(leases)} of them leased"
    )
    unblock = f"group.processed, or the end of a lease after {stage.rollout.max_timeout_s + LEASE_GRACE_S:.3g} s"
    yield Wait("task", *Words("pipeline", description, f"explorer {slots}" if slots else "dispatcher", unblock))


def _lease_end_rules(stage: StageSpec, lease: Lease, *, second: bool) -> Iterator[str]:
    """Yields the rules ending a lease, the soonest first as far as known."""
    spec = stage.rollout
    if spec.over_rollout.ratio:
        enough = f"{needed_groups(stage)} of the {stage.batch_size} tasks of its step are done"
        yield f"over_rollout abandons it {spec.over_rollout.wait_after_min:g} s after {enough}"
    if spec.straggler_reissue.enable and not second and not lease.alone:
        yield "an idle explorer gets it as well"
    # A lease lasts longer than its attempts by the grace, so that the explorer's own time-out comes first.
    bound_s = lease.deadline_s - LEASE_GRACE_S
    yield f"each attempt ends after {bound_s:.3g} s, and {spec.max_retry_times + 1} are allowed"
