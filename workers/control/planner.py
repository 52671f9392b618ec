"""`Planner`: decides which items form the next batch. Pure: the folded state and a clock reading in, events out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final
from uuid import UUID

from rftd.ops.errors import DataError
from rftd.ops.ids import derive
from rftd.streams import topics
from rftd.streams.bounds import LAST_NS
from rftd.streams.events.batch import (
    BatchAbandoned,
    BatchPlanned,
    ExperienceItem,
    ExperienceRetired,
    GroupRef,
    ObservedAt,
    RowItem,
)
from rftd.streams.events.registry import Event
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.schedule import has_windows, plan_ahead
from rftd.streams.spec import StageSpec
from rftd.streams.topics import Partition
from rftd.workers.control.holds import (
    Collects,
    Decided,
    LastChance,
    NoStage,
    NoTrainer,
    Paused,
    PlannedAhead,
    PlannerHold,
    StagePlanned,
    StepsAgain,
    TooFewExperiences,
)
from rftd.workers.control.judge import Judge
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import PolicyView, Retirement
from rftd.workers.control.rows import rows_of_step
from rftd.workers.control.stage_buffer import StageBuffer, by_uses

RETIRED_AT_ONCE: Final = 4096
"""Ids of one experience.retired: 16 bytes each, far below the limit of a record."""
_NOTHING: Final = frozenset[UUID]()


def view_of(state: RunState, stage: StageSpec) -> PolicyView:
    """The counts that the stage's policy sees of the state."""
    spine = state.spine
    replay_buffer = state.replay_buffer
    version = max(spine.version, spine.first_version)
    newest = state.weights.newest(spine)
    published = max(newest.version, spine.first_version) if newest is not None else spine.first_version
    return PolicyView(
        version=version,
        first_version=spine.first_version,
        published_version=published,
        starting_version=None if has_windows(stage.sync) else published,
        total_steps=stage.total_steps,
        planned_steps=max(0, spine.planned - spine.first_version),
        batch_size=stage.experiences_per_step,
        repeat_times=stage.algorithm.repeat_times,
        planned_experiences=replay_buffer.planned_in_stage.get(spine.stage, 0)
        + spine.shared_steps * stage.experiences_per_step,
        waiting_experiences=len(replay_buffer.waiting),
        cooling_experiences=len(replay_buffer.cooling),
        inflight_rollouts=state.groups.inflight_rollouts,
    )


