"""Retirement of experiences that no batch may use: those of groups without a learning signal, and those given up."""

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
from rftd.streams.folds.spine import Status
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec
from rftd.workers.control.batches import PlanningState, observed_at
from rftd.workers.control.policies.policy import Retirement
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.by_taskset import stage_advantages
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES, advantage_function

MAX_RETIRED_IDS: Final = 4096
"""Maximum number of ids in one experience.retired: at 16 bytes each, far below the limit of a record."""
UNINFORMATIVE: Final = "uninformative"
"""Reason for retiring a group without a learning signal."""


FILTERED_BY: Final = "filtered by "
"""Beginning of the reason for retiring an experience removed by an operator of the experience pipeline."""
_WITHOUT_BATCH: Final = (UNINFORMATIVE, FILTERED_BY)


class Judge:
    """Finds groups without a learning signal, by the advantage function of their stage.

    Only built-in functions with a threshold (`std_threshold`) are used. Each group is judged once, on arrival.
    """

    def __init__(self) -> None:
        """Begins without an advantage function; the first stage judged selects it."""
        self._algorithm: AlgorithmSpec | None = None
        self._function: AdvantageFunction | None = None

    def idle(self, stage: StageSpec, experiences: Iterable[BufferEntry]) -> Sequence[BufferEntry]:
        """Returns the experiences of complete groups without a learning signal; groups with missing members are not
        judged.
        """
        function = self._judging_function(stage.algorithm)
        if function is None:
            return ()
        groups: dict[UUID, list[BufferEntry]] = {}
        for experience in experiences:
            # An experience with uses was judged on arrival: its group was planned, so it had a signal.
            if not experience.uses:
                groups.setdefault(experience.group.group, []).append(experience)
        uninformative: list[BufferEntry] = []
        for members in groups.values():
            whole = len(members) == members[0].group_size
            if whole and not function.informative(_closed_group(members)):
                uninformative += members
        return uninformative

    def reads_members(self, stage: StageSpec) -> bool:
        """True if the stage's advantages may need the payloads of all members of a group; always for third-party
        functions.
        """
        name = stage.algorithm.advantage
        return not ADVANTAGES.builtin(name) or bool(stage_advantages(stage).member_fields)

    def _judging_function(self, algorithm: AlgorithmSpec) -> AdvantageFunction | None:
        """Returns the advantage function that judges the stage's groups; None if none can without its module."""
        if algorithm is not self._algorithm:
            # The daemon imports no third party's module to decide, so all groups of such a function are planned.
            judged = ADVANTAGES.builtin(algorithm.advantage) and "std_threshold" in algorithm.advantage_args
            self._algorithm = algorithm
            self._function = advantage_function(algorithm) if judged else None
        return self._function


def _closed_group(members: list[BufferEntry]) -> ClosedGroup:
    """Returns the rewards and rollout numbers of a group, for an advantage function."""
    return ClosedGroup(
        rewards=np.array([experience.member.reward for experience in members], np.float32),
        runs=np.array([experience.member.rollout for experience in members], np.int64),
    )


def unfit(state: PlanningState, stage: StageSpec, judge: Judge, fresh: Iterable[BufferEntry]) -> list[Retirement]:
    """Returns the groups that no batch may use: with too few members, or without a learning signal.

    `fresh` are the experiences new to the stage's buffer, so that each group is judged once.
    """
    minimum = min(stage.policy.min_group_members, stage.algorithm.repeat_times)
    replay_buffer = state.replay_buffer
    filtered: Sequence[Retirement] = ()
    if stage.pipeline:
        fresh = list(fresh)
        filtered = _filtered(stage, fresh)
        fresh = [experience for experience in fresh if experience.dropped_by < 0]
    incomplete: list[BufferEntry] = []
    # Few sizes occur, so no experience is looked at while every group is large enough.
    if any(size < minimum for size in replay_buffer.group_sizes):
        incomplete = [
            experience
            for experience in replay_buffer.waiting.values()
            if experience.group_size < minimum and experience.dropped_by < 0
        ]
        fresh = (experience for experience in fresh if experience.group_size >= minimum)
    idle = judge.idle(stage, fresh)
    retirements = (*filtered, Retirement("group_incomplete", incomplete), Retirement(UNINFORMATIVE, idle))
    return [retirement for retirement in retirements if retirement.entries]


def _filtered(stage: StageSpec, experiences: Iterable[BufferEntry]) -> list[Retirement]:
    """Returns the experiences removed by the experience pipeline, by operator."""
    dropped: dict[int, list[BufferEntry]] = {}
    for experience in experiences:
        if experience.dropped_by >= 0:
            dropped.setdefault(experience.dropped_by, []).append(experience)
    names = dict(enumerate(operator.name for operator in stage.pipeline))
    return [
        Retirement(f"{FILTERED_BY}{names.get(index, index)}", entries) for index, entries in sorted(dropped.items())
    ]


