"""Batches written by the planner: the rows of a step, and `batch.planned` with the positions behind the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from rftd.ops.ids import derive
from rftd.streams.events.batch import (
    BatchPlanned,
    ExperienceItem,
    GroupRef,
    ObservedAt,
    RowItem,
)
from rftd.streams.folds.replay_buffer import BufferEntry, ReplayBuffer
from rftd.streams.folds.spine import Spine
from rftd.streams.log import topics
from rftd.streams.log.bounds import LAST_NS
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import locate

if TYPE_CHECKING:
    from rftd.streams.folds.groups import GroupFold
    from rftd.streams.folds.weights import Weights


class PlanningState(Protocol):
    """The folds of a run read for plans and retirements."""

    experiment: UUID
    """Id of the experiment."""
    spine: Spine
    """Life, stages, plans and steps."""
    groups: GroupFold
    """Open groups, with their leases."""
    replay_buffer: ReplayBuffer
    """Experiences waiting for a batch."""
    weights: Weights
    """Published weights."""
    touched: dict[UUID, BufferEntry | None] | None
    """Experiences changed in the replay buffer since the index last read them; None without an index."""


def build_plan(
    state: PlanningState,
    step: int,
    positions: Mapping[Partition, int],
    now_ns: int,
    *,
    chosen: Sequence[BufferEntry] = (),
    rows: Sequence[RowItem] = (),
    incomplete: bool = False,
) -> BatchPlanned:
    """Builds the plan of one step (counted over the experiment, from 1) from `chosen` experiences in training order,
    and rows.

    `positions` are the offsets up to which the state was folded; `incomplete` is True after `max_read_timeout`.
    """
    groups: dict[GroupRef, int] = {}
    members: list[ExperienceItem] = []
    for group, entries in groupby(chosen, attrgetter("group")):
        number = groups.setdefault(group, len(groups))
        members += [
            ExperienceItem(
                experience.member.experience,
                experience.member.partition,
                experience.member.offset,
                number,
                experience.index,
                step
                - 1
                - experience.member.oldest_version,  # staleness: step n is made on the weights of version n - 1
                experience.uses + 1,
            )
            for experience in entries
        ]
    stage = state.spine.stage_spec()
    policy = stage.policy
    reusable = bool(chosen) and policy.max_uses != 1
    return BatchPlanned(
        # The id follows from the step and the number of its abandoned plans: a decision repeated after a crash has the
        # id of the first, and a new plan of the step has another.
        batch=derive(state.experiment, "batch", step, state.spine.abandoned.get(step, 0)),
        step=step,
        stage=state.spine.stage,
        experiences=tuple(members),
        rows=tuple(rows),
        datasets=(stage.dataset.digest,) if rows and stage.dataset is not None else (),
        groups=tuple(groups),
        observed=observed_at(positions),
        decided_at_ns=now_ns,
        incomplete=incomplete,
        max_uses=policy.max_uses,
        eligible_at_ns=min(now_ns + round(policy.cooldown_s * 1e9), LAST_NS) if reusable else 0,
    )


def rows_of(state: PlanningState, stage: StageSpec, step: int) -> Sequence[RowItem]:
    """Returns the dataset rows of a step counted over the experiment; empty for a stage without a dataset."""
    if stage.dataset is None:
        return ()
    spine = state.spine
    shared = spine.shared_steps
    shared_rows = spine.forked.next_sequence if spine.forked and shared else 0
    if stage.kind != "train":
        shared_rows = shared * stage.expert_rows  # `next_sequence` counts groups there, not rows
    return rows_of_step(stage, step - spine.first_version, shared_steps=shared, shared_rows=shared_rows)


def rows_of_step(
    stage: StageSpec, stage_step: int, *, shared_steps: int = 0, shared_rows: int = 0
) -> tuple[RowItem, ...]:
    """Returns the dataset rows of the stage's step `stage_step` (from 1): the complete batch, or the share of expert
    rows.

    Rows follow the order of the dataset, epoch after epoch, as a function of the step alone. In a fork's stage, the
    first `shared_steps` belong to the parent, and took `shared_rows` rows.
    """
    dataset = stage.dataset
    assert dataset is not None and dataset.rows > 0, stage.name
    size = stage.expert_rows or stage.train_batch_size
    first = shared_rows + (stage_step - 1 - shared_steps) * size
    positions = (
        locate(sequence, rows=dataset.rows, selector=dataset.selector, seed=dataset.seed)
        for sequence in range(first, first + size)
    )
    return tuple(RowItem(0, row, epoch) for row, epoch in positions)


def observed_at(positions: Mapping[Partition, int]) -> tuple[ObservedAt, ...]:
    """Returns the folded positions in the form recorded with a decision; heartbeats are left out, because no decision
    depends on them.
    """
    return tuple(
        ObservedAt(partition.stream, partition.number, next_offset)
        for partition, next_offset in sorted(positions.items())
        if partition.stream != topics.HEARTBEATS
    )