class Planner:
    """Decisions of one experiment's planner. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, *, oldest_flight: Callable[[], int | None] | None = None) -> None:
        """`oldest_flight`: the oldest version of a group under way, if not as the state's leases say."""
        self._state = state
        self._oldest_flight = oldest_flight or (lambda: oldest_flight_of(state))
        self._stage_buffer = StageBuffer(state)
        self._judge = Judge()

    def decide(self, positions: Mapping[Partition, int], now_ns: int) -> Decided[PlannerHold]:
        """What to retire or the next batches to plan, and why there are no more.

        `positions` is how far the state was folded; `now_ns` is raised to the last recorded reading (rule 9).
        """
        spine = self._state.spine
        if self._state.replay_buffer.given_up and (given_up := self._given_up(positions, now_ns)):
            return Decided(given_up)
        if spine.status is Status.PAUSED:
            return Decided((), Paused(spine.cause))
        if spine.status is not Status.RUNNING or spine.stage < 0 or spine.stage_completed:
            return Decided((), NoStage())
        now_ns = max(now_ns, spine.recorded_ns)
        stage = spine.stage_spec()
        step = max(spine.planned, spine.first_version) + 1
        if step > spine.last_version:
            return self._close_books(stage, positions, now_ns)
        if not spine.caught_up:
            return Decided((), NoTrainer() if spine.generation < 0 else StepsAgain(spine.version + 1, spine.furthest))
        last = min(spine.version + plan_ahead(stage.policy), spine.last_version)
        if step > last:
            return Decided((), PlannedAhead(spine.version + 1, spine.planned))
        if stage.kind == "train":
            steps = range(step, last + 1)
            plans = [self._plan(each, positions, now_ns, rows=self._rows(stage, each)) for each in steps]
            return Decided(plans, self._after_plan(last))
        return self._explored(stage, step, last, positions, now_ns)

    def _after_plan(self, step: int) -> PlannedAhead | None:
        """Why no batch is planned after that of `step`, the last that may be; the stage's last one ends its books."""
        spine = self._state.spine
        return PlannedAhead(spine.version + 1, step) if step < spine.last_version else None

    def _given_up(self, positions: Mapping[Partition, int], now_ns: int) -> Sequence[Event]:
        """Retires what somebody says will never be read again; before that, the batches that cannot run are abandoned.

        With such a batch all later ones go, for steps follow one another: their other items return. What any generation
        has executed stays, for no history may be made of another batch. Where what a group teaches is made of the
        payload of all its members, they go with it. While the experiment is paused, too: it may have paused for this.
        """
        spine = self._state.spine
        replay_buffer = self._state.replay_buffer
        if spine.status not in (Status.RUNNING, Status.PAUSED) or spine.stage < 0 or spine.stage_completed:
            return ()
        given_up = replay_buffer.given_up
        places = (replay_buffer.waiting, replay_buffer.cooling)
        entries = [entry for id in given_up for place in places if (entry := place.get(id)) is not None]
        open_plans = {step: plan.event for step, plan in spine.plans.items() if step > spine.furthest}
        groups: set[UUID | None] = {entry.group.group for entry in entries}
        for plan in open_plans.values():
            groups |= {_group_of(plan, item) for item in plan.experiences if item.experience in given_up}
        whole = self._judge.reads_members(spine.stage_spec())
        held = [
            step
            for step, plan in open_plans.items()
            for item in plan.experiences
            if item.experience in given_up or (whole and _group_of(plan, item) in groups)
        ]
        if held:
            return [
                _abandoned(open_plans[step], held, given_up)
                for step in sorted(open_plans, reverse=True)
                if step >= min(held)
            ]
        if whole:
            entries = [entry for place in places for entry in place.values() if entry.group.group in groups]
        now_ns = max(now_ns, spine.decided_at_ns)
        return self._retired([Retirement("given_up", entries)], positions, now_ns) if entries else ()

    def _rows(self, stage: StageSpec, step: int) -> Sequence[RowItem]:
        if stage.dataset is None:
            return ()
        spine = self._state.spine
        shared = spine.shared_steps
        taken = spine.forked.next_sequence if spine.forked and shared else 0
        if stage.kind != "train":
            taken = shared * stage.expert_rows  # its sequences are groups
        return rows_of_step(stage, step - spine.first_version, shared_steps=shared, shared_rows=taken)

    def _unfit(self, stage: StageSpec) -> list[Retirement]:
        """Groups that no batch may hold, whenever it is formed. Ask before the stage buffer takes in what arrived."""
        minimum = min(stage.policy.min_group_members, stage.algorithm.repeat_times)
        replay_buffer = self._state.replay_buffer
        fresh = self._stage_buffer.fresh()
        incomplete: list[BufferEntry] = []
        if any(size < minimum for size in replay_buffer.group_sizes):
            incomplete = [entry for entry in replay_buffer.waiting.values() if entry.group_size < minimum]
            fresh = (entry for entry in fresh if entry.group_size >= minimum)
        idle = self._judge.idle(stage, fresh)
        found = (Retirement("group_incomplete", incomplete), Retirement("uninformative", idle))
        return [part for part in found if part.entries]

    def _explored(
        self, stage: StageSpec, step: int, last: int, positions: Mapping[Partition, int], now_ns: int
    ) -> Decided[PlannerHold]:
        """The plans of steps `step` to `last`, as far as they can be filled: as if each was asked for after the other.

        What no batch can hold as the first of them is formed is retired before it, in the same turn: where more arrives
        in each turn than a full buffer holds, nothing would ever be planned otherwise. What becomes stale for a later
        one is retired when that is the first.
        """
        retired = self._unfit(stage)
        policy, buffer = self._stage_buffer.of(stage, now_ns)
        view = self._without(retired, view_of(self._state, stage))
        chosen: Sequence[BufferEntry] = ()
        plans: list[Event] = []
        timed_out = self._timed_out(stage, now_ns) and not retired
        size = stage.experiences_per_step
        for each in range(step, last + 1):
            if chosen:  # the plan itself is the last reading of the clock from here on
                timed_out = False
                view = view.after(chosen)
                self._stage_buffer.take(chosen)
            if evicted := [part for part in policy.evict(view, buffer) if part.entries]:
                if chosen:
                    return Decided(plans)
                timed_out = False
                view = self._without(evicted, view)
                retired += evicted
            if not chosen:
                plans += self._retired(retired, positions, now_ns)
            if len(buffer) < size and not timed_out:
                return Decided(plans, self._too_few(stage, each, buffer, len(buffer), now_ns if plans else None))
            if not timed_out and (waits := self._waits(each, policy.waits_for(view))) is not None:
                return Decided(plans, waits)
            chosen = policy.select(view, buffer, size, _NOTHING)
            if not chosen or (len(chosen) < size and not timed_out):
                return Decided(plans, self._too_few(stage, each, buffer, len(chosen), now_ns if plans else None))
            incomplete = len(chosen) < size
            rows = self._rows(stage, each)
            plans.append(self._plan(each, positions, now_ns, chosen=chosen, rows=rows, incomplete=incomplete))
            if stage.policy.max_uses != 1 and not stage.policy.cooldown_s:
                return Decided(plans)  # what it holds may be in the next one, too, for it need not rest
        return Decided(plans, self._after_plan(last))

    def _too_few(
        self, stage: StageSpec, step: int, buffer: BufferIndex, have: int, decided_ns: int | None
    ) -> TooFewExperiences | None:
        """Why the batch of `step` is not planned; `decided_ns` is when events before it were decided, if there are any.

        There is no hold where what these events hold rests, and comes back to the buffer once they are folded.
        """
        if decided_ns is not None and stage.policy.max_uses != 1:
            return None
        since_ns = self._state.spine.waits_since_ns if decided_ns is None else decided_ns
        return TooFewExperiences(
            step=step,
            have=have,
            need=stage.experiences_per_step,
            passed_over=len(buffer) - have,
            resting=buffer.size - len(buffer),
            rested_ns=buffer.next_eligible_ns,
            read_until_ns=since_ns + round(stage.max_read_timeout_s * 1e9),
        )

    def _without(self, retired: Sequence[Retirement], view: PolicyView) -> PolicyView:
        """The view once they are retired; the stage buffer has them no longer."""
        gone = [entry for part in retired for entry in part.entries]
        if not gone:
            return view
        self._stage_buffer.take(gone)
        return view.without(gone)

    def _waits(self, step: int, version: int | None) -> LastChance | None:
        """Why the batch of `step` is not planned, if groups are under way that began with `version` or an older one."""
        if version is None:
            return None
        oldest = self._oldest_flight()
        return LastChance(step, oldest) if oldest is not None and oldest <= version else None

    def _timed_out(self, stage: StageSpec, now_ns: int) -> bool:
        """True if `max_read_timeout` passed since the trainer could have had its batch."""
        return now_ns - self._state.spine.waits_since_ns >= stage.max_read_timeout_s * 1e9

    def _plan(
        self,
        step: int,
        positions: Mapping[Partition, int],
        now_ns: int,
        *,
        chosen: Sequence[BufferEntry] = (),
        rows: Sequence[RowItem] = (),
        incomplete: bool = False,
    ) -> BatchPlanned:
        groups: dict[GroupRef, int] = {}
        items: list[ExperienceItem] = []
        for group, entries in groupby(chosen, attrgetter("group")):
            number = groups.setdefault(group, len(groups))
            items += [
                ExperienceItem(
                    entry.member.experience,
                    entry.member.partition,
                    entry.member.offset,
                    number,
                    entry.index,
                    step - 1 - entry.member.oldest_version,
                    entry.uses + 1,
                )
                for entry in entries
            ]
        state = self._state
        stage = self._state.spine.stage_spec()
        policy = stage.policy
        reusable = bool(chosen) and policy.max_uses != 1
        return BatchPlanned(
            batch=derive(state.experiment, "batch", step, state.spine.abandoned.get(step, 0)),
            step=step,
            stage=state.spine.stage,
            experiences=tuple(items),
            rows=tuple(rows),
            datasets=(stage.dataset.digest,) if rows and stage.dataset is not None else (),
            groups=tuple(groups),
            observed=observed_at(positions),
            decided_at_ns=now_ns,
            incomplete=incomplete,
            max_uses=policy.max_uses,
            eligible_at_ns=min(now_ns + round(policy.cooldown_s * 1e9), LAST_NS) if reusable else 0,
        )

    def _retired(
        self, parts: Sequence[Retirement], positions: Mapping[Partition, int], now_ns: int
    ) -> Sequence[ExperienceRetired]:
        """Events for each reason and number of uses, of bounded size."""
        return [
            ExperienceRetired(
                experiences=tuple(entry.member.experience for entry in entries[start : start + RETIRED_AT_ONCE]),
                reason=reason,
                uses=uses,
                decided_at_ns=now_ns,
                observed=observed_at(positions),
            )
            for (reason, uses), entries in by_uses(parts).items()
            for start in range(0, len(entries), RETIRED_AT_ONCE)
        ]

    def _close_books(self, stage: StageSpec, positions: Mapping[Partition, int], now_ns: int) -> Decided[PlannerHold]:
        """After a stage's last plan nothing of it can be trained any more; what is collected never is, and stays so."""
        replay_buffer = self._state.replay_buffer
        collects = stage.kind == "explore"
        left = [*replay_buffer.waiting.values(), *replay_buffer.cooling.values()]
        parts = [Retirement("collected" if collects else "stage_ended", left)] if left else ()
        return Decided(self._retired(parts, positions, now_ns), Collects() if collects else StagePlanned())