def given_up_events(
    state: PlanningState, judge: Judge, positions: Mapping[Partition, int], now_ns: int
) -> Sequence[Event]:
    """Returns the events retiring experiences with payloads an operator declared lost, and abandoning untrained batches
    with them.

    If advantages need the payloads of all members, the complete group is retired.
    """
    spine = state.spine
    replay_buffer = state.replay_buffer
    # Paused experiments too: the pause may be due to the very experience given up.
    if spine.status not in (Status.RUNNING, Status.PAUSED) or spine.stage < 0 or spine.stage_completed:
        return ()
    given_up = replay_buffer.given_up
    buffers = (replay_buffer.waiting, replay_buffer.cooling)
    experiences = [experience for id in given_up for buffer in buffers if (experience := buffer.get(id)) is not None]
    # A batch executed by any generation of the trainer stays: its weights exist, and no other batch made them.
    open_plans = {step: plan.event for step, plan in spine.plans.items() if step > spine.furthest}
    groups: set[UUID | None] = {experience.group.group for experience in experiences}
    for plan in open_plans.values():
        groups |= {_group_of(plan, planned) for planned in plan.experiences if planned.experience in given_up}
    whole = judge.reads_members(spine.stage_spec())
    blocked_steps = [
        step
        for step, plan in open_plans.items()
        for planned in plan.experiences
        if planned.experience in given_up or (whole and _group_of(plan, planned) in groups)
    ]
    if blocked_steps:
        # Steps are consecutive, so all later batches go as well: the last first, so that the plans left by a crash
        # between the events have no gap. Their other experiences return to the buffer; the given-up ones are retired in
        # a later turn, when no plan holds them any more.
        return [
            _abandonment(open_plans[step], blocked_steps, given_up)
            for step in sorted(open_plans, reverse=True)
            if step >= min(blocked_steps)
        ]
    if whole:
        experiences = [
            experience for buffer in buffers for experience in buffer.values() if experience.group.group in groups
        ]
    now_ns = max(now_ns, spine.decided_at_ns)
    return retired_events([Retirement("given_up", experiences)], positions, now_ns) if experiences else ()


def retired_events(
    retirements: Sequence[Retirement], positions: Mapping[Partition, int], now_ns: int, *, waiting: int = 0
) -> Sequence[ExperienceRetired]:
    """Returns the events of the retirements, one or more for each reason and number of uses, each within a record's
    limit.

    `waiting` is the number of experiences still waiting for a batch.
    """
    return [
        ExperienceRetired(
            experiences=tuple(
                experience.member.experience for experience in experiences[start : start + MAX_RETIRED_IDS]
            ),
            reason=reason,
            uses=uses,
            decided_at_ns=now_ns,
            observed=observed_at(positions),
            uninformative=_reward_range(experiences, waiting) if reason.startswith(_WITHOUT_BATCH) else None,
        )
        for (reason, uses), experiences in by_uses(retirements).items()
        for start in range(0, len(experiences), MAX_RETIRED_IDS)
    ]


def _reward_range(experiences: Sequence[BufferEntry], waiting: int) -> Uninformative:
    """Returns the lowest and highest reward of uninformative experiences, in the form recorded by their event."""
    rewards = [experience.member.reward for experience in experiences]
    return Uninformative(min(rewards), max(rewards), waiting)


def by_uses(retirements: Iterable[Retirement]) -> dict[tuple[str, int], list[BufferEntry]]:
    """Returns the experiences of all retirements by reason and number of uses, the two facts shared within an event."""
    groups: dict[tuple[str, int], list[BufferEntry]] = {}
    for retirement in retirements:
        for experience in retirement.entries:
            groups.setdefault((retirement.reason, experience.uses), []).append(experience)
    return groups


def _abandonment(plan: BatchPlanned, blocked_steps: Collection[int], given_up: Mapping[UUID, str]) -> BatchAbandoned:
    """Builds the batch.abandoned of a plan with given-up experiences, or of a plan after such a plan."""
    experience = next((planned.experience for planned in plan.experiences if planned.experience in given_up), None)
    reason = f"the batch of step {min(blocked_steps)} before it cannot run"
    if experience is not None:
        reason = f"experience {experience} was given up" + (f": {given_up[experience]}" if given_up[experience] else "")
    elif plan.step in blocked_steps:
        reason = "it needs a group with an experience that was given up"
    return BatchAbandoned(batch=plan.batch, step=plan.step, code=DataError.code, reason=reason)


def _group_of(plan: BatchPlanned, planned: ExperienceItem) -> UUID | None:
    """Returns the group of a planned experience; None if the plan names none."""
    return plan.groups[planned.group].group if 0 <= planned.group < len(plan.groups) else None
