"""A closed group of the log, as the input of an advantage function."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec
import numpy as np

from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed, MemberVerdict
from rftd.streams.log.arrays import Array
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.training.run_steps import StepArrays, steps_of, whole_run


def closed_group(
    event: GroupClosed,
    fields: Collection[MemberField],
    *,
    members: Mapping[UUID, ExperienceProduced],
    greedy: int,
    seed: int,
) -> ClosedGroup:
    """Returns a group as the input of an advantage function; its first `greedy` rollouts are a baseline.

    `members` are needed only for the `fields` read by the function. Random draws follow from the experiment's seed and
    the group's position, so a replay draws the same.
    """
    # From the group's position, not from the plan: a replay, and a later batch reusing the group, draw the same.
    group_seed = derive(NAMESPACE, "advantages", seed, event.stage, event.sequence).int
    trained = event.trained_members
    rollouts = [member.rollout for member in trained]
    # The usual case: the close itself has everything needed, and no member's record is decoded.
    if not fields:
        return _closed_group_of(
            rollouts, [member.reward for member in trained], greedy=greedy, seed=group_seed, taskset=event.taskset
        )
    indexed: list[tuple[int, int, StepArrays]] = []
    owners: list[ExperienceProduced] = []
    for rollout, produced in zip(rollouts, [members[member.experience] for member in trained], strict=True):
        steps_or_run = list(steps_of(produced)) if "steps" in fields else [whole_run(produced)]
        indexed += [(rollout, number, arrays) for number, arrays in enumerate(steps_or_run)]
        owners += [produced] * len(steps_or_run)
    run_steps = [arrays.step for _, _, arrays in indexed]
    return _closed_group_of(
        [run for run, _, _ in indexed],
        [step.reward for step in run_steps],
        greedy=greedy,
        seed=group_seed,
        taskset=event.taskset,
        steps=np.array([number for _, number, _ in indexed], np.int64) if "steps" in fields else None,
        mean_logprobs=np.array([arrays.mean_logprob for _, _, arrays in indexed], np.float32),
        parts=_reward_parts([produced.metrics for produced in owners]) if "parts" in fields else {},
        lengths=np.array([np.count_nonzero(arrays.loss_mask) for _, _, arrays in indexed], np.int64),
        step_rewards=np.array([math.nan if s.step_reward is None else s.step_reward for s in run_steps], np.float32),
        states=tuple(step.state for step in run_steps),
        roles=tuple(step.role for step in run_steps),
    )


def after_pipeline(produced: ExperienceProduced, verdict: MemberVerdict) -> ExperienceProduced:
    """Returns an experience with the reward and the mask of the experience pipeline's verdict.

    A changed reward changes the rewards of all steps by the same amount.
    """
    change = verdict.reward - produced.reward
    steps = tuple(msgspec.structs.replace(step, reward=step.reward + change) for step in produced.steps)
    mask = produced.loss_mask
    if verdict.masked:
        mask = Array.of(np.zeros(len(mask), np.uint8), "u1")
    return msgspec.structs.replace(produced, reward=verdict.reward, steps=steps, loss_mask=mask)


def _reward_parts(of_members: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """Returns the named parts of the rewards, each over all entries; NaN for a member without the part."""
    names = sorted({name for parts in of_members for name in parts})
    return {name: np.array([parts.get(name, math.nan) for parts in of_members], np.float32) for name in names}


def _closed_group_of(runs: list[int], rewards: list[float], *, greedy: int, seed: int, **more: object) -> ClosedGroup:
    """Returns the input of an advantage function from rollout numbers and rewards, with further fields."""
    run_numbers = np.array(runs, np.int64)
    return ClosedGroup(
        rewards=np.array(rewards, np.float32),
        runs=run_numbers,
        greedy=run_numbers < greedy if greedy else None,
        seed=seed,
        **more,  # type: ignore[arg-type]
    )


def of_rollouts(view: ClosedGroup, per_entry: Floats) -> dict[int, list[float]]:
    """Splits numbers per entry by rollout: one number for each step of a rollout, or one for all its steps."""
    by_rollout: dict[int, list[float]] = {}
    for rollout, number in zip(view.run.tolist(), np.asarray(per_entry).tolist(), strict=True):
        by_rollout.setdefault(rollout, []).append(number)
    return by_rollout
