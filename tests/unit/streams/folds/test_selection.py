"""The fold of draws and rewards: what comes again changes nothing, and only the stage under way is kept."""

from __future__ import annotations

from uuid import UUID

import pytest

from rftd.streams.events.task import GroupClosed, Member, TasksDrawn
from rftd.streams.folds.selection import REWARD, DrawnTasks, Selection


def draw(first: int, *rows: int, stage: int = 0) -> TasksDrawn:
    return TasksDrawn(stage=stage, taskset=0, first=first, rows=rows)


def close(row: int, *rewards: float, stage: int = 0, taskset: int = 0) -> GroupClosed:
    members = tuple(
        Member(UUID(int=number), number, 0, number, reward, 0.0, 1, 0, 0) for number, reward in enumerate(rewards)
    )
    return GroupClosed(
        group=UUID(int=row + 1), sequence=row, stage=stage, members=members, failed=0, taskset=taskset, row=row
    )


def test_the_first_draw_of_a_place_stands() -> None:
    selection = Selection()
    for event in (draw(0, 4, 5), draw(0, 6, 7), draw(1, 8, 9), draw(2, 1, 2), draw(0, 4, 5)):
        selection.draw(event)
    assert selection.draws == {(0, 0): DrawnTasks(2, (1, 2))}
    assert [selection.draws[0, 0].row_at(place) for place in (1, 2, 3, 4)] == [None, 1, 2, None]


def test_a_later_stage_forgets_the_draws_and_rewards_of_the_one_before() -> None:
    selection = Selection()
    selection.draw(draw(0, 4, 5))
    selection.close(close(4, 1.0, 0.0))
    selection.draw(draw(0, 1, stage=1))
    selection.close(close(1, 0.25, stage=1))
    assert list(selection.draws) == list(selection.rewards) == [(1, 0)]


@pytest.mark.parametrize("event", [close(3), close(-1, 1.0), close(3, 1.0, taskset=-1)])
def test_what_says_nothing_of_a_row_does_not_count(event: GroupClosed) -> None:
    selection = Selection()
    selection.close(event)
    assert selection.rewards == {}


def test_the_mean_of_the_members_is_the_reward_of_the_row() -> None:
    selection = Selection()
    selection.close(close(3, 1.0, 0.5, 0.0))
    assert list(REWARD.iter_unpack(selection.rewards[0, 0].kept)) == [(3, 0.5)]
