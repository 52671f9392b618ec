"""A closed group of the log as an advantage function sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

import numpy as np

from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, MemberField


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
    rollouts = np.array([member.rollout for member in event.members], np.int64)
    events = [members[member.experience] for member in event.members] if fields else []
    return ClosedGroup(
        rewards=np.array([member.reward for member in event.members], np.float32),
        runs=rollouts,
        greedy=rollouts < greedy if greedy else None,
        mean_logprobs=np.array([_mean_logprob(each) for each in events], np.float32)
        if "mean_logprobs" in fields
        else None,
        seed=derive(NAMESPACE, "advantages", seed, event.stage, event.sequence).int,
    )


def _mean_logprob(event: ExperienceProduced) -> float:
    trained = event.logprobs.view()[event.loss_mask.view() != 0]
    return float(trained.mean(dtype=np.float64)) if len(trained) else 0.0
