"""The advantage of an experience in the training step planned last with it, computed from the log as the trainer
computed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from rftd.ops.errors import DataError, NotFoundError, RftdError
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.topics import Partition
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.by_taskset import stage_advantages
from rftd.workers.training.closed_groups import after_pipeline, closed_group, of_rollouts

if TYPE_CHECKING:
    from rftd.daemon.text.transcript import ReadRollout, TextTools
    from rftd.storage.queries.rollout_rows import PlanPlace
    from rftd.streams.events.batch import GroupRef
    from rftd.streams.spec.spec import StageSpec
    from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction

_MAX_GROUPS: Final = 1024
"""Largest batch, in groups, whose advantages are computed for a window of tokens."""
_MAX_MEMBERS: Final = 1024
"""Maximum number of payloads read for advantage functions of lengths, log-probabilities or parts of the reward."""


class StepAdvantages(NamedTuple):
    """Advantages of a rollout in one training step, with a reason or remark."""

    advantages: tuple[float, ...]
    """One advantage, or one for each turn of the rollout; empty if unknown."""
    note: str = ""
    """Reason for missing advantages, or a remark on their meaning; empty without one."""


async def advantages_of_rollout(tools: TextTools, rollout: ReadRollout, plan_place: PlanPlace | None) -> StepAdvantages:
    """Returns the advantages of an experience in the training step planned last with it, or the reason for none.

    `plan_place` is the log position of the step's plan; None if no step was planned with the experience.
    """
    stage = tools.stage(rollout.row.stage)
    if stage is None or tools.origin is None:
        return StepAdvantages((), "no advantages: the log keeps no specification of this experiment")
    if plan_place is None:
        return StepAdvantages((), "no advantages: no step was planned with this experience")
    if rollout.row.rollout < stage.algorithm.greedy_rollouts:
        return StepAdvantages((), "no advantages: a greedy rollout, only the baseline of its group")
    try:
        function = stage_advantages(stage)
        # Not by the protocol: its module is one of those that a trainer imports with torch.
        if hasattr(function, "token_advantages"):
            needs_models = f"{stage.algorithm.advantage} computes each token's by the trainer's models: replay the step"
            return StepAdvantages((), f"no advantages: {needs_models}")
        closed = await _groups_needed(tools, plan_place, UUID(rollout.row.group), function)
        members = await _read_members(tools, closed) if function.member_fields else {}
        return await asyncio.to_thread(
            _compute_advantages, function, closed, members, stage, tools.origin.spec.seed, rollout
        )
    except RftdError as error:
        return StepAdvantages((), f"no advantages: {error.what}")


def _compute_advantages(
    function: AdvantageFunction,
    closed: Sequence[GroupClosed],
    members: dict[UUID, ExperienceProduced],
    stage: StageSpec,
    seed: int,
    rollout: ReadRollout,
) -> StepAdvantages:
    """Computes the advantages of the needed groups, and returns those of the rollout."""
    greedy = stage.algorithm.greedy_rollouts
    views = [closed_group(event, function.member_fields, members=members, greedy=greedy, seed=seed) for event in closed]
    number = [str(event.group) for event in closed].index(rollout.row.group)
    by_rollout = of_rollouts(views[number], function.advantages(views)[number])
    penalty = stage.algorithm.kl_penalty
    note = "" if penalty == "none" else f"advantages without the KL penalty {penalty}, which needs the reference model"
    return StepAdvantages(tuple(by_rollout.get(rollout.row.rollout, ())), note)


async def _groups_needed(
    tools: TextTools, plan_place: PlanPlace, group: UUID, function: AdvantageFunction
) -> list[GroupClosed]:
    """Returns the closed groups needed: for functions of single groups only the experience's own, else all of the
    batch.

    Raises NotFoundError, DataError.
    """
    partition = Partition(topics.EXPERIMENTS, plan_place.partition)
    records = await tools.log.read(partition, plan_place.offset, max_records=1)
    if not records or records[0].offset != plan_place.offset:
        raise NotFoundError("the log no longer has the plan of the step")
    plan = decode_as(records[0], BatchPlanned)
    groups = [ref for ref in plan.groups if ref.group == group] if isinstance(function, OneGroup) else plan.groups
    if group not in {ref.group for ref in groups}:
        raise DataError("the plan of the step names no group of this experience")
    if len(groups) > _MAX_GROUPS:
        raise DataError(f"the batch has {len(groups)} groups, more than {_MAX_GROUPS}: replay the step")
    return [await _read_closed_group(tools, ref) for ref in groups]


async def _read_closed_group(tools: TextTools, ref: GroupRef) -> GroupClosed:
    """Reads the close of a group from the log. Raises NotFoundError."""
    records = await tools.log.read(Partition(topics.TASKS, ref.partition), ref.offset, max_records=1)
    if not records or records[0].offset != ref.offset:
        raise NotFoundError(f"the log no longer has the close of group {ref.group}")
    return decode_as(records[0], GroupClosed)


async def _read_members(tools: TextTools, closed: Sequence[GroupClosed]) -> dict[UUID, ExperienceProduced]:
    """Reads the payloads of all members. Raises DataError for too many, NotFoundError for a missing one."""
    count = sum(len(event.members) for event in closed)
    if count > _MAX_MEMBERS:
        raise DataError(f"the batch's groups have {count} members, more than {_MAX_MEMBERS}: replay the step")
    members: dict[UUID, ExperienceProduced] = {}
    for event in closed:
        verdicts = event.verdicts or (None,) * len(event.members)
        for member, verdict in zip(event.members, verdicts, strict=True):
            produced = await tools.loaded(await tools.record(member.partition, member.offset))
            members[member.experience] = produced if verdict is None else after_pipeline(produced, verdict)
    return members
