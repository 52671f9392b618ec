"""`Planner` chooses the experiences of the next batches from the run's state and a clock reading; the caller writes the
events it returns.

Decisions depend on state and time only. `StageBuffer` caches an index of the waiting experiences, and makes the state
note its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final
from uuid import UUID

from rftd.streams.events.registry import Event
from rftd.streams.folds.replay_buffer import BufferEntry, Changes
from rftd.streams.folds.spine import Status
from rftd.streams.log.topics import Partition
from rftd.streams.spec.schedule import has_windows, plan_ahead
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.batches import PlanningState, build_plan, rows_of
from rftd.workers.control.by_evaluation import last_plannable_step
from rftd.workers.control.hold import Decided, NoStage, Paused, StagePlanned
from rftd.workers.control.planner_holds import (
    Collects,
    EvalDecides,
    LastChance,
    NoTrainer,
    PlannedAhead,
    PlannerHold,
    StepsAgain,
    TooFewExperiences,
)
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import PolicyView, Retirement, StalenessPolicy
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.control.retiring import Judge, given_up_events, retired_events, unfit

_NO_IDS: Final = frozenset[UUID]()
"""Ids to skip in a policy's selection: none."""


def view_of(state: PlanningState, stage: StageSpec) -> PolicyView:
    """Returns the counts of the state from which the stage's policy decides."""
    spine = state.spine
    replay_buffer = state.replay_buffer
    version = max(spine.version, spine.first_version)
    newest = state.weights.newest(spine)
    published = max(newest.version, spine.first_version) if newest is not None else spine.first_version
    return PolicyView(
        version=version,
        first_version=spine.first_version,
        published_version=published,
        starting_version=None if has_windows(stage.synchronizer) else published,
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
    """Decides one experiment's retirements and plans; callers append its events, fold them, and call `decide` again."""

    def __init__(self, state: PlanningState, *, oldest_flight: Callable[[], int | None] | None = None) -> None:
        """Plans for `state`; `oldest_flight` returns the oldest version of an unfinished group, by default from the
        state's leases.
        """
        self._state = state
        self._oldest_flight = oldest_flight or (lambda: oldest_flight_of(state))
        self._stage_buffer = StageBuffer(state)
        self._judge = Judge()

    def decide(self, positions: Mapping[Partition, int], now_ns: int) -> Decided[PlannerHold]:
        """Returns the retirements and plans due now, and the hold against further plans.

        `positions` are the offsets up to which the state was folded; `now_ns` is raised to the newest recorded time, so
        a clock set back never prolongs a wait.
        """
        spine = self._state.spine
        # Before the test for a pause: the given-up experiences may be its very cause.
        if self._state.replay_buffer.given_up and (
            given_up := given_up_events(self._state, self._judge, positions, now_ns)
        ):
            return Decided(given_up)
        if spine.status is Status.PAUSED:
            return Decided((), Paused(spine.cause))
        if spine.status is not Status.RUNNING or spine.stage < 0 or spine.stage_completed:
            return Decided((), NoStage())
        # The machine's clock may have been set back since the last record: an ended cooldown stays ended.
        now_ns = max(now_ns, spine.recorded_ns)
        stage = spine.stage_spec()
        step = max(spine.planned, spine.first_version) + 1
        if step > spine.last_version:
            return self._retire_remaining(stage, positions, now_ns)
        if step > (through := last_plannable_step(spine)):
            return Decided((), EvalDecides(spine.planned))
        if not spine.caught_up:
            return Decided((), NoTrainer() if spine.generation < 0 else StepsAgain(spine.version + 1, spine.furthest))
        # Plans ahead of the trainer keep it busy; further ones would only fix early the contents that newer experiences
        # could fill.
        last = min(spine.version + plan_ahead(stage.policy), through)
        if step > last:
            return Decided((), PlannedAhead(spine.version + 1, spine.planned))
        if stage.kind == "train":
            steps = range(step, last + 1)
            plans = [
                build_plan(self._state, step_ahead, positions, now_ns, rows=rows_of(self._state, stage, step_ahead))
                for step_ahead in steps
            ]
            return Decided(plans, self._hold_after_plan(last))
        return self._plan_from_buffer(stage, step, last, positions, now_ns)

    def _hold_after_plan(self, step: int) -> PlannedAhead | EvalDecides | None:
        """Returns the hold after the plan of `step`, the last one allowed; None after the last plan of the stage."""
        spine = self._state.spine
        if last_plannable_step(spine) <= step < spine.last_version:
            return EvalDecides(step)
        return PlannedAhead(spine.version + 1, step) if step < spine.last_version else None

    def _plan_from_buffer(
        self, stage: StageSpec, step: int, last: int, positions: Mapping[Partition, int], now_ns: int
    ) -> Decided[PlannerHold]:
        """Returns the plans of steps `step` to `last`, as far as experiences suffice: equal to the plans of successive
        calls.

        Experiences unfit for the first step are retired before it, in the same turn: otherwise nothing would ever be
        planned when each turn brings more arrivals than a full buffer holds. Experiences that become stale for a later
        step are retired when that step is the first.
        """
        # Before `refresh`, which consumes the changes.
        retired = unfit(self._state, stage, self._judge, self._stage_buffer.changed_experiences())
        policy, buffer = self._stage_buffer.refresh(stage, now_ns)
        view = self._apply_retirements(retired, view_of(self._state, stage))
        chosen: Sequence[BufferEntry] = ()
        plans: list[Event] = []
        timed_out = self._read_timed_out(stage, now_ns) and not retired
        size = stage.experiences_per_step
        for next_step in range(step, last + 1):
            if chosen:  # from here on, the plan itself is the last reading of the clock
                timed_out = False
                view = view.after(chosen)
                self._stage_buffer.take(chosen)
            if evicted := [retirement for retirement in policy.evict(view, buffer) if retirement.entries]:
                if chosen:
                    return Decided(plans)
                timed_out = False
                view = self._apply_retirements(evicted, view)
                retired += evicted
            if not chosen:
                plans += retired_events(retired, positions, now_ns, waiting=buffer.size)
            if len(buffer) < size and not timed_out:
                return Decided(
                    plans, self._shortage_hold(stage, next_step, buffer, len(buffer), now_ns if plans else None)
                )
            if not timed_out and (waits := self._hold_for_unfinished(next_step, policy.waits_for(view))) is not None:
                return Decided(plans, waits)
            chosen = policy.select(view, buffer, size, _NO_IDS)
            if not chosen or (len(chosen) < size and not timed_out):
                return Decided(
                    plans, self._shortage_hold(stage, next_step, buffer, len(chosen), now_ns if plans else None)
                )
            incomplete = len(chosen) < size
            rows = rows_of(self._state, stage, next_step)
            plans.append(
                build_plan(self._state, next_step, positions, now_ns, chosen=chosen, rows=rows, incomplete=incomplete)
            )
            if stage.policy.max_uses != 1 and not stage.policy.cooldown_s:
                return Decided(plans)  # without a cooldown, its experiences may be in the next batch, too
        return Decided(plans, self._hold_after_plan(last))

    def _shortage_hold(
        self, stage: StageSpec, step: int, buffer: BufferIndex, have: int, decided_ns: int | None
    ) -> TooFewExperiences | None:
        """Returns the hold before the batch of `step` for lack of experiences; `decided_ns` is the time of events
        decided in this call, None without any.

        There is no hold if the experiences of these events cool down, and return to the buffer once folded.
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

    def _apply_retirements(self, retired: Sequence[Retirement], view: PolicyView) -> PolicyView:
        """Removes retired experiences from the stage buffer, and returns the view without them."""
        experiences = [experience for retirement in retired for experience in retirement.entries]
        if not experiences:
            return view
        self._stage_buffer.take(experiences)
        return view.without(experiences)

    def _hold_for_unfinished(self, step: int, version: int | None) -> LastChance | None:
        """Returns the hold before the batch of `step` if a group begun with `version` or older is unfinished; None
        otherwise.
        """
        if version is None:
            return None
        oldest = self._oldest_flight()
        return LastChance(step, oldest) if oldest is not None and oldest <= version else None

    def _read_timed_out(self, stage: StageSpec, now_ns: int) -> bool:
        """True if `max_read_timeout` has passed since the trainer began to wait for a batch."""
        return now_ns - self._state.spine.waits_since_ns >= stage.max_read_timeout_s * 1e9

    def _retire_remaining(
        self, stage: StageSpec, positions: Mapping[Partition, int], now_ns: int
    ) -> Decided[PlannerHold]:
        """Returns the retirements of experiences left after a stage's last plan, with the hold that ends the stage's
        planning.
        """
        replay_buffer = self._state.replay_buffer
        collects = stage.kind == "explore"
        remaining = [*replay_buffer.waiting.values(), *replay_buffer.cooling.values()]
        parts = [Retirement("collected" if collects else "stage_ended", remaining)] if remaining else ()
        return Decided(retired_events(parts, positions, now_ns), Collects() if collects else StagePlanned())


def oldest_flight_of(state: PlanningState) -> int | None:
    """Returns the oldest weight version with which an unfinished rollout may have begun; None without unfinished
    rollouts.
    """
    return min(
        (
            max(group.min_version, min(lease.held_version for lease in group.leases.values()))
            for group in state.groups.open.values()
            if group.sequence >= 0 and group.leases and not group.terminal
        ),
        default=None,
    )


class StageBuffer:
    """The current stage's policy, and an index of its experiences in the policy's order.

    The index is built from the replay buffer at the first `refresh` of a stage, and updated by the changes at later
    ones.
    """

    def __init__(self, state: PlanningState) -> None:
        self._state = state
        self._stage = -1
        """Number of the stage indexed; -1 before the first `refresh`."""
        self._policy: StalenessPolicy | None = None
        self._buffer: BufferIndex | None = None
        self._taken: list[BufferEntry] = []
        """Experiences taken out of the index since the last `refresh`, for decisions perhaps never written."""

    def refresh(self, stage: StageSpec, now_ns: int) -> tuple[StalenessPolicy, BufferIndex]:
        """Returns the current stage's policy and its index, updated with the replay buffer and the time `now_ns`.

        Consumes the changes noted by the state (`state.touched`), and puts back experiences taken for an unwritten
        decision.
        """
        state = self._state
        if self._policy is None or self._buffer is None or self._stage != state.spine.stage:
            self._policy = make_policy(stage.policy)
            self._stage = state.spine.stage
            experiences = chain(state.replay_buffer.waiting.values(), state.replay_buffer.cooling.values())
            self._buffer = BufferIndex(self._policy.order, make_priority(stage.policy.priority), experiences)
        else:
            self._buffer.change(self._changes_for_index())
        self._taken = []
        # From now on the state notes changes; None meant no reader, so folding a history costs nothing here.
        state.touched = {}
        self._buffer.awake(now_ns)
        return self._policy, self._buffer

    def changed_experiences(self) -> Iterator[BufferEntry]:
        """Yields the experiences to examine before `refresh`, consuming nothing.

        Without an index of this stage, all waiting experiences; otherwise those changed since the last `refresh`, and
        those taken since then without a written decision.
        """
        state = self._state
        if self._buffer is None or self._stage != state.spine.stage:
            yield from state.replay_buffer.waiting.values()
        else:
            yield from (experience for experience in self._changes_for_index().values() if experience is not None)

    def _changes_for_index(self) -> Changes:
        """Returns the changes since the last `refresh` by experience id; experiences taken for an unwritten decision
        return unchanged.
        """
        touched = self._state.touched or {}
        experiences = self._taken
        put_back = {id: experience for experience in experiences if (id := experience.member.experience) not in touched}
        return {**touched, **put_back} if put_back else touched

    def take(self, chosen: Sequence[BufferEntry]) -> None:
        """Removes experiences chosen for a batch from the index until the next `refresh`."""
        assert self._buffer is not None
        self._buffer.take(chosen)
        # The caller may fail to write its plans: experiences taken for them are put back at the next call of `refresh`.
        self._taken += chosen
