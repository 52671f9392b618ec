"""The batches that the planner writes: the rows of a step, and `batch.planned` with what it was decided on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from rftd.ops.ids import derive
from rftd.streams.events.batch import (
    BatchPlanned,
    ExperienceItem,
    GroupRef,
    ObservedAt,
    RowItem,
)
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.bounds import LAST_NS
from rftd.streams.log.topics import Partition
from rftd.streams.spec.row_order import locate
from rftd.streams.spec.spec import StageSpec


def planned(
    state: RunState,
    step: int,
    positions: Mapping[Partition, int],
    now_ns: int,
    *,
    chosen: Sequence[BufferEntry] = (),
    rows: Sequence[RowItem] = (),
    incomplete: bool = False,
) -> BatchPlanned:
    """The plan of one step (counted over the experiment, from 1): the `chosen` experiences in training order, and rows.

    `positions` is how far the state was folded when that was decided.
    """
    groups: dict[GroupRef, int] = {}
    items: list[ExperienceItem] = []
    for group, entries in groupby(chosen, attrgetter("group")):
        number = groups.setdefault(group, len(groups))
        items += [
            ExperienceItem(
                entry.member.experience,
                entry.member.partition,
                entry.member.offset,
                number,
                entry.index,
                step - 1 - entry.member.oldest_version,  # staleness: step n is made on the weights of version n - 1
                entry.uses + 1,
            )
            for entry in entries
        ]
    stage = state.spine.stage_spec()
    policy = stage.policy
    reusable = bool(chosen) and policy.max_uses != 1
    return BatchPlanned(
        # The id follows from the step and from how often its plan was abandoned, so that a decision that is made again
        # after a crash has the id of the first, and a new plan of the step has another.
        batch=derive(state.experiment, "batch", step, state.spine.abandoned.get(step, 0)),
        step=step,
        stage=state.spine.stage,
        experiences=tuple(items),
        rows=tuple(rows),
        datasets=(stage.dataset.digest,) if rows and stage.dataset is not None else (),
        groups=tuple(groups),
        observed=observed_at(positions),
        decided_at_ns=now_ns,
        incomplete=incomplete,
        max_uses=policy.max_uses,
        eligible_at_ns=min(now_ns + round(policy.cooldown_s * 1e9), LAST_NS) if reusable else 0,
    )


def rows_of(state: RunState, stage: StageSpec, step: int) -> Sequence[RowItem]:
    """The rows of a step, which is counted over the experiment; none where the stage has no dataset."""
    if stage.dataset is None:
        return ()
    spine = state.spine
    shared = spine.shared_steps
    taken = spine.forked.next_sequence if spine.forked and shared else 0
    if stage.kind != "train":
        taken = shared * stage.expert_rows  # `next_sequence` counts groups there, not rows
    return rows_of_step(stage, step - spine.first_version, shared_steps=shared, shared_rows=taken)


def rows_of_step(
    stage: StageSpec, stage_step: int, *, shared_steps: int = 0, shared_rows: int = 0
) -> tuple[RowItem, ...]:
    """The rows of a step of the stage (from 1): all of its items, or an expert's part.

    They follow the order of the dataset, epoch after epoch, as a function of the step alone. In a fork's stage the
    first `shared_steps` were another experiment's, and took `shared_rows` rows.
    """
    dataset = stage.dataset
    assert dataset is not None and dataset.rows > 0, stage.name
    size = stage.expert_rows or stage.train_batch_size
    first = shared_rows + (stage_step - 1 - shared_steps) * size
    places = (
        locate(sequence, rows=dataset.rows, selector=dataset.selector, seed=dataset.seed)
        for sequence in range(first, first + size)
    )
    return tuple(RowItem(0, row, epoch) for row, epoch in places)


def observed_at(positions: Mapping[Partition, int]) -> tuple[ObservedAt, ...]:
    """The positions that a decision was made on, without the streams that are no truth."""
    return tuple(
        ObservedAt(partition.stream, partition.number, next_offset)
        for partition, next_offset in sorted(positions.items())
        if partition.stream != topics.HEARTBEATS
    )
