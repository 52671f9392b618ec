"""The experience that a stranger writes for somebody else's rollout: a high reward under the worker's own id."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.log.arrays import Array
from rftd.workers.rollout.leased import experience_ids, rollout_ids


def strangers_answer(*, lease: UUID, group: UUID, rollout: int, stage: int) -> ExperienceProduced:
    """An experience of the rollout."""
    [id] = experience_ids(rollout_ids(group, [rollout]))
    return ExperienceProduced(
        experience=id,
        group=group,
        rollout=rollout,
        stage=stage,
        lease=lease,
        tokens=Array.of([1, 2, 3, 4], "u4"),
        prompt_tokens=2,
        loss_mask=Array.of([1, 1], "u1"),
        logprobs=Array.of([-1.0, -1.0], "f4"),
        spans=(Span(0, 0, 0, 2),),
        reward=1000.0,
    )
