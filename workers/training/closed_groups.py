"""A closed group of the log as an advantage function sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import numpy as np

from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
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
    """The view of one group; `members` are looked at only for `fields`, and the first `greedy` rollouts are a baseline.

    What is drawn by chance follows from the experiment's seed and the group's place, as sampling does (rule 14).
    """
    # From the group's place, not from the plan: a replay, and a later batch that uses the group again, draw the same.
    own = derive(NAMESPACE, "advantages", seed, event.stage, event.sequence).int
    rollouts = [member.rollout for member in event.members]
    # The usual case: the close itself has all that is asked for, and no member's record is decoded.
    if not fields:
        return _view(rollouts, [member.reward for member in event.members], greedy=greedy, seed=own)
    found: list[tuple[int, int, StepArrays]] = []
    owners: list[ExperienceProduced] = []
    for rollout, produced in zip(rollouts, [members[member.experience] for member in event.members], strict=True):
        steps_or_run = list(steps_of(produced)) if "steps" in fields else [whole_run(produced)]
        found += [(rollout, number, part) for number, part in enumerate(steps_or_run)]
        owners += [produced] * len(steps_or_run)
    steps = [part.step for _, _, part in found]
    return _view(
        [run for run, _, _ in found],
        [step.reward for step in steps],
        greedy=greedy,
        seed=own,
        steps=np.array([number for _, number, _ in found], np.int64) if "steps" in fields else None,
        mean_logprobs=np.array([part.mean_logprob for _, _, part in found], np.float32),
        parts=_parts([produced.metrics for produced in owners]) if "parts" in fields else {},
        lengths=np.array([np.count_nonzero(part.loss_mask) for _, _, part in found], np.int64),
        step_rewards=np.array([math.nan if s.step_reward is None else s.step_reward for s in steps], np.float32),
        states=tuple(step.state for step in steps),
    )


def _parts(of_members: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """The named parts of the rewards, each for all entries; NaN where a member has none of that name."""
    names = sorted({name for parts in of_members for name in parts})
    return {name: np.array([parts.get(name, math.nan) for parts in of_members], np.float32) for name in names}


def _view(runs: list[int], rewards: list[float], *, greedy: int, seed: int, **more: object) -> ClosedGroup:
    which = np.array(runs, np.int64)
    return ClosedGroup(
        rewards=np.array(rewards, np.float32),
        runs=which,
        greedy=which < greedy if greedy else None,
        seed=seed,
        **more,  # type: ignore[arg-type]
    )


def of_rollouts(view: ClosedGroup, values: Floats) -> dict[int, list[float]]:
    """The values of each rollout's entries, in their order: one for each step, or one for all of them."""
    found: dict[int, list[float]] = {}
    for rollout, value in zip(view.run.tolist(), np.asarray(values).tolist(), strict=True):
        found.setdefault(rollout, []).append(value)
    return found