def _abandoned(plan: BatchPlanned, held: Collection[int], given_up: Mapping[UUID, str]) -> BatchAbandoned:
    """The end of a plan that holds what was given up, or of one that follows such a one."""
    named = next((item.experience for item in plan.experiences if item.experience in given_up), None)
    what = f"the batch of step {min(held)} before it cannot run"
    if named is not None:
        what = f"experience {named} was given up" + (f": {given_up[named]}" if given_up[named] else "")
    elif plan.step in held:
        what = "it needs a group of which an experience was given up"
    return BatchAbandoned(batch=plan.batch, step=plan.step, code=DataError.code, reason=what)


def _group_of(plan: BatchPlanned, item: ExperienceItem) -> UUID | None:
    """The group that an item is of; None where the plan names none."""
    return plan.groups[item.group].group if 0 <= item.group < len(plan.groups) else None


def oldest_flight_of(state: RunState) -> int | None:
    """The oldest weight version that a rollout under way may have begun with; None if none is under way."""
    return min(
        (
            max(group.min_version, min(lease.held_version for lease in group.leases.values()))
            for group in state.groups.open.values()
            if group.sequence >= 0 and group.leases and not group.terminal
        ),
        default=None,
    )


def observed_at(positions: Mapping[Partition, int]) -> tuple[ObservedAt, ...]:
    """The positions a decision was made on, without the streams that are no truth."""
    return tuple(
        ObservedAt(partition.stream, partition.number, next_offset)
        for partition, next_offset in sorted(positions.items())
        if partition.stream != topics.HEARTBEATS
    )
