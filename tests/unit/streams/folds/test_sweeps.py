"""A sweep in the log: its fold, the files of its runs, and which of them begin or end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.daemon.config.sweep_points import changes_between
from rftd.streams.events.sweep import (
    FieldChange,
    Halving,
    SettingScore,
    SweepCancelled,
    SweepHalved,
    SweepPoint,
    SweepRefused,
    SweepSubmitted,
)
from rftd.streams.folds.spine import Status
from rftd.streams.folds.sweeps import RecordedSweep, config_of
from rftd.workers.control.sweep_runs import BeginRun, EndRun, HoldRun, ResumeRun, RunStanding, is_over, next_steps

QUEUED, RUNNING, DONE = Status.QUEUED, Status.RUNNING, Status.COMPLETED


def sweep_of(runs: int, at_once: int) -> RecordedSweep:
    points = tuple(SweepPoint(name=f"s-{number}") for number in range(runs))
    submitted = SweepSubmitted(name="s", config={"name": "file"}, points=points, at_once=at_once)
    return RecordedSweep(id=UUID(int=9), submitted=submitted, submitted_ns=1)


def standing(states: dict[int, Status]) -> dict[int, RunStanding]:
    return {point: RunStanding(status) for point, status in states.items()}


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
    runs = standing(states)
    assert list(next_steps(sweep, runs)) == [BeginRun(point) for point in begun]
    assert is_over(sweep, runs) is (len(states) == 4)


def test_runs_wait_for_one_evaluation_of_the_base_and_begin_as_forks_of_it() -> None:
    sweep = sweep_of(4, at_once=3)
    sweep.submitted = msgspec.structs.replace(sweep.submitted, one_base=True)
    assert list(next_steps(sweep, {})) == [BeginRun(0)]
    for status in (QUEUED, RUNNING):
        assert list(next_steps(sweep, {0: RunStanding(status)})) == []
    based = RunStanding(RUNNING, based=True)
    assert list(next_steps(sweep, {0: based})) == [BeginRun(1, 0), BeginRun(2, 0)]
    assert list(next_steps(sweep, {0: based, 1: RunStanding(DONE), 2: RunStanding(RUNNING)})) == [BeginRun(3, 0)]


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.PAUSED])
def test_a_run_that_stops_before_its_first_evaluation_holds_up_no_other(status: Status) -> None:
    sweep = sweep_of(4, at_once=3)
    sweep.submitted = msgspec.structs.replace(sweep.submitted, one_base=True)
    assert list(next_steps(sweep, {0: RunStanding(status)})) == [BeginRun(1)]
    based = {0: RunStanding(status), 1: RunStanding(DONE, based=True)}
    assert next(step for step in next_steps(sweep, based) if isinstance(step, BeginRun)) == BeginRun(2, 1)


def test_one_that_was_refused_is_left_out() -> None:
    sweep = sweep_of(3, at_once=1)
    sweep.refused[1] = SweepRefused(point=1, code="RFTD-DAT-001", reason="no such file")
    assert list(next_steps(sweep, standing({0: DONE}))) == [BeginRun(2)]
    assert is_over(sweep, standing({0: DONE, 2: DONE}))


def test_the_runs_of_a_cancelled_sweep_end_and_none_begins() -> None:
    sweep = sweep_of(3, at_once=3)
    sweep.cancelled = SweepCancelled(reason="enough", by="ann")
    states = standing({0: DONE, 1: RUNNING})
    assert list(next_steps(sweep, states)) == [EndRun(1, "sweep s was cancelled: enough")]
    assert not is_over(sweep, states)
    assert is_over(sweep, standing({0: DONE, 1: Status.CANCELLED}))


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


def halving_sweep(at_once: int) -> RecordedSweep:
    """Four settings of one run each but the first, which has two; halved at versions 10 and 20."""
    settings = ("a", "a", "b", "c", "d")
    points = tuple(SweepPoint(name=f"s-{n}", settings={"lr": value}) for n, value in enumerate(settings))
    halving = Halving(at=(10, 20), taskset="held")
    submitted = SweepSubmitted(name="s", config={}, points=points, at_once=at_once, halving=halving)
    return RecordedSweep(id=UUID(int=9), submitted=submitted, submitted_ns=1)


def at(version: int, score: float, *, held: bool = True) -> RunStanding:
    return RunStanding(Status.PAUSED if held else RUNNING, held, {version: score})


def test_runs_wait_at_a_halving_and_the_others_take_their_places() -> None:
    sweep = halving_sweep(at_once=2)
    assert list(next_steps(sweep, {0: at(10, 0.5, held=False), 1: RunStanding(RUNNING)})) == [HoldRun(0, 10)]
    assert list(next_steps(sweep, {0: at(10, 0.5), 1: RunStanding(RUNNING)})) == [BeginRun(2)]
    paused = RunStanding(Status.PAUSED, False, {10: 0.5})
    assert list(next_steps(sweep, {0: paused, 1: RunStanding(RUNNING)})) == [], "a person's pause stays, and counts"


def test_the_lower_half_is_stopped_once_all_have_come() -> None:
    sweep = halving_sweep(at_once=2)
    runs = {0: at(10, 0.2), 1: at(10, 0.8), 2: at(10, 0.4), 3: at(10, 0.6), 4: RunStanding(RUNNING)}
    assert not any(isinstance(step, SweepHalved) for step in next_steps(sweep, runs))
    runs[4] = RunStanding(Status.FAILED)
    [halved] = next_steps(sweep, runs)
    scores = (SettingScore(0, 2, 0.5), SettingScore(2, 1, 0.4), SettingScore(3, 1, 0.6), SettingScore(4, 0, None))
    assert halved == SweepHalved(version=10, stopped=(2, 4), scores=scores)
    sweep.halved.append(halved)
    assert sweep.next_halving == 20
    assert list(next_steps(sweep, runs)) == [
        EndRun(2, "sweep s was halved at version 10: 0.4"),
        ResumeRun(0, 10),
        ResumeRun(1, 10),
    ], "two at once"
    runs |= {0: RunStanding(DONE, False, {20: 0.7}), 1: RunStanding(RUNNING), 2: RunStanding(Status.CANCELLED)}
    assert list(next_steps(sweep, runs)) == [ResumeRun(3, 10)]
    runs |= {1: at(20, 0.9), 3: RunStanding(Status.PAUSED, True, {10: 0.6, 20: 0.95})}
    [last] = next_steps(sweep, runs)
    assert isinstance(last, SweepHalved)
    assert (last.version, last.stopped) == (20, (0,))
    sweep.halved.append(last)
    assert list(next_steps(sweep, runs)) == [EndRun(1, "sweep s was halved at version 20: 0.8"), ResumeRun(3, 20)]
    runs |= {1: RunStanding(Status.CANCELLED), 3: RunStanding(DONE)}
    assert list(next_steps(sweep, runs)) == []
    assert is_over(sweep, runs)


def test_one_that_could_not_begin_holds_up_no_halving() -> None:
    sweep = halving_sweep(at_once=5)
    sweep.refused[4] = SweepRefused(point=4, code="RFTD-DAT-001", reason="gone")
    runs = {point: at(10, 0.1 * point) for point in range(4)}
    [halved] = next_steps(sweep, runs)
    assert isinstance(halved, SweepHalved)
    assert halved.stopped == (0, 4)
