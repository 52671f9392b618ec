"""A sweep in the log: its fold, the files of its runs, and which of them begin or end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from rftd.daemon.config.sweep_points import changes_between
from rftd.streams.events.sweep import FieldChange, SweepCancelled, SweepPoint, SweepRefused, SweepSubmitted
from rftd.streams.folds.spine import Status
from rftd.streams.folds.sweeps import RecordedSweep, config_of
from rftd.workers.control.sweep_runs import BeginRun, EndRun, is_over, next_steps

QUEUED, RUNNING, DONE = Status.QUEUED, Status.RUNNING, Status.COMPLETED


def sweep_of(runs: int, at_once: int) -> RecordedSweep:
    points = tuple(SweepPoint(name=f"s-{number}") for number in range(runs))
    submitted = SweepSubmitted(name="s", config={"name": "file"}, points=points, at_once=at_once)
    return RecordedSweep(id=UUID(int=9), submitted=submitted, submitted_ns=1)


@pytest.mark.parametrize(
    ("states", "begun"),
    [
        ({}, [0, 1]),
        ({0: QUEUED}, [1]),
        ({0: RUNNING, 1: Status.PAUSED}, []),
        ({0: RUNNING, 1: DONE}, [2]),
        ({0: Status.FAILED, 1: Status.CANCELLED}, [2, 3]),
        ({0: Status.SUBMITTED, 1: RUNNING}, [0]),
        ({1: DONE}, [0, 2]),
        (dict.fromkeys(range(4), DONE), []),
    ],
)
def test_as_many_runs_begin_as_the_bound_leaves(states: dict[int, Status], begun: list[int]) -> None:
    sweep = sweep_of(4, at_once=2)
    assert list(next_steps(sweep, states)) == [BeginRun(point) for point in begun]
    assert is_over(sweep, states) is (len(states) == 4)


def test_one_that_was_refused_is_left_out() -> None:
    sweep = sweep_of(3, at_once=1)
    sweep.refused[1] = SweepRefused(point=1, code="RFTD-DAT-001", reason="no such file")
    assert list(next_steps(sweep, {0: DONE})) == [BeginRun(2)]
    assert is_over(sweep, {0: DONE, 2: DONE})


def test_the_runs_of_a_cancelled_sweep_end_and_none_begins() -> None:
    sweep = sweep_of(3, at_once=3)
    sweep.cancelled = SweepCancelled(reason="enough", by="ann")
    states = {0: DONE, 1: RUNNING}
    assert list(next_steps(sweep, states)) == [EndRun(1, "sweep s was cancelled: enough")]
    assert not is_over(sweep, states)
    assert is_over(sweep, {0: DONE, 1: Status.CANCELLED})


@pytest.mark.parametrize(
    ("config", "other", "paths"),
    [
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}, [("a", "b")]),
        ({"a": [{"b": 1}, 2]}, {"a": [{"b": 5}, 2]}, [("a", 0, "b")]),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, [("a",)]),
        ({"a": {"b": 1}}, {"a": {"b": 1, "x.y": {"z": 0}}}, [("a", "x.y")]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, [("a",)]),
        ({"a": 1}, {"b": 1}, [()]),
        ({"a": 1}, {"a": True}, [("a",)]),
        ({"a": None}, {"a": {}}, [("a",)]),
        ({"a": 1}, {"a": 1}, []),
    ],
)
def test_changes_make_one_file_of_another(config: dict[str, Any], other: dict[str, Any], paths: list[Any]) -> None:
    changes = tuple(changes_between(config, other))
    assert [change.field for change in changes] == paths
    before = repr(config)
    made = config_of(config, SweepPoint(name="x", changes=changes))
    assert repr(made) == repr(other)
    assert repr(config) == before


def test_the_file_of_a_run_has_its_name_and_the_label_of_the_sweep() -> None:
    change = FieldChange(("labels",), {"team": "a"})
    sweep = sweep_of(1, at_once=1)
    submitted = SweepSubmitted(
        name="s", config={"name": "file"}, points=(SweepPoint(name="s-1", changes=(change,)),), at_once=1
    )
    sweep.submitted = submitted
    assert sweep.config(0) == {"name": "s-1", "labels": {"team": "a", "sweep": "s"}}
    assert sweep.key(0) == sweep.key(0) != sweep_of(1, at_once=1).key(1)
