"""A batch and a group are as large as one record can name, and no larger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events.batch import BatchPlanned, ExperienceItem, GroupRef, ObservedAt, RowItem
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
ROWS = (
    "mode=train",
    "algorithm={algorithm_type: sft}",
    "buffer.trainer_input.experience_buffer={path: /rows.jsonl}",
)
LARGE = 2**32 - 1
"""More than any place, version or count is."""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            [*ROWS, f"buffer.train_batch_size={limits.PLAN_ROWS + 1}"],
            f"buffer.train_batch_size: is {limits.PLAN_ROWS + 1}, so a step trains {limits.PLAN_ROWS + 1} rows, but "
            f"the record of a plan holds at most {limits.PLAN_ROWS}",
        ),
        (
            [f"buffer.train_batch_size={limits.PLAN_EXPERIENCES + 1}"],
            f"buffer.train_batch_size: is {limits.PLAN_EXPERIENCES + 1}, so a step trains",
        ),
        (
            ["buffer.train_batch_size=0", "buffer.batch_size=9000", "algorithm.repeat_times=4"],
            "buffer.batch_size: is 9000 times repeat_times, so a step trains 36000 experiences",
        ),
        (
            [f"algorithm.repeat_times={limits.GROUP_MEMBERS + 1}", "buffer.train_batch_size=16"],
            f"algorithm.repeat_times: is {limits.GROUP_MEMBERS + 1}, but the record of a closed group holds",
        ),
    ],
)
def test_more_is_refused_with_field_value_and_bound(errors: Errors, overrides: list[str], said: str) -> None:
    found = errors(overrides=overrides)
    assert any(said in error for error in found), found


def test_as_much_is_accepted(load: Load) -> None:
    stage = load(overrides=[*ROWS, f"buffer.train_batch_size={limits.PLAN_ROWS}"]).spec.stages[0]
    assert stage.train_batch_size == limits.PLAN_ROWS


def test_a_record_holds_as_much_as_is_accepted() -> None:
    clock = ManualClock()
    ids = SeededIds(clock, 1)
    writer = Writer(source="daemon/" + "x" * 36, clock=clock, ids=ids, role="planner", epoch=LARGE)

    def size_bytes(event: Event) -> int:
        return writer.draft(event, experiment=ids.new()).size_bytes

    observed = tuple(ObservedAt(each.stream, each.number, LARGE) for each in topics.EVERY_PARTITION)
    plan = BatchPlanned(
        batch=ids.new(),
        step=LARGE,
        stage=9,
        experiences=tuple(
            ExperienceItem(ids.new(), 255, LARGE, number, 255, LARGE, 9) for number in range(limits.PLAN_EXPERIENCES)
        ),
        groups=tuple(GroupRef(ids.new(), 255, LARGE) for _ in range(limits.PLAN_EXPERIENCES)),
        rows=tuple(RowItem(0, LARGE, 65_535) for _ in range(limits.PLAN_ROWS)),
        datasets=("d" * 64,),
        observed=observed,
        decided_at_ns=2**62,
    )
    assert limits.RECORD_SIZE_BYTES * 0.7 < size_bytes(plan) <= limits.RECORD_SIZE_BYTES
    members = tuple(
        Member(ids.new(), number, 255, LARGE, 0.1, 0.1, LARGE, LARGE, LARGE) for number in range(limits.GROUP_MEMBERS)
    )
    closed = GroupClosed(group=ids.new(), sequence=LARGE, stage=9, members=members, failed=0)
    assert size_bytes(closed) <= limits.RECORD_SIZE_BYTES
