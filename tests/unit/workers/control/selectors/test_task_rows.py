"""Rows that are drawn: written before they are leased, leased as they were drawn, drawn by what the log says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from synthetic.worlds.desk import REPEAT, Desk, stage_of

from rftd.ops.errors import ConfigError
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskLeased, TasksDrawn
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import locate, turn_at
from rftd.workers.control.closing import close_groups
from rftd.workers.control.deciders import current_answers
from rftd.workers.control.hold import DrawsRows, ReadsColumns
from rftd.workers.control.leasing import Credits, lease_groups
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.selectors.easy_to_hard import EasyToHard
from rftd.workers.control.selectors.task_rows import TaskRows

ROWS = 6
COLUMNS = np.array([[0.1, 0.2], [0.5, 0.9], [0.3, 0.4], [0.9, 0.9], [0.0, 0.1], [0.6, 0.8]])
EASIEST = [3, 5, 1, 2, 0, 4]


def taskset(selector: str = "offline_easy2hard", name: str = "drawn", **arguments: object) -> TasksetSpec:
    return TasksetSpec(
        name=name,
        path="p",
        rows=ROWS,
        selector=selector,
        selector_args=dict(arguments),
        feature_keys=("weak", "strong"),
        follows_rewards=selector == "difficulty_based",
    )


def columns(_spec: TasksetSpec) -> NDArray[np.float64]:
    return COLUMNS


def turn(desk: Desk, stage: StageSpec, rows: TaskRows) -> list[Event]:
    """The leases and draws that are decided now, obeyed."""
    [worker] = desk.state.roster.explorers()
    leases, _ = lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT), rows)
    return desk.obey(leases)


def explored(stage: StageSpec, groups: int, fresh: Callable[[Desk], TaskRows]) -> tuple[list[TaskLeased], list[Event]]:
    """The leases of so many groups, and everything that was decided; each turn on the rows that `fresh` gives."""
    desk = Desk(stage)
    desk.join(0, capacity=2 * REPEAT)
    leases: list[TaskLeased] = []
    events: list[Event] = []
    while len(leases) < groups:
        decided = turn(desk, stage, fresh(desk))
        assert decided
        events += decided
        for lease in decided:
            if isinstance(lease, TaskLeased):
                leases.append(lease)
                desk.produce(lease, range(REPEAT))
        events += desk.obey(close_groups(desk.state))
    return leases[:groups], events


@pytest.mark.parametrize("selector", ["offline_easy2hard", "difficulty_based"])
def test_rows_are_drawn_first_and_a_decider_that_is_made_anew_leases_the_same(selector: str) -> None:
    stage = stage_of(taskset=taskset(selector), kind="explore", collect_groups=20)
    desk = Desk(stage)
    desk.join(0, capacity=2 * REPEAT)
    [draw] = turn(desk, stage, TaskRows(desk.state, columns))
    assert isinstance(draw, TasksDrawn)
    assert (draw.stage, draw.taskset, draw.first, len(draw.rows)) == (0, 0, 0, stage.batch_size)
    events = turn(desk, stage, TaskRows(desk.state, columns))
    leases = [event for event in events if isinstance(event, TaskLeased)]
    assert [lease.row for lease in leases] == list(draw.rows)
    lasting: list[TaskRows] = []

    def kept(desk: Desk) -> TaskRows:
        lasting.append(lasting[0] if lasting else TaskRows(desk.state, columns))
        return lasting[0]

    every_turn, _ = explored(stage, 12, lambda desk: TaskRows(desk.state, columns))
    once, _ = explored(stage, 12, kept)
    assert [(lease.row, lease.epoch) for lease in every_turn] == [(lease.row, lease.epoch) for lease in once]


def test_easy_rows_come_first_and_each_once_an_epoch() -> None:
    stage = stage_of(taskset=taskset(), kind="explore", collect_groups=20)
    leases, _ = explored(stage, 12, lambda desk: TaskRows(desk.state, columns))
    assert [(lease.row, lease.epoch) for lease in leases] == [(row, epoch) for epoch in (0, 1) for row in EASIEST]


def test_a_selector_that_follows_rewards_is_told_those_of_its_rows_and_no_other() -> None:
    stage = stage_of(taskset=taskset("difficulty_based", tau=0.0), kind="explore", collect_groups=20)
    _, events = explored(stage, 6, lambda desk: TaskRows(desk.state, columns))
    leased = {event.group: event.row for event in events if isinstance(event, TaskLeased)}
    closes = [event for event in events if isinstance(event, GroupClosed)]
    assert [(close.taskset, close.row) for close in closes] == [(0, leased[close.group]) for close in closes]
    seen = [event.seen for event in events if isinstance(event, TasksDrawn)]
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] > 0


def test_a_selector_that_follows_none_is_told_none() -> None:
    stage = stage_of(taskset=taskset(), kind="explore", collect_groups=20)
    _, events = explored(stage, 6, lambda desk: TaskRows(desk.state, columns))
    assert {(event.taskset, event.row) for event in events if isinstance(event, GroupClosed)} == {(-1, -1)}
    assert {event.seen for event in events if isinstance(event, TasksDrawn)} == {0}


def test_among_several_tasksets_each_row_is_by_its_own_selector() -> None:
    plain = TasksetSpec(name="plain", path="q", rows=4, selector="shuffle")
    stage = stage_of(taskset=plain, more_tasksets=(taskset(),), kind="explore", collect_groups=30)
    leases, _ = explored(stage, 20, lambda desk: TaskRows(desk.state, columns))
    turns = [turn_at(lease.sequence, (4, ROWS)) for lease in leases]
    drawn = [lease.row - 4 for lease, turn in zip(leases, turns, strict=True) if turn.dataset]
    assert drawn == [*EASIEST, *EASIEST][: len(drawn)]
    by_place = [lease.row for lease, turn in zip(leases, turns, strict=True) if not turn.dataset]
    places = range(len(by_place))
    assert by_place == [locate(place, rows=4, selector="shuffle", seed=42)[0] for place in places]


def test_while_columns_are_read_nothing_is_leased_and_who_only_looks_knows_better() -> None:
    stage = stage_of(taskset=taskset())
    desk = Desk(stage)
    desk.join(0)
    [worker] = desk.state.roster.explorers()
    leases, hold = lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT), TaskRows(desk.state))
    assert (leases, hold) == ([], ReadsColumns("drawn", "weak, strong"))
    dispatched = current_answers(desk.state, Liveness(), now_s=0.0, now_ns=desk.recorder.clock.now_ns()).dispatcher
    assert dispatched is not None
    assert dispatched.hold == DrawsRows()


@pytest.mark.parametrize(
    ("rows", "what"),
    [((0, 6), "row 6, and taskset"), ((1, 1), "row 1 twice"), ((2,), "1 rows instead of 2")],
)
def test_a_draw_that_is_none_is_refused(rows: tuple[int, ...], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EasyToHard, "draw", lambda _self, _view: rows)
    stage = stage_of(taskset=taskset())
    desk = Desk(stage)
    desk.join(0)
    with pytest.raises(ConfigError, match=what):
        turn(desk, stage, TaskRows(desk.state, columns))
