"""The course of events in virtual time: rollouts end, groups close, batches are trained, weights arrive."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Final
from uuid import UUID

import msgspec
import numpy as np

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.task import Member
from rftd.streams.events.weights import WeightsRequested
from rftd.streams.spec.schedule import has_windows, publish_due
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.holds import WindowHold
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.simulator.clerk import Clerk
from rftd.workers.control.simulator.outcome import SimulationOutcome, Step, Window, outcome_of
from rftd.workers.control.simulator.system import LongTail, SimulatedUpdates, System
from rftd.workers.control.simulator.unit import Flights, SimulatedGroup, Unit
from rftd.workers.control.windows import Ask, Begin

_DURATIONS_PER_DRAW: Final = 4096
"""Number of durations drawn by one call."""
_TOKENS_PER_MEDIAN: Final = 1000
"""Tokens of a simulated rollout of median duration."""


class Simulation:
    """A simulated stage in virtual seconds. `run` may be called once."""

    def __init__(self, stage: StageSpec, system: System, lengths: LongTail, *, steps: int, seed: int) -> None:
        """Prepares a run of `steps` training steps, the first ones of a longer stage: explorers never run dry at an
        end.
        """
        ahead = stage.policy.max_staleness_versions + stage.policy.max_inflight_batches + 2
        self._stage = msgspec.structs.replace(stage, total_steps=steps + ahead)
        self._system = system
        self._lengths = lengths
        self._steps = steps
        self._random = np.random.default_rng(seed)
        self._flights = Flights()
        self._clerk = Clerk(self._stage, self._flights)
        credits = system.slots + stage.algorithm.repeat_times
        self._units = [Unit(credits, system.slots) for _ in range(system.rollout_units)]
        self._published = {0}
        self._newest = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._now_s = 0.0
        self._part = stage.rollout.lease_rollouts or stage.algorithm.repeat_times
        self._to_lease: deque[tuple[SimulatedGroup, range]] = deque()
        """Parts of open groups, for one lease each, still without a unit."""
        self._groups = self._open_groups = self._inflight = self._running = 0
        self._open_request: WeightsRequested | None = None
        """Request not yet answered by the trainer."""
        self._busy_s = self._trained_s = 0.0
        self._step_began_s: float | None = None
        self._drawn: list[float] = []
        self._durations: list[float] = []
        self._began_with: list[int] = []
        """Weight version at the beginning of each experience: the basis of its staleness, instead of the plan."""
        self._window = Window()

    def run(self) -> SimulationOutcome:
        """Returns the outcome of the stage. Raises WorkError if policy and sizes bring everything to a standstill."""
        self._dispatch()
        while self._clerk.version < self._steps:
            if not self._events:
                raise self._clerk.stuck_error(self._now_s)
            at_s, _, event = heapq.heappop(self._events)
            # Before the event: this many slots were busy since the one before.
            self._busy_s += self._running * (at_s - self._now_s)
            self._now_s = at_s
            event()
        return outcome_of(self._window, self._stage, self._system, self._lengths, self._clerk.state.replay_buffer.books)

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        """Schedules an event at a second of virtual time."""
        self._order += 1
        # The running number orders events of the same time by creation: results do not depend on a heap's sorting.
        heapq.heappush(self._events, (at_s, self._order, event))

    # Rollouts

    def _dispatch(self) -> None:
        """Opens the groups admitted by the policy with available weights, and leases them while a unit has room."""
        if not self._give_out() or self._most_credits().credits < self._part:
            return
        view = self._clerk.view(self._inflight)
        for begin in islice(self._beginnings(view), self._clerk.admit(view)):
            if isinstance(begin, Ask):
                self._open_request = self._clerk.ask(begin, self._now_s)
                self._answer()
                return
            if not isinstance(begin, Begin):
                return
            pinned = begin.window >= 0
            self._open(SimulatedGroup(self._groups, self._stage.algorithm.repeat_times, begin.version, pinned))
            if pinned:
                self._clerk.record_begin(begin)
            if not self._give_out():
                return

    def _beginnings(self, view: PolicyView) -> Iterator[Begin | Ask | WindowHold]:
        """Yields the beginnings of the next groups; all on version 0 for a schedule without windows."""
        if not has_windows(self._stage.synchronizer):
            return repeat(Begin(0))
        return self._clerk.beginnings(view, self._open_groups)

    def _open(self, group: SimulatedGroup) -> None:
        """Opens a group, and queues its parts for leases."""
        self._groups += 1
        self._open_groups += 1
        self._inflight += group.repeat_times
        indices = range(group.repeat_times)
        self._to_lease.extend(
            (group, indices[start : start + self._part]) for start in range(0, group.repeat_times, self._part)
        )

    def _give_out(self) -> bool:
        """Assigns each part of the open groups to the unit with the most room; False if a part finds no room."""
        while self._to_lease:
            group, indices = self._to_lease[0]
            unit = self._most_credits()
            if unit.credits < len(indices):
                return False
            self._to_lease.popleft()
            unit.credits -= len(indices)
            self._flights.lease(group, unit.version)
            unit.queue.extend((group, index) for index in indices)
            self._begin(unit)
        return True

    def _most_credits(self) -> Unit:
        """Returns the unit with room for the most rollouts."""
        return max(self._units, key=_credits)

    def _begin(self, unit: Unit) -> None:
        """Begins rollouts queued at the unit, as far as free slots and weights allow."""
        while unit.queue and unit.free:
            group, index = unit.queue[0]
            if not unit.may_begin(group):
                # A unit takes the weights of a window only when empty: its running rollouts are pinned to others.
                if unit.running or unit.draining or not group.pinned:
                    return
                self._take_weights(unit, group.min_version)
            unit.queue.popleft()
            unit.free -= 1
            unit.running += 1
            self._running += 1
            self._roll_out(unit, group, index)

    def _roll_out(self, unit: Unit, group: SimulatedGroup, index: int) -> None:
        """Schedules the end of a rollout of a drawn duration, later if the unit stands still meanwhile."""
        if not self._drawn:
            self._drawn = self._lengths.draw(self._random, _DURATIONS_PER_DRAW).tolist()
        duration_s = self._drawn.pop()
        version = unit.version
        end_s = max(self._now_s, unit.ready_s) + duration_s

        def ended() -> None:
            # The end was computed at the beginning; the unit may have stood still since, and an event in the heap
            # cannot be moved.
            if end_s + (late_s := unit.stood_still_s - stood_still_s) > self._now_s:
                self._at(end_s + late_s, ended)  # the unit stood still meanwhile
                return
            self._end_rollout(unit, group, index, version, duration_s)

        stood_still_s = unit.stood_still_s
        self._at(end_s, ended)

    def _end_rollout(self, unit: Unit, group: SimulatedGroup, index: int, version: int, duration_s: float) -> None:
        """Records a finished rollout, closes its group after the last one, and starts the work that became possible."""
        number = len(self._durations)
        self._durations.append(duration_s)
        self._began_with.append(version)
        tokens = max(1, round(duration_s / self._lengths.median_s * _TOKENS_PER_MEDIAN))
        member = Member(UUID(int=number), index, 0, number, 0.0, 0.0, tokens, version, unit.version)
        group.members.append(member)
        self._free_slot(unit)
        if len(group.members) == group.repeat_times:
            self._inflight -= group.repeat_times
            self._open_groups -= 1
            self._flights.land(group)
            self._window.produced += [self._durations[member_ended.experience.int] for member_ended in group.members]
            self._clerk.close(group.number, group.members, self._now_s)
            self._decide()
        self._begin(unit)
        self._dispatch()

    def _free_slot(self, unit: Unit) -> None:
        """Frees a slot of the unit, and loads new weights into a unit drained by now."""
        unit.running -= 1
        unit.free += 1
        unit.credits += 1
        self._running -= 1
        if unit.draining and not unit.running:
            self._load_if_drained(unit)

    # Training

    def _decide(self) -> None:
        """Writes the plans due now, and starts the trainer's next step."""
        if self._clerk.decide(self._now_s):
            wait_s = self._stage.max_read_timeout_s
            # Without another event an incomplete batch after its time-out would never be examined.
            self._at(self._now_s + wait_s, self._decide_and_dispatch)
        if self._step_began_s is None and (plan := self._clerk.next_plan()) is not None:
            self._step_began_s = self._now_s
            self._at(self._now_s + self._system.step_s, lambda: self._end_step(plan))

    def _decide_and_dispatch(self) -> None:
        """Plans and leases again after a time-out for incomplete batches."""
        self._decide()
        self._dispatch()

    def _end_step(self, plan: BatchPlanned) -> None:
        """Records a finished training step, publishes the weights if due, and lets trainer and explorers continue."""
        duration_s = self._system.step_s
        self._trained_s += duration_s
        self._step_began_s = None
        self._clerk.complete(plan, duration_s, self._now_s)
        self._window.note(
            Step(
                step=plan.step,
                end_s=self._now_s,
                busy_slots_s=self._busy_s,
                training_s=self._trained_s,
                waiting=len(self._clerk.state.replay_buffer.waiting),
            ),
            staleness_versions=[
                plan.step - 1 - self._began_with[experience.experience.int] for experience in plan.experiences
            ],
            lengths_s=[
                self._durations[experience.experience.int] for experience in plan.experiences if experience.use == 1
            ],
        )
        if publish_due(self._stage, plan.step):
            if self._system.publish_s:
                self._at(self._now_s + self._system.publish_s, lambda: self._receive_weights(plan.step))
            else:
                self._receive_weights(plan.step)
        self._answer()
        self._decide()
        self._dispatch()

    # Weights

    def _answer(self) -> None:
        """Answers the explorers' request with the trainer's current version; does nothing without a request, or during
        a step.
        """
        request = self._open_request
        version = self._clerk.version
        if request is None or self._step_began_s is not None:
            return
        self._open_request = None

        def deliver() -> None:
            if version not in self._published:
                self._receive_weights(version)
            self._clerk.answer(request, version, self._now_s)
            self._dispatch()

        self._at(self._now_s + (0.0 if version in self._published else self._system.publish_s), deliver)

    def _receive_weights(self, version: int) -> None:
        """Publishes the arrived weights of `version`, and lets units load them."""
        self._published.add(version)
        self._clerk.publish(version, self._now_s)
        self._newest = max(self._newest, version)
        for unit in self._units:
            if has_windows(self._stage.synchronizer):
                pass  # units load them when a rollout needs them
            elif unit.running if self._system.updates is SimulatedUpdates.DRAIN_EACH else self._drains_all:
                unit.draining = True
            else:
                self._take_weights(unit, self._newest)
            self._begin(unit)
        self._dispatch()

    @property
    def _drains_all(self) -> bool:
        """True while units wait for the last rollout of any unit before loading weights."""
        return self._system.updates is SimulatedUpdates.DRAIN_ALL and self._running > 0

    def _load_if_drained(self, unit: Unit) -> None:
        """Loads the newest weights into a unit without running rollouts; with `drain_all`, into all units once none has
        any.
        """
        together = self._system.updates is SimulatedUpdates.DRAIN_ALL
        if together and self._running:
            return
        for drained_unit in self._units if together else (unit,):
            drained_unit.draining = False
            self._take_weights(drained_unit, self._newest)
            self._begin(drained_unit)

    def _take_weights(self, unit: Unit, version: int) -> None:
        """Loads a version into a unit, which stands still for `swap_s` seconds."""
        unit.version = version
        if self._system.swap_s:
            unit.stand_still(self._now_s, self._system.swap_s)


def _credits(unit: Unit) -> int:
    """Returns the number of rollouts that a unit can still take."""
    return unit.credits
