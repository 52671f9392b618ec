"""The experiences that no batch may hold: of groups that teach nothing, or given up; and the events that say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import numpy as np

from rftd.ops.errors import DataError
from rftd.streams.events.batch import (
    BatchAbandoned,
    BatchPlanned,
    ExperienceItem,
    ExperienceRetired,
    Uninformative,
)
from rftd.streams.events.registry import Event
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec
from rftd.workers.control.batches import observed_at
from rftd.workers.control.policies.policy import Retirement
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES, advantage_function

RETIRED_AT_ONCE: Final = 4096
"""Ids of one experience.retired: 16 bytes each, far below the limit of a record."""
UNINFORMATIVE: Final = "uninformative"


class Judge:
    """Finds the groups from which nothing can be learnt, by the advantage function of their stage.

    Only functions of ours with a threshold are asked.
    """

    def __init__(self) -> None:
        self._algorithm: AlgorithmSpec | None = None
        self._function: AdvantageFunction | None = None

    def idle(self, stage: StageSpec, entries: Iterable[BufferEntry]) -> Sequence[BufferEntry]:
        """The experiences of whole groups that teach nothing; groups of which some are gone stay."""
        function = self._of(stage.algorithm)
        if function is None:
            return ()
        groups: dict[UUID, list[BufferEntry]] = {}
        for entry in entries:
            # An experience with uses was judged when it arrived: its group was planned, so it taught something.
            if not entry.uses:
                groups.setdefault(entry.group.group, []).append(entry)
        found: list[BufferEntry] = []
        for members in groups.values():
            whole = len(members) == members[0].group_size
            if whole and not function.informative(_told(members)):
                found += members
        return found

    def reads_members(self, stage: StageSpec) -> bool:
        """True if what a group teaches is made of the payload of all its members, or may be: a third party's."""
        name = stage.algorithm.advantage
        return not ADVANTAGES.builtin(name) or bool(advantage_function(stage.algorithm).member_fields)

    def _of(self, algorithm: AlgorithmSpec) -> AdvantageFunction | None:
        if algorithm is not self._algorithm:
            # The daemon imports no third party's module to decide, so all groups of such a function are planned.
            chosen = ADVANTAGES.builtin(algorithm.advantage) and "std_threshold" in algorithm.advantage_args
            self._algorithm = algorithm
            self._function = advantage_function(algorithm) if chosen else None
        return self._function


def _told(members: list[BufferEntry]) -> ClosedGroup:
    return ClosedGroup(
        rewards=np.array([entry.member.reward for entry in members], np.float32),
        runs=np.array([entry.member.rollout for entry in members], np.int64),
    )


def unfit(state: RunState, stage: StageSpec, judge: Judge, fresh: Iterable[BufferEntry]) -> list[Retirement]:
    """The groups that no batch may hold, whenever it is formed.

    `fresh` is what the stage buffer has not taken in yet, so that each group is judged once.
    """
    minimum = min(stage.policy.min_group_members, stage.algorithm.repeat_times)
    replay_buffer = state.replay_buffer
    incomplete: list[BufferEntry] = []
    # The sizes that occur are few, so that no experience is looked at where every group is large enough.
    if any(size < minimum for size in replay_buffer.group_sizes):
        incomplete = [entry for entry in replay_buffer.waiting.values() if entry.group_size < minimum]
        fresh = (entry for entry in fresh if entry.group_size >= minimum)
    idle = judge.idle(stage, fresh)
    found = (Retirement("group_incomplete", incomplete), Retirement(UNINFORMATIVE, idle))
    return [part for part in found if part.entries]


def given_up_events(state: RunState, judge: Judge, positions: Mapping[Partition, int], now_ns: int) -> Sequence[Event]:
    """Retires what somebody says will never be read again; before that, the batches that cannot run are abandoned.

    Where what a group teaches is made of the payload of all its members, they go with it.
    """
    spine = state.spine
    replay_buffer = state.replay_buffer
    # Paused experiments too: an experiment may have paused because of the very experience that is given up.
    if spine.status not in (Status.RUNNING, Status.PAUSED) or spine.stage < 0 or spine.stage_completed:
        return ()
    given_up = replay_buffer.given_up
    places = (replay_buffer.waiting, replay_buffer.cooling)
    entries = [entry for id in given_up for place in places if (entry := place.get(id)) is not None]
    # A batch that any generation of the trainer executed stays: its weights exist, and no other batch made them.
    open_plans = {step: plan.event for step, plan in spine.plans.items() if step > spine.furthest}
    groups: set[UUID | None] = {entry.group.group for entry in entries}
    for plan in open_plans.values():
        groups |= {_group_of(plan, item) for item in plan.experiences if item.experience in given_up}
    whole = judge.reads_members(spine.stage_spec())
    held = [
        step
        for step, plan in open_plans.items()
        for item in plan.experiences
        if item.experience in given_up or (whole and _group_of(plan, item) in groups)
    ]
    if held:
        # Steps follow one another, so all later batches go as well: the last first, so that after a crash between the
        # events the plans that are left have no gap. Their other items return to the buffer; what was given up is
        # retired in a later turn, when no plan holds it any more.
        return [
            _abandoned(open_plans[step], held, given_up)
            for step in sorted(open_plans, reverse=True)
            if step >= min(held)
        ]
    if whole:
        entries = [entry for place in places for entry in place.values() if entry.group.group in groups]
    now_ns = max(now_ns, spine.decided_at_ns)
    return retired_events([Retirement("given_up", entries)], positions, now_ns) if entries else ()


def retired_events(
    parts: Sequence[Retirement], positions: Mapping[Partition, int], now_ns: int, *, waiting: int = 0
) -> Sequence[ExperienceRetired]:
    """The events that retire all parts: at least one for each reason and number of uses, each of bounded size.

    `waiting`: experiences that wait for a batch and stay.
    """
    return [
        ExperienceRetired(
            experiences=tuple(entry.member.experience for entry in entries[start : start + RETIRED_AT_ONCE]),
            reason=reason,
            uses=uses,
            decided_at_ns=now_ns,
            observed=observed_at(positions),
            uninformative=_told_of(entries, waiting) if reason == UNINFORMATIVE else None,
        )
        for (reason, uses), entries in by_uses(parts).items()
        for start in range(0, len(entries), RETIRED_AT_ONCE)
    ]


def _told_of(entries: Sequence[BufferEntry], waiting: int) -> Uninformative:
    rewards = [entry.member.reward for entry in entries]
    return Uninformative(min(rewards), max(rewards), waiting)


def by_uses(parts: Iterable[Retirement]) -> dict[tuple[str, int], list[BufferEntry]]:
    """The experiences of all parts by reason and number of uses, which one event says once for all of its own."""
    found: dict[tuple[str, int], list[BufferEntry]] = {}
    for part in parts:
        for entry in part.entries:
            found.setdefault((part.reason, entry.uses), []).append(entry)
    return found


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
