"""Advantages of a stage with tasksets of several algorithms: each group by the function of its taskset."""

from __future__ import annotations

from uuid import UUID

import msgspec
import numpy as np
import pytest

from rftd.ops.ids import derive
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log.arrays import Array
from rftd.streams.spec.spec import AlgorithmSpec, ModelSpec, StageSpec, TasksetSpec
from rftd.workers.learning.algorithms.advantages.by_taskset import ByTaskset, stage_advantages
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.training.group_samples import BatchExperience, group_samples

_PLAIN = TasksetSpec(name="plain", path="/a.jsonl", rows=4)
_CENTRED = msgspec.structs.replace(
    _PLAIN,
    name="centred",
    algorithm="dr_grpo",
    advantage="grpo",
    advantage_args={"std_cal_level": "none", "mask_truncated": True},
)
_STAGE = StageSpec(
    name="rft",
    kind="both",
    total_steps=1,
    batch_size=2,
    train_batch_size=4,
    algorithm=AlgorithmSpec(kind="grpo", repeat_times=2, advantage="grpo", policy_loss="ppo"),
    model=ModelSpec(path="none", max_model_len=8, max_prompt_tokens=4, max_response_tokens=4),
    taskset=_PLAIN,
    more_tasksets=(_CENTRED,),
)


def _group(taskset: int) -> ClosedGroup:
    return ClosedGroup(rewards=np.array([0.0, 4.0], np.float32), taskset=taskset)


def test_each_group_has_the_advantages_of_its_taskset_in_any_order() -> None:
    function = stage_advantages(_STAGE)
    assert isinstance(function, ByTaskset)
    divided, centred, unknown = function.advantages([_group(0), _group(1), _group(-1)])
    assert divided.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert centred.tolist() == pytest.approx([-2.0, 2.0])
    assert unknown.tolist() == divided.tolist()
    turned = function.advantages([_group(1), _group(0)])
    assert [advantages.tolist() for advantages in turned] == [centred.tolist(), divided.tolist()]


def test_a_stage_of_one_algorithm_has_its_function_alone() -> None:
    assert not isinstance(stage_advantages(msgspec.structs.replace(_STAGE, more_tasksets=())), ByTaskset)


def _rollout(group: UUID, number: int) -> ExperienceProduced:
    return ExperienceProduced(
        experience=derive(group, number),
        group=group,
        rollout=number,
        stage=0,
        lease=group,
        tokens=Array.of([5, 6], "u4"),
        prompt_tokens=1,
        loss_mask=Array.of([1], "u1"),
        logprobs=Array.of([-0.5], "f4"),
        spans=(Span(0, 0, 0, 1),),
        reward=4.0 * number,
        finish="length" if number else "stop",
    )


def test_samples_of_a_batch_have_advantages_and_masks_of_their_tasksets() -> None:
    closed, experiences = [], []
    for taskset in (0, 1):
        group = UUID(int=7 + taskset)
        rollouts = [_rollout(group, number) for number in range(2)]
        members = tuple(Member(event.experience, event.rollout, 0, 0, event.reward, 0.0, 2, 0, 0) for event in rollouts)
        closed.append(
            GroupClosed(group=group, sequence=taskset, stage=0, members=members, failed=0, taskset=taskset, row=0)
        )
        experiences += [BatchExperience(event, taskset) for event in rollouts]
    samples, _ = group_samples(stage_advantages(_STAGE), closed, {}, experiences, stage=_STAGE, seed=1)
    flat = [sample for of_rollout in samples for sample in of_rollout]
    advantages = [float(sample.advantages[0]) for sample in flat if sample.advantages is not None]
    assert advantages == pytest.approx([-(0.5**0.5), 0.5**0.5, -2.0, 2.0])
    assert [int(sample.loss_mask[0]) for sample in flat] == [1, 1, 1, 0]
